"""Sending dead letters again: the same body, tag, keys, user properties and message id, with the
count of attempts back at nothing. The dead letters stay where they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from aerobee_client.admin.descriptions import ClientDescription
from aerobee_client.admin.redrive_target import Target
from aerobee_client.errors import MqError
from aerobee_client.message import Message, ReceivedMessage
from aerobee_client.producer import AsyncProducer
from aerobee_wire import properties as names
from aerobee_wire.record import COMPRESSED
from aerobee_wire.topics import retry_topic

# Sends under way at a time when there is no rate to keep.
WINDOW = 64


# Of the delivery that failed, not of the message: they would mislead whoever gets it next, or delay
# it once more.
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
    """A dead letter on its way back. Raises MqError when it cannot be sent as it is."""

    __slots__ = ()

    def __init__(self, letter: ReceivedMessage, consumer_group: str, target: Target) -> None:
        origin = letter.origin_topic
        topic = retry_topic(consumer_group) if target is Target.RETRY else origin
        super().__init__(topic, letter.body, flag=letter.flag)
        kept = {name: text for name, text in letter.properties.items() if name not in _DROPPED}
        kept[names.UNIQUE_KEY] = letter.message_id
        kept[names.ORIGIN_MESSAGE_ID] = letter.origin_message_id
        if target is Target.RETRY:
            kept[names.RETRY_TOPIC] = origin
        self.properties = kept

    def encoded_properties(self, message_id: str) -> bytes:
        """Its own, with the message id that it has had from the start instead of a new one."""
        return names.encode(self.properties)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one dead letter. `status`: sent, failed, would send (a dry run) or skipped (of
    the same message as one before it: a message that died twice is one message)."""

    message_id: str
    offset_message_id: str
    tag: str
    topic: str
    status: str
    error: str = ""


def reads_retries(clients: Sequence[ClientDescription], consumer_group: str) -> bool:
    """Whether any of a group's clients reads its retry topic; True when nobody is connected, who
    could be asked."""
    topic = retry_topic(consumer_group)
    return not clients or any(topic in client.subscriptions for client in clients)


async def redrive(
    letters: AsyncIterator[ReceivedMessage],
    producer: AsyncProducer | None,
    consumer_group: str,
    target: Target,
    rate: float | None = None,
) -> AsyncIterator[Outcome]:
    """Sends `letters`: one after the other, at most `rate` a second, or without a rate many at a
    time. Without a producer: a dry run. Outcomes come in the order of `letters`.

    When reading on fails, or is cancelled, the outcomes of what is sent come first, then that.
    """
    pace = Pace(rate, asyncio.get_running_loop().time())
    waiting: list[asyncio.Task[Outcome]] = []
    known: set[str] = set()  # message ids
    broken_off: MqError | asyncio.CancelledError | None = None
    try:
        async for letter in letters:
            if letter.message_id in known:
                waiting.append(asyncio.create_task(_skip(letter)))
            else:
                known.add(letter.message_id)
                await asyncio.sleep(pace.next_wait(asyncio.get_running_loop().time()))
                waiting.append(asyncio.create_task(_send(letter, producer, consumer_group, target)))
            if rate is not None or len(waiting) == WINDOW:
                await asyncio.wait(waiting)  # not gather: that would cancel them with this task
                for sent in waiting:
                    yield sent.result()
                waiting.clear()
    except (MqError, asyncio.CancelledError) as error:
        broken_off = error
    if waiting:
        await asyncio.wait(waiting)
    for sent in waiting:
        yield sent.result()
    if broken_off is not None:
        raise broken_off


class Pace:
    """When the next of a row of things is due, so that `rate` a second is never exceeded. Pure."""

    def __init__(self, rate: float | None, now_s: float) -> None:
        self._interval_s = 1 / rate if rate else 0.0
        self._due_s = now_s

    def next_wait(self, now_s: float) -> float:
        """Seconds to wait before the next one."""
        due_s = max(self._due_s, now_s)
        self._due_s = due_s + self._interval_s
        return due_s - now_s


async def _skip(letter: ReceivedMessage) -> Outcome:
    return _outcome(letter, "", "skipped", "an earlier dead letter has the same message id")


async def _send(
    letter: ReceivedMessage, producer: AsyncProducer | None, consumer_group: str, target: Target
) -> Outcome:
    topic, status, error = "", "would send" if producer is None else "sent", ""
    try:
        if letter.sys_flag & COMPRESSED:
            status, error = "failed", "its body is compressed: let its producer send it again"
        else:
            message = Redriven(letter, consumer_group, target)
            topic = message.topic
            if producer is not None:
                await producer.send(message)
    except MqError as problem:
        status, error = "failed", str(problem)
    return _outcome(letter, topic, status, error)


def _outcome(letter: ReceivedMessage, topic: str, status: str, error: str) -> Outcome:
    return Outcome(letter.message_id, letter.offset_message_id, letter.tag, topic, status, error)
