"""Giving failed messages back to their broker, several in one request when several are waiting.

The broker delays each and puts it into the group's retry topic, or into the dead-letter topic once
its attempts are used up. It makes them from its own record; when that is gone (expired, damaged),
the message that is here is sent to the retry topic instead, as RocketMQ's clients do.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from aerobee.broker.v1 import message_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.cluster.encoded_send import SEND, EncodedSend
from aerobee_client.message import ReceivedMessage
from aerobee_wire import properties as names
from aerobee_wire import rpcs
from aerobee_wire.record import COMPRESSED
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import retry_topic

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 5.0
MAX_ENTRIES = 128
# The broker keeps as much (contract: Failure).
REASON_BYTES = 256
DESCRIPTION_BYTES = 1_024
# Codes of an entry whose record the broker cannot read (any more).
_RECORD_GONE = frozenset({Code.SYSTEM_ERROR, Code.MESSAGE_CORRUPTED})
FIRST_RETRY_LEVEL = 3
LAST_LEVEL = 18
_COMPRESSION = COMPRESSED | 0x700  # of the sys flag: whether, and how
# Of one delivery, or what would file the message elsewhere once more.
_NOT_AGAIN = (
    names.DELAY,
    names.TIMER_DELAY_SEC,
    names.TIMER_DELAY_MS,
    names.TIMER_DELIVER_MS,
    names.REAL_TOPIC,
    names.REAL_QUEUE_ID,
    names.MAX_RECONSUME_TIMES,
)
_SEPARATORS = str.maketrans({names.NAME_END: " ", names.VALUE_END: " "})


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a message goes back. `delay_level`: 0 as the group's policy says, 1 to 18 that one, below
    0 to the dead-letter topic now."""

    reason: str
    description: str = ""
    delay_level: int = 0


def cut(text: str, limit_bytes: int) -> str:
    """`text`, at most `limit_bytes` long in UTF-8."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= limit_bytes:
        return encoded.decode()
    return encoded[:limit_bytes].decode("utf-8", "ignore")


@dataclass(frozen=True, slots=True, eq=False)
class _Given:
    message: ReceivedMessage
    rejection: Rejection
    done: asyncio.Future[bool]


class SendBack:
    def __init__(
        self, instance: ClientInstance, consumer_group: str, max_reconsume_times: int | None
    ) -> None:
        self._instance = instance
        self._consumer_group = consumer_group
        self._max_reconsume_times = max_reconsume_times
        self._waiting: dict[str, deque[_Given]] = {}
        self._senders: dict[str, asyncio.Task[None]] = {}
        self._draining = False

    def give(self, message: ReceivedMessage, rejection: Rejection) -> asyncio.Future[bool]:
        """Starts it. True: the broker has stored the retry or dead letter; False: it has not."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        broker_name = message.broker_name
        self._waiting.setdefault(broker_name, deque()).append(_Given(message, rejection, done))
        if broker_name not in self._senders:
            self._senders[broker_name] = asyncio.create_task(self._send_all(broker_name))
        return done

    async def drained(self) -> None:
        """Returns once nothing is waiting. A broker that takes none is not asked again from now on:
        its messages come again anyhow."""
        self._draining = True
        while self._senders:
            await asyncio.gather(*self._senders.values())

    def _entry(self, given: _Given) -> message_pb2.SendBackEntry:
        message, rejection = given.message, given.rejection
        return message_pb2.SendBackEntry(
            physical_offset=message.physical_offset,
            origin_topic=message.stored_topic,
            origin_message_id=message.origin_message_id,
            delay_level=rejection.delay_level,
            max_reconsume_times=self._max_reconsume_times,
            failure=message_pb2.Failure(
                reason=cut(rejection.reason, REASON_BYTES),
                description=cut(rejection.description, DESCRIPTION_BYTES),
            ),
        )

    async def _send_all(self, broker_name: str) -> None:
        waiting = self._waiting[broker_name]
        while waiting:
            batch = [waiting.popleft() for _ in range(min(len(waiting), MAX_ENTRIES))]
            try:
                accepted = await self._send(broker_name, batch)
            except Exception as error:  # whatever it is, these messages are still ours
                log.warning(
                    "%d messages not sent back to broker %s: %r", len(batch), broker_name, error
                )
                accepted = [False] * len(batch)
                if self._draining:
                    batch += waiting
                    accepted += [False] * len(waiting)
                    waiting.clear()
            for one, ok in zip(batch, accepted, strict=True):
                if not one.done.done():
                    one.done.set_result(ok)
        # At once, with no await since the last look: what is given from now on starts a new task.
        del self._senders[broker_name]

    async def _send(self, broker_name: str, batch: Sequence[_Given]) -> list[bool]:
        request = message_pb2.SendBackRequest(
            consumer_group=self._consumer_group,
            entries=map(self._entry, batch),
            client_id=self._instance.client_id,
        )
        address = self._instance.routes.address_of(broker_name)
        response = await self._instance.transport.call(
            address, rpcs.SEND_BACK, request, timeout_s=CALL_TIMEOUT_S
        )
        accepted = [not result.code for result in response.results]
        for index, (given, result) in enumerate(zip(batch, response.results, strict=True)):
            if not result.code:
                continue
            log.warning(
                "message at physical offset %d not sent back to broker %s: %s",
                given.message.physical_offset,
                broker_name,
                result.message,
            )
            if result.code in _RECORD_GONE:
                accepted[index] = await self._send_anew(address, given)
        return accepted

    async def _send_anew(self, address: str, given: _Given) -> bool:
        """A message without a record, to the group's retry topic. The broker makes a dead letter of
        it when it was consumed too often."""
        request = message_pb2.SendRequest(messages=[self._anew(given)])
        try:
            await self._instance.transport.call(
                address, SEND, EncodedSend(request), timeout_s=CALL_TIMEOUT_S
            )
        except MqError as error:
            log.warning("%r not sent to its retry topic: %s", given.message, error)
            return False
        return True

    def _anew(self, given: _Given) -> message_pb2.Message:
        message, rejection = given.message, given.rejection
        kept = {name: text for name, text in message.properties.items() if name not in _NOT_AGAIN}
        kept.setdefault(names.RETRY_TOPIC, message.stored_topic)
        kept[names.ORIGIN_MESSAGE_ID] = message.origin_message_id
        kept[names.DLQ_REASON] = cut(rejection.reason.translate(_SEPARATORS), REASON_BYTES)
        kept[names.DLQ_REASON_DESCRIPTION] = cut(
            rejection.description.translate(_SEPARATORS), DESCRIPTION_BYTES
        )
        most = self._max_reconsume_times
        if rejection.delay_level < 0:
            most = 0  # that is once too often by now
        if most is not None:
            kept[names.MAX_RECONSUME_TIMES] = str(most)
        level = rejection.delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
        kept[names.DELAY] = str(min(max(level, 0), LAST_LEVEL))
        return message_pb2.Message(
            topic=retry_topic(self._consumer_group),
            body=message.stored_body,
            properties={name: text for name, text in kept.items() if text},
            flag=message.flag,
            sys_flag=message.sys_flag & _COMPRESSION,
            born_timestamp_ms=message.born_timestamp_ms,
            born_host=message.born_host,
            reconsume_times=message.reconsume_times + 1,
        )
