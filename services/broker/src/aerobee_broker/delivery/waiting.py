"""Lists what waits in the broker: leases, open transactions, and delayed messages.

The lists are for operators. Messages are read in slices, so that other work runs meanwhile.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from aerobee_broker.delivery.delay.level_delivery import LevelDelivery
from aerobee_broker.delivery.delay.levels import destination_in
from aerobee_broker.delivery.delay.timer_delivery import TimerDelivery
from aerobee_broker.delivery.pop.in_flight import LEASE_IDS_PER_MS, InFlightMessage, InFlightQueue
from aerobee_broker.delivery.pop.lease_space import LeaseSpaces
from aerobee_broker.delivery.pop.selector import stored_record
from aerobee_broker.delivery.transaction.transactions import Transactions
from aerobee_broker.errors import InvalidParameter
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.store.message_store import MessageStore
from aerobee_wire.record import Record, decode
from aerobee_wire.status import MqError

MOST_ROWS = 1_000
MOST_EXAMINED = 10_000  # delayed messages that one list reads to find those of a topic
SLICE = 50  # records read before other work runs: a few milliseconds

R = TypeVar("R")


class HeldLease(NamedTuple):
    """A message on lease. Times are in ms since the epoch."""

    topic: str
    queue_id: int
    queue_offset: int
    message_id: str  # empty if the record cannot be read
    lease_id: int
    attempt: int
    message_group: str  # empty for none
    client_id: str  # the client that received the message; empty if unknown
    since_timestamp_ms: int  # when the message was received
    expires_timestamp_ms: int


class OpenTransaction(NamedTuple):
    """A transaction that has not ended."""

    topic: str
    producer_group: str
    transaction_id: str
    queue_offset: int  # of the half message
    stored_timestamp_ms: int
    checks: int  # times that a producer was asked


class DelayedMessage(NamedTuple):
    """A message that waits for its delivery time."""

    topic: str  # the destination; empty if the record cannot be read
    message_id: str
    due_timestamp_ms: int
    delay: str  # the name of its delay queue, or "timers" for a delivery time of its own
    stored_timestamp_ms: int
    body_size: int


@dataclass(frozen=True, slots=True)
class Rows(Generic[R]):
    """The first rows, the number of all, and how many were examined to find the rows."""

    rows: Sequence[R]
    total: int
    examined: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    store: MessageStore
    groups: GroupRegistry
    leases: LeaseSpaces
    transactions: Transactions
    levels: LevelDelivery
    timers: TimerDelivery

    async def held(
        self,
        consumer_group: str,
        *,
        topic: str = "",
        client_id: str = "",
        message_id: str = "",
        limit: int = 0,
    ) -> Rows[HeldLease]:
        """Return the leases of a group on message queues, the oldest first.

        Args:
            consumer_group: The group.
            topic: Only leases on messages of this topic, if it is given.
            client_id: Only leases of this client, if it is given.
            message_id: Only leases on messages with this id, if it is given. Then the message of
                each lease is read.
            limit: The highest number of rows; 0 for 1,000.

        Raises:
            MqError: GroupNotExist, InvalidParameter.
        """
        self.groups.get(consumer_group)
        found = [
            (message.lease_id, queue, message)
            for queue in self.leases.queues.table.queues()
            if queue.consumer_group == consumer_group and topic in ("", queue.topic)
            for message in queue
            if message.is_leased and client_id in ("", message.client_id)
        ]
        most = _limit(limit)
        examined = len(found) if message_id else most
        oldest = heapq.nsmallest(examined, found, key=lambda each: each[0])
        rows = []
        for number, (_, queue, message) in enumerate(oldest, 1):
            row = self._held(queue, message)
            if message_id in ("", row.message_id):
                rows.append(row)
            if number % SLICE == 0:
                await asyncio.sleep(0)
        return Rows(rows[:most], len(rows) if message_id else len(found), len(found))

    def leased_lite_messages(self, consumer_group: str) -> int:
        """Return the number of messages of lite topics that a group has on lease."""
        return self.leases.lite.counts(consumer_group).leased

    def _held(self, queue: InFlightQueue, message: InFlightMessage) -> HeldLease:
        try:
            raw = stored_record(self.store, queue, message.offset)
        except MqError:
            raw = b""
        return HeldLease(
            queue.topic,
            queue.queue_id,
            message.offset,
            _id_of(decode(raw, check_crc=False)) if raw else "",
            message.lease_id,
            message.attempt,
            message.message_group or "",
            message.client_id,
            message.lease_id // LEASE_IDS_PER_MS,
            message.expires_ms,
        )

    def open_transactions(
        self,
        *,
        topic: str = "",
        producer_group: str = "",
        transaction_id: str = "",
        limit: int = 0,
    ) -> Rows[OpenTransaction]:
        """Return the open transactions, the oldest first. Raises InvalidParameter.

        Args:
            topic: Only transactions with a message for this topic, if it is given.
            producer_group: Only transactions of this group, if it is given.
            transaction_id: Only the transaction with this id, if it is given.
            limit: The highest number of rows; 0 for 1,000.
        """
        found = [
            transaction.half
            for name in self.transactions.table.names()
            if (transaction := self.transactions.get(name)) is not None
            and topic in ("", transaction.half.topic)
            and producer_group in ("", transaction.half.producer_group)
            and transaction_id in ("", transaction.half.transaction_id)
        ]
        oldest = heapq.nsmallest(_limit(limit), found, key=lambda half: half.stored_ms)
        rows = [
            OpenTransaction(
                half.topic,
                half.producer_group,
                half.transaction_id,
                half.name,
                half.stored_ms,
                half.checks,
            )
            for half in oldest
        ]
        return Rows(rows, len(found), len(found))

    async def delayed(self, *, topic: str = "", limit: int = 0) -> Rows[DelayedMessage]:
        """Return the messages that wait for a delivery time, the next ones first.

        With a topic, reads the next `MOST_EXAMINED` messages to find those of the topic.

        Args:
            topic: Only messages for this topic, if it is given.
            limit: The highest number of rows; 0 for 1,000.

        Raises:
            InvalidParameter: The limit is out of range.
        """
        most = _limit(limit)
        examine = MOST_EXAMINED if topic else most
        total = self.timers.waiting + sum(self.levels.undelivered().values())
        due = heapq.merge(
            ((due_ms, "timers", unit) for due_ms, unit in self.timers.first(examine)),
            *self.levels.first(examine),
        )
        rows: list[DelayedMessage] = []
        examined = 0
        for due_ms, delay, (physical_offset, size, _) in due:
            if len(rows) == most or examined == examine:
                break
            examined += 1
            row = self._delayed(due_ms, delay, physical_offset, size)
            if topic in ("", row.topic):
                rows.append(row)
            if examined % SLICE == 0:
                await asyncio.sleep(0)
        return Rows(rows, total, examined)

    def _delayed(self, due_ms: int, delay: str, physical_offset: int, size: int) -> DelayedMessage:
        try:
            record = self.store.get(physical_offset, size)
        except MqError:
            return DelayedMessage("", "", due_ms, delay, 0, 0)
        destination = destination_in(record.properties)
        return DelayedMessage(
            destination[0] if destination else "",
            _id_of(record),
            due_ms,
            delay,
            record.store_timestamp_ms,
            len(record.body),
        )


def _id_of(record: Record) -> str:
    return record.unique_message_id or record.offset_message_id


def _limit(limit: int) -> int:
    if not 0 <= limit <= MOST_ROWS:
        raise InvalidParameter(
            f"limit {limit} is out of range: use 1 to {MOST_ROWS}, or 0 for {MOST_ROWS}",
            about="limit",
        )
    return limit or MOST_ROWS
