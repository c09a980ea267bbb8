"""Giving failed messages back to their broker, several in one request when several are waiting.

The broker delays each and puts it into the group's retry topic, or into the dead-letter topic once
its attempts are used up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass

from aerobee.broker.v1 import message_pb2

from aerobee_client import rpcs
from aerobee_client.client_instance import ClientInstance
from aerobee_client.message import ReceivedMessage

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 5.0
MAX_ENTRIES = 128
# The broker keeps as much (contract: Failure).
REASON_BYTES = 256
DESCRIPTION_BYTES = 1_024


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


class SendBack:
    def __init__(
        self, instance: ClientInstance, consumer_group: str, max_reconsume_times: int | None
    ) -> None:
        self._instance = instance
        self._consumer_group = consumer_group
        self._max_reconsume_times = max_reconsume_times
        self._waiting: dict[str, deque[tuple[message_pb2.SendBackEntry, asyncio.Future[bool]]]] = {}
        self._senders: dict[str, asyncio.Task[None]] = {}

    def give(self, message: ReceivedMessage, rejection: Rejection) -> asyncio.Future[bool]:
        """Starts it. True: the broker has stored the retry or dead letter; False: it has not."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        broker_name = message.broker_name
        self._waiting.setdefault(broker_name, deque()).append(
            (self._entry(message, rejection), done)
        )
        if broker_name not in self._senders:
            self._senders[broker_name] = asyncio.create_task(self._send_all(broker_name))
        return done

    async def drained(self) -> None:
        """Returns once nothing is waiting."""
        while self._senders:
            await asyncio.gather(*self._senders.values())

    def _entry(self, message: ReceivedMessage, rejection: Rejection) -> message_pb2.SendBackEntry:
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
                accepted = await self._send(broker_name, [entry for entry, _ in batch])
            except Exception as error:  # whatever it is, these messages are still ours
                log.warning(
                    "%d messages not sent back to broker %s: %r", len(batch), broker_name, error
                )
                accepted = [False] * len(batch)
            for (_, done), ok in zip(batch, accepted, strict=True):
                if not done.done():
                    done.set_result(ok)
        # At once, with no await since the last look: what is given from now on starts a new task.
        del self._senders[broker_name]

    async def _send(self, broker_name: str, entries: list[message_pb2.SendBackEntry]) -> list[bool]:
        request = message_pb2.SendBackRequest(
            consumer_group=self._consumer_group,
            entries=entries,
            client_id=self._instance.client_id,
        )
        address = self._instance.routes.address_of(broker_name)
        response = await self._instance.transport.call(
            address, rpcs.SEND_BACK, request, timeout_s=CALL_TIMEOUT_S
        )
        for entry, result in zip(entries, response.results, strict=True):
            if result.code:
                log.warning(
                    "message at physical offset %d not sent back to broker %s: %s",
                    entry.physical_offset,
                    broker_name,
                    result.message,
                )
        return [not result.code for result in response.results]
