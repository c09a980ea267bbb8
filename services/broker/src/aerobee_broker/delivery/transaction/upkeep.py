"""Maintains transactions at startup and every second.

A start restores the open transactions from the log, and completes commits that a crash has left
incomplete. Every second, the numbers of checks are written to the log, and old half messages are
copied to the end of the log. Then the offsets of CID_RMQ_SYS_TRANS are updated, at which the next
start begins to read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import structlog

from aerobee_broker.commit.durable_log import DurableLog
from aerobee_broker.delivery.transaction import half_messages
from aerobee_broker.delivery.transaction.half_messages import GROUP, QUEUE_ID
from aerobee_broker.delivery.transaction.open_transactions import (
    Event,
    OpenTransactions,
    State,
    Transaction,
)
from aerobee_broker.delivery.transaction.recovery import find_open, find_torn_commits
from aerobee_broker.delivery.transaction.transactions import BATCH_BYTES, Transactions, log_fields
from aerobee_broker.errors import TransientReadError
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_chassis.clock import Clock
from aerobee_chassis.lifecycle import Component
from aerobee_wire import topics as names
from aerobee_wire.status import MqError

# A half message this far below the end of the log is copied to the end, so that a start reads less.
COPY_BEHIND_BYTES = 256 * 1024 * 1024
# The distance must also be this multiple of the bytes of all open half messages, so that copies do
# not trigger more copies.
COPY_BEHIND_TIMES = 4
CHECKS_A_RECORD = 10_000  # after a disk failure, one record may not fit all checks
_TOPICS = (names.HALF_TOPIC, names.OP_HALF_TOPIC)


@dataclass(slots=True, kw_only=True, eq=False)
class TransactionUpkeep(Component):
    transactions: Transactions
    log: DurableLog
    table: OpenTransactions
    offsets: ConsumerOffsets
    clock: Clock
    _torn: list[Transaction] = field(default_factory=list, init=False)  # TORN or MENDING

    # ---- startup and shutdown ----

    def restore_slices(self) -> Iterator[None]:
        """Restore the open transactions from the log, yielding between slices of the work."""
        destinations = set()
        for found in find_open(self.log.store, self.offsets):
            if found is None:
                yield
                continue
            self.transactions.open(found.half, found.appended, found.op_floor)
            if found.destination is not None:
                topic, queue_id = found.destination
                config = self.transactions.topics.table.get(topic)
                destinations.add(found.destination)
                if config is not None:  # the topic may have fewer queues since the half message
                    destinations.add((topic, config.readable_queue(queue_id)))
        if len(self.table):
            structlog.get_logger().info("half_messages_open", count=len(self.table))
            for transaction in find_torn_commits(self.log.store, destinations, self.table.get):
                transaction.advance(Event.FIND_TORN)
                self._torn.append(transaction)
            self._mend_torn()

    async def stop(self) -> None:
        """Update the offsets from which the next start reads, after the last flush."""
        await asyncio.sleep(0)  # the last flush is processed in the event loop's next iteration
        self._set_offsets()

    # ---- every second ----

    async def round(self) -> None:
        try:
            self._mend_torn()
            self._write_checks()
            while behind := self._behind():
                await self._copy_forward(behind)
        except MqError as error:
            structlog.get_logger().error("transactions_not_kept", reason=error.message)
        self._set_offsets()

    def _mend_torn(self) -> None:
        """Append the missing op record of commits that a crash has left incomplete.

        If this fails, logs an error, and the next call of `round` retries. Until then, these
        transactions cannot be ended, because a second commit would deliver the message twice.
        """
        self._torn = [each for each in self._torn if each.state is not State.COMMITTED]
        torn = [each for each in self._torn if each.state is State.TORN]
        if not torn:
            return
        for transaction in torn:
            transaction.advance(Event.MEND)
        try:
            self.transactions.append_end(torn)
        except MqError as error:
            structlog.get_logger().error("torn_commit_not_mended", reason=error.message)
        else:
            for transaction in torn:
                structlog.get_logger().warning("torn_commit_mended", **log_fields(transaction))

    def _write_checks(self) -> None:
        checks = list(self.table.unwritten_checks.items())
        if checks:
            now = self.clock.now_ms()
            starts = range(0, len(checks), CHECKS_A_RECORD)
            parts = (dict(checks[start : start + CHECKS_A_RECORD]) for start in starts)
            records = [half_messages.checked_record(part, now) for part in parts]
            self.log.store.append(records, reserve=True)
            self.table.checks_written()
            self.log.schedule_flush()

    # ---- half messages far behind ----

    def needed_from(self) -> int | None:
        """Return the physical offset of the first half message whose transaction has not ended.

        Returns None if all transactions have ended.
        """
        first = self.table.first()
        return first.physical_offset if first else None

    def _behind(self) -> list[Transaction]:
        """Return a batch of transactions whose half messages must be copied to the end of the log.

        Their half messages are in files that retention wants to delete, or are so old that the next
        start would be slow.
        """
        lag = max(COPY_BEHIND_BYTES, COPY_BEHIND_TIMES * self.table.bytes)
        limit = max(self.log.store.cleaning.wanted_below, self.log.store.end_offset - lag)
        return self.table.below(limit, BATCH_BYTES)

    async def _copy_forward(self, behind: Sequence[Transaction]) -> None:
        copies, copied, hopeless = [], [], []
        for transaction in behind:
            # A copy would be stored after the deletion of its topic, so it could be committed.
            if self.transactions.is_of_deleted(transaction):
                hopeless.append(transaction)
                continue
            try:
                record = self.transactions.record(transaction)
            except TransientReadError:
                raise
            except MqError:
                hopeless.append(transaction)
            else:
                copies.append(half_messages.copy_forward(record, transaction.half))
                copied.append(transaction)
        if hopeless:
            await self.transactions.give_up(hopeless)
        op_floor = self.log.store.max_offset(names.OP_HALF_TOPIC, QUEUE_ID)
        places = await self.log.put_accepted(copies)
        for transaction, place in zip(copied, places, strict=True):
            self.table.copied_forward(transaction, place, op_floor)

    def _set_offsets(self) -> None:
        """Set the offsets from which the next start must read."""
        first = self.table.first()
        half, op = (self.log.store.max_offset(topic, QUEUE_ID) for topic in _TOPICS)
        if first is not None:
            half, op = min(half, first.queue_offset), first.op_floor
        for topic, offset in zip(_TOPICS, (half, op), strict=True):
            self.offsets.commit(GROUP, topic, QUEUE_ID, offset)
