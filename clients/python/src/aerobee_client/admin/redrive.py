"""Redrive: sending dead letters again, with the same body, tag, keys, user properties and message
id, and no attempts counted. The dead letters stay in the dead-letter topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aerobee_client.admin.dead_letters import Target
from aerobee_client.errors import MqError
from aerobee_client.message import Message, ReceivedMessage
from aerobee_wire import properties as names
from aerobee_wire.compression import compression_bits
from aerobee_wire.topics import retry_topic

if TYPE_CHECKING:  # slow to import, and only the caller needs them
    from aerobee_client.admin.descriptions import ClientDescription
    from aerobee_client.producer import AsyncProducer

# Sends in flight at once, without a rate.
WINDOW = 64

# Properties of the failed deliveries: they would mislead the next consumer, or delay the message
# again.
_DROPPED = frozenset(
    {
        names.DLQ_ORIGIN_TOPIC,
        names.DLQ_ORIGIN_MESSAGE_ID,
        names.DLQ_REASON,
        names.DLQ_REASON_DESCRIPTION,
        names.RETRY_TOPIC,
        names.REAL_TOPIC,
        names.REAL_QUEUE_ID,
        names.DELAY,
        names.WAIT,
        names.RECONSUME_TIME,
        names.MAX_RECONSUME_TIMES,
        names.MIN_OFFSET,
        names.MAX_OFFSET,
        names.CONSUME_START_TIME,
        names.POP_CHECK_POINT,
        names.FIRST_POP_TIME,
        names.TRANSACTION_PREPARED,
        names.TIMER_DELAY_SEC,
        names.TIMER_DELAY_MS,
        names.TIMER_DELIVER_MS,
        names.TIMER_OUT_MS,
    }
)


class Redriven(Message):
    """A dead letter as a message to send; a compressed body stays compressed. Raises MqError when
    it is none that can be sent."""

    __slots__ = ("sys_flag",)

    def __init__(self, dead_letter: ReceivedMessage, consumer_group: str, target: Target) -> None:
        origin = dead_letter.origin_topic
        topic = retry_topic(consumer_group) if target is Target.RETRY else origin
        super().__init__(topic, dead_letter.stored_body, flag=dead_letter.flag)
        self.sys_flag = compression_bits(dead_letter.sys_flag)
        properties = dead_letter.properties
        kept = {name: value for name, value in properties.items() if name not in _DROPPED}
        kept[names.UNIQUE_KEY] = dead_letter.message_id
        kept[names.ORIGIN_MESSAGE_ID] = dead_letter.origin_message_id
        if target is Target.RETRY:
            kept[names.RETRY_TOPIC] = origin
        self.properties = kept

    def encoded_properties(self, message_id: str) -> bytes:
        """The properties string, with the message id that it has already, not `message_id`."""
        return names.encode(self.properties)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one dead letter. `status`: "sent", "failed", "would send" (a dry run) or
    "skipped" (an earlier dead letter has the same message id)."""

    message_id: str
    offset_message_id: str
    tag: str
    topic: str
    status: str
    error: str = ""


def reads_retries(clients: Sequence[ClientDescription], consumer_group: str) -> bool:
    """Whether one of the connected `clients` of a group subscribes to its retry topic; True when no
    client is connected."""
    topic = retry_topic(consumer_group)
    return not clients or any(topic in client.subscriptions for client in clients)


async def redrive(
    dead_letters: AsyncIterator[ReceivedMessage],
    producer: AsyncProducer | None,
    consumer_group: str,
    target: Target,
    rate: float | None = None,
) -> AsyncIterator[Outcome]:
    """Sends `dead_letters`: one by one, at most `rate` a second, or WINDOW at a time without a
    rate. Without a producer nothing is sent (a dry run). Outcomes come in the order of
    `dead_letters`.

    When reading fails or is cancelled, the outcomes of all messages that were sent come first, then
    the error is raised.
    """
    pace = Pace(rate, asyncio.get_running_loop().time())
    sends: list[asyncio.Task[Outcome]] = []
    message_ids: set[str] = set()
    interruption: MqError | asyncio.CancelledError | None = None
    try:
        async for dead_letter in dead_letters:
            if dead_letter.message_id in message_ids:
                sends.append(asyncio.create_task(_skip(dead_letter)))
            else:
                message_ids.add(dead_letter.message_id)
                await asyncio.sleep(pace.next_wait(asyncio.get_running_loop().time()))
                sending = _send(dead_letter, producer, consumer_group, target)
                sends.append(asyncio.create_task(sending))
            if rate is not None or len(sends) == WINDOW:
                await asyncio.wait(sends)  # not gather: that would cancel them with this task
                for sent in sends:
                    yield sent.result()
                sends.clear()
    except (MqError, asyncio.CancelledError) as error:
        interruption = error
    if sends:
        await asyncio.wait(sends)
    for sent in sends:
        yield sent.result()
    if interruption is not None:
        raise interruption


class Pace:
    """Spaces events so that there are never more than `rate` a second. Pure."""

    def __init__(self, rate: float | None, now_s: float) -> None:
        self._interval_s = 1 / rate if rate else 0.0
        self._due_s = now_s

    def next_wait(self, now_s: float) -> float:
        """Seconds to wait before the next event."""
        due_s = max(self._due_s, now_s)
        self._due_s = due_s + self._interval_s
        return due_s - now_s


async def _skip(dead_letter: ReceivedMessage) -> Outcome:
    return _outcome(dead_letter, "", "skipped", "an earlier dead letter has the same message id")


async def _send(
    dead_letter: ReceivedMessage,
    producer: AsyncProducer | None,
    consumer_group: str,
    target: Target,
) -> Outcome:
    topic, status, error = "", "would send" if producer is None else "sent", ""
    try:
        message = Redriven(dead_letter, consumer_group, target)
        topic = message.topic
        if producer is not None:
            await producer.send(message)
    except MqError as problem:
        status, error = "failed", str(problem)
    return _outcome(dead_letter, topic, status, error)


def _outcome(dead_letter: ReceivedMessage, topic: str, status: str, error: str) -> Outcome:
    ids = (dead_letter.message_id, dead_letter.offset_message_id)
    return Outcome(*ids, dead_letter.tag, topic, status, error)
