"""Send rejected messages back to their broker, in batches.

The broker copies its record of each message to the retry topic of the group, with a delay. After
the last attempt, it copies the record to the dead-letter topic. If the broker can no longer read
the record (expired, damaged), the client sends its own copy to the retry topic. RocketMQ's clients
do the same.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from aerobee.broker.v1 import client_pb2, message_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.cluster.encoded_send import SEND, EncodedSend
from aerobee_client.consuming.failure_details import (
    DESCRIPTION_BYTES,
    REASON_BYTES,
    this_consumer,
)
from aerobee_client.message import ReceivedMessage
from aerobee_client.observing.hooks import notify
from aerobee_client.observing.interceptors import Interceptor
from aerobee_wire import properties as names
from aerobee_wire import rpcs
from aerobee_wire.compression import compression_bits
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import retry_topic

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 5.0
CONSUME_TIMEOUT = "ConsumeTimeout"  # the reason of a rejection
MAX_ENTRIES = 128
# The maximum bytes that the broker stores of each (see Failure in the .proto files).
# The broker answers with these codes if it cannot read the record of an entry.
_RECORD_GONE = frozenset({Code.SYSTEM_ERROR, Code.MESSAGE_CORRUPTED})
# Left free in the properties of a copy, for those that the broker adds to a dead letter.
RESERVED_BYTES = 1_024
FIRST_RETRY_LEVEL = 3
LAST_LEVEL = 18
# Properties that belong to one delivery, or would delay or route the message again.
_DROPPED = (
    names.DELAY,
    names.TIMER_DELAY_SEC,
    names.TIMER_DELAY_MS,
    names.TIMER_DELIVER_MS,
    names.TIMER_OUT_MS,
    names.REAL_TOPIC,
    names.REAL_QUEUE_ID,
    names.MAX_RECONSUME_TIMES,
)


@dataclass(frozen=True, slots=True)
class Rejection:
    """The reason and the retry options of a message that is sent back.

    `delay_level` is 0 for the retry policy of the group, 1 to 18 for this level, or negative to
    dead-letter the message at once. If `delay_ms` is not None, it replaces the level. If `counted`
    is false, the message keeps its reconsume times.
    """

    reason: str
    description: str = ""
    delay_level: int = 0
    delay_ms: int | None = None
    counted: bool = True
    # Failures of the message that a consumer counted while it retried in place; 0 if it did not.
    reconsume_times: int = 0
    # The exception of the listener, or the TypeError for its result.
    error: BaseException | None = field(default=None, compare=False)
    # True if the listener asked for this with a result, ReconsumeLater or DeadLetter.
    is_verdict: bool = field(default=False, compare=False)
    # The exceptions that caused `error`, and its stack trace.
    cause: str = field(default="", compare=False)
    stack_trace: str = field(default="", compare=False)

    @property
    def needs_send_back_delay(self) -> bool:
        """True if the request needs a broker with the capability SEND_BACK_DELAY."""
        return self.delay_ms is not None or not self.counted


class Outcome(Enum):
    """The outcome of a rejected message."""

    KEPT = 1  # the broker did not accept it: the consumer must retry the message itself
    REDELIVERED = 2  # the broker has stored it, and redelivers it to the group
    DEAD = 3  # it is in the dead-letter topic or, with BROADCASTING, skipped


class Rejections(ABC):
    """Handles the messages that a listener rejects."""

    @abstractmethod
    def send(self, message: ReceivedMessage, rejection: Rejection) -> asyncio.Future[Outcome]:
        """Handle a message that the listener rejected, for example send it back to its broker."""

    @abstractmethod
    async def drain(self) -> None:
        """Wait until all messages are handled."""


class ObservedRejections(Rejections):
    """Notifies interceptors about the messages that `rejections` sends back."""

    def __init__(
        self, rejections: Rejections, consumer_group: str, interceptors: Sequence[Interceptor]
    ) -> None:
        self._rejections = rejections
        self._consumer_group = consumer_group
        self._interceptors = interceptors

    def send(self, message: ReceivedMessage, rejection: Rejection) -> asyncio.Future[Outcome]:
        done = self._rejections.send(message, rejection)
        began_s = asyncio.get_running_loop().time()
        done.add_done_callback(partial(self._notify, message, began_s))
        return done

    async def drain(self) -> None:
        await self._rejections.drain()

    def _notify(
        self, message: ReceivedMessage, began_s: float, done: asyncio.Future[Outcome]
    ) -> None:
        error = None
        if done.cancelled() or done.result() is Outcome.KEPT:
            error = MqError(Code.SYSTEM_ERROR, "the broker did not take the message back")
        elapsed_s = asyncio.get_running_loop().time() - began_s
        event = (self._consumer_group, "send_back", [message], elapsed_s, error)
        notify(self._interceptors, "after_settle", *event)


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    message: ReceivedMessage
    rejection: Rejection
    done: asyncio.Future[Outcome]


class SendBack(Rejections):
    def __init__(
        self, instance: ClientInstance, consumer_group: str, max_reconsume_times: int | None
    ) -> None:
        self._instance = instance
        self._consumer_group = consumer_group
        self._max_reconsume_times = max_reconsume_times
        self._waiting: dict[str, deque[_Entry]] = {}  # by broker name
        self._senders: dict[str, asyncio.Task[None]] = {}
        self._draining = False

    def send(self, message: ReceivedMessage, rejection: Rejection) -> asyncio.Future[Outcome]:
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        broker_name = message.broker_name
        self._waiting.setdefault(broker_name, deque()).append(_Entry(message, rejection, done))
        if broker_name not in self._senders:
            self._senders[broker_name] = asyncio.create_task(self._send_all(broker_name))
        return done

    async def drain(self) -> None:
        """Wait until no message is pending.

        From now on, if a broker fails once, all pending messages of that broker are given up. They
        are redelivered to the next owner of their queues.
        """
        self._draining = True
        while self._senders:
            await asyncio.gather(*self._senders.values())

    def _to_proto(self, entry: _Entry) -> message_pb2.SendBackEntry:
        message, rejection = entry.message, entry.rejection
        return message_pb2.SendBackEntry(
            physical_offset=message.physical_offset,
            origin_topic=message.stored_topic,
            origin_message_id=message.origin_message_id,
            delay_level=rejection.delay_level,
            delay_ms=rejection.delay_ms,
            uncounted=not rejection.counted,
            max_reconsume_times=self._max_reconsume_times,
            reconsume_times=rejection.reconsume_times,
            failure=message_pb2.Failure(
                reason=names.cut(rejection.reason, REASON_BYTES),
                description=names.cut(rejection.description, DESCRIPTION_BYTES),
                cause=rejection.cause,
                stack_trace=rejection.stack_trace,
                consumer=this_consumer(),
            ),
        )

    async def _send_all(self, broker_name: str) -> None:
        waiting = self._waiting[broker_name]
        while waiting:
            batch = [waiting.popleft() for _ in range(min(len(waiting), MAX_ENTRIES))]
            try:
                outcomes = await self._send(broker_name, batch)
            except Exception as error:  # for any failure: these messages are not sent back
                log.warning(
                    "%d messages not sent back to broker %s: %r", len(batch), broker_name, error
                )
                if self._draining:
                    batch += waiting
                    waiting.clear()
                outcomes = [Outcome.KEPT] * len(batch)
            for entry, outcome in zip(batch, outcomes, strict=True):
                if not entry.done.done():
                    entry.done.set_result(outcome)
        # No await since the check that nothing waits: the next `send` starts a new task.
        del self._senders[broker_name]

    async def _send(self, broker_name: str, batch: Sequence[_Entry]) -> list[Outcome]:
        """Send messages back to their broker, to be delivered again. Return one outcome for each.

        Older brokers know neither a delay of its own nor a failure that does not count as an
        attempt. Messages that need one of them are not sent to such a broker; this consumer retries
        them itself. Raises MqError.
        """
        if any(entry.rejection.needs_send_back_delay for entry in batch) and not (
            self._instance.has_capability(broker_name, client_pb2.SEND_BACK_DELAY)
        ):
            return await self._send_plain(broker_name, batch)
        return await self._send_entries(broker_name, batch)

    async def _send_plain(self, broker_name: str, batch: Sequence[_Entry]) -> list[Outcome]:
        plain = [entry for entry in batch if not entry.rejection.needs_send_back_delay]
        log.warning(
            "broker %s is of a version that knows no delay of a send-back: %d messages are "
            "retried by this member; update the broker",
            broker_name,
            len(batch) - len(plain),
        )
        outcomes = iter(await self._send_entries(broker_name, plain) if plain else ())
        return [
            Outcome.KEPT if entry.rejection.needs_send_back_delay else next(outcomes)
            for entry in batch
        ]

    async def _send_entries(self, broker_name: str, batch: Sequence[_Entry]) -> list[Outcome]:
        request = message_pb2.SendBackRequest(
            consumer_group=self._consumer_group,
            entries=map(self._to_proto, batch),
            client_id=self._instance.client_id,
        )
        address = self._instance.routes.address_of(broker_name)
        response = await self._instance.transport.call(
            address, rpcs.SEND_BACK, request, timeout_s=CALL_TIMEOUT_S
        )
        outcomes = []
        for entry, result in zip(batch, response.results, strict=True):
            if not result.code:
                outcomes.append(Outcome.DEAD if result.dead_lettered else Outcome.REDELIVERED)
                continue
            log.warning(
                "message at physical offset %d not sent back to broker %s: %s",
                entry.message.physical_offset,
                broker_name,
                result.message,
            )
            outcomes.append(
                await self._send_copy(address, entry)
                if result.code in _RECORD_GONE
                else Outcome.KEPT
            )
        return outcomes

    async def _send_copy(self, address: str, entry: _Entry) -> Outcome:
        """Send the client's copy of a message to the retry topic of the group.

        After the last attempt, the broker dead-letters it. The response does not say so. The
        outcome is then REDELIVERED, unless the limit of attempts is one that this member sets.
        """
        request = message_pb2.SendRequest(messages=[self._copy(entry)])
        try:
            await self._instance.transport.call(
                address, SEND, EncodedSend(request), timeout_s=CALL_TIMEOUT_S
            )
        except MqError as error:
            log.warning("%r not sent to its retry topic: %s", entry.message, error)
            return Outcome.KEPT
        (copy,) = request.messages
        limit = copy.properties.get(names.MAX_RECONSUME_TIMES)
        died = limit is not None and copy.reconsume_times > int(limit)
        return Outcome.DEAD if died else Outcome.REDELIVERED

    @staticmethod
    def _add_details(properties: dict[str, str], rejection: Rejection) -> None:
        """Add the cause and the stack trace of a failure if there is room."""
        room = names.MAX_BYTES - RESERVED_BYTES - len(names.encode(properties))
        for name, text in (
            (names.DLQ_CAUSE, rejection.cause),
            (names.DLQ_STACK_TRACE, rejection.stack_trace),
        ):
            value = names.value_of(text, room)
            room -= len(name) + 2 + len(value.encode())
            if room >= 0:
                properties[name] = value

    def _copy(self, entry: _Entry) -> message_pb2.Message:
        message, rejection = entry.message, entry.rejection
        kept = {name: text for name, text in message.properties.items() if name not in _DROPPED}
        kept.setdefault(names.RETRY_TOPIC, message.stored_topic)
        kept[names.ORIGIN_MESSAGE_ID] = message.origin_message_id
        kept[names.DLQ_REASON] = names.value_of(rejection.reason, REASON_BYTES)
        description = names.value_of(rejection.description, DESCRIPTION_BYTES)
        kept[names.DLQ_REASON_DESCRIPTION] = description
        kept[names.DLQ_CONSUMER] = this_consumer()
        self._add_details(kept, rejection)
        limit = self._max_reconsume_times
        if rejection.delay_level < 0:
            limit = 0  # reached already: the broker dead-letters the message
        if limit is not None:
            kept[names.MAX_RECONSUME_TIMES] = str(limit)
        if rejection.delay_ms is not None:
            kept[names.TIMER_DELAY_MS] = str(rejection.delay_ms)
        else:
            level = rejection.delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
            kept[names.DELAY] = str(min(max(level, 0), LAST_LEVEL))
        return message_pb2.Message(
            topic=retry_topic(self._consumer_group),
            body=message.stored_body,
            properties={name: text for name, text in kept.items() if text},
            flag=message.flag,
            sys_flag=compression_bits(message.sys_flag),
            born_timestamp_ms=message.born_timestamp_ms,
            born_host=message.born_host,
            reconsume_times=rejection.reconsume_times
            or message.reconsume_times + rejection.counted,
        )
