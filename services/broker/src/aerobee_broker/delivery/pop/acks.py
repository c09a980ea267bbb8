"""Acknowledges leased messages, and writes settled messages to the lease journal.

A message is settled when it is acknowledged or dead-lettered. Each request writes one record to the
journal, and waits for the disk once. The request changes the leases in memory before it waits, so a
second acknowledgement of a message finds it settled. If the log does not accept the record, the
change in memory is rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from aerobee_broker.delivery.pop.expiry import LeaseDeadlines, Wakes
from aerobee_broker.delivery.pop.in_flight import InFlightMessage, InFlightQueue
from aerobee_broker.delivery.pop.lease_journal import LeaseJournal
from aerobee_broker.delivery.pop.lease_journal_format import (
    SettledQueue,
    SettleRecord,
    settled_runs,
)
from aerobee_broker.delivery.pop.lease_table import (
    LeasedMessage,
    LeaseSet,
    LeaseTable,
    invalid_lease,
)
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.store.messages import NewMessage
from aerobee_chassis.clock import Clock
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_broker.traces import BrokerTraces


class AckFailure(NamedTuple):
    """A lease of a request that was not acknowledged, and the error."""

    set_index: int  # of the lease set in the request
    offset_index: int  # in `queue_offsets` of the set
    error: MqError


@dataclass(slots=True)
class _QueueSettlement:
    queue: InFlightQueue
    ended: list[InFlightMessage]  # messages whose leases the settlement ends
    settled: list[InFlightMessage]
    resets: int  # the queue's `resets` at the time of the settlement

    @property
    def is_void(self) -> bool:
        """Return whether the settlement must not be rolled back or committed any more.

        This is the case if the group was reset, or the group or the topic was deleted, meanwhile.
        """
        return self.queue.resets != self.resets

    def journal_record(self) -> SettledQueue:
        offsets = [message.offset for message in self.settled]
        in_flight = self.queue.in_flight
        acked = [message.offset for message in self.ended if message.offset in in_flight]
        return SettledQueue(*self.queue.key, settled_runs(offsets), acked)


class Settlement:
    """The messages that one record of the lease journal settles, grouped by queue."""

    def __init__(self) -> None:
        self._queues: dict[InFlightQueue, _QueueSettlement] = {}
        self._dead: list[tuple[str, str, int, int]] = []

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(
        self, queue: InFlightQueue, ended: list[InFlightMessage], settled: list[InFlightMessage]
    ) -> None:
        """Add messages whose leases have ended, and the messages that are settled as a result."""
        found = self._queues.get(queue)
        if found is None:
            self._queues[queue] = _QueueSettlement(queue, ended, settled, queue.resets)
        else:
            found.ended += ended
            found.settled += settled

    def add_dead_letter(self, queue: InFlightQueue, offset: int) -> None:
        """Record that one of the messages became a dead letter."""
        self._dead.append((*queue.key, offset))

    def ended(self) -> Iterator[tuple[tuple[str, str, int], int]]:
        """Yield the queue and the offset of each message whose lease has ended."""
        for settlement in self._queues.values():
            for message in settlement.ended:
                yield settlement.queue.key, message.offset

    def journal_record(self) -> SettleRecord:
        queues = [settlement.journal_record() for settlement in self._queues.values()]
        return SettleRecord(queues, self._dead)

    def valid(self) -> list[_QueueSettlement]:
        return [settlement for settlement in self._queues.values() if not settlement.is_void]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgements:
    table: LeaseTable
    journal: LeaseJournal
    deadlines: LeaseDeadlines
    polls: Wakes
    offsets: ConsumerOffsets
    clock: Clock
    traces: BrokerTraces | None = None

    async def ack(self, lease_sets: Sequence[LeaseSet]) -> list[AckFailure]:
        """Acknowledge leases, and return a failure for each lease that could not be acknowledged.

        The failures are in the order of the leases. Raises the errors of LeaseJournal.write.
        """
        begin_ns = self.traces.now_ns() if self.traces is not None else 0
        settlement = Settlement()
        failures = [
            AckFailure(set_index, index, invalid_lease(lease_set, lease_set.queue_offsets[index]))
            for set_index, lease_set in enumerate(lease_sets)
            for index in self._acknowledge(lease_set, settlement)
        ]
        if settlement:
            await self.settle(settlement)
            if self.traces is not None:
                self.traces.settled(settlement.ended(), begin_ns)
        elif len(failures) < sum(len(lease_set.queue_offsets) for lease_set in lease_sets):
            # All valid acknowledgements are repeated, and the first ones may not be durable yet.
            await self.journal.flush()
        return failures

    def _acknowledge(self, lease_set: LeaseSet, settlement: Settlement) -> Sequence[int]:
        """Acknowledge the leases of a set, and add them to the settlement.

        Returns the indices of the queue offsets whose lease is not valid.
        """
        consumer_group, topic, queue_id, lease_id, expires_ms, offsets = lease_set
        queue = self.table.find(consumer_group, topic, queue_id)
        if queue is None:
            return range(len(offsets))
        now_ms = self.clock.monotonic_ms()
        ended, settled, invalid = queue.acknowledge(offsets, lease_id, now_ms)
        if ended:
            settlement.add(queue, ended, settled)
        # After expiry, a repeated acknowledgement fails.
        if invalid and expires_ms > self.clock.now_ms():
            return [at for at in invalid if not queue.is_acknowledged(offsets[at], lease_id)]
        return invalid

    async def settle(self, settlement: Settlement, dead_letters: Sequence[NewMessage] = ()) -> None:
        """Store dead letters, write the settlement to the journal, and commit the groups' offsets.

        The caller has already changed the leases in memory. Returns when the dead letters and the
        settlement are durable. If the log rejects them, or loses them after this call has ended,
        the change in memory is rolled back. Otherwise a dead letter that was lost would also be
        settled. Raises the errors of LeaseJournal.write.
        """

        def roll_back() -> None:
            for settled in settlement.valid():
                queue = settled.queue
                queue.roll_back_settlement(settled.ended, settled.settled)
                for message in settled.ended:
                    self.deadlines.watch(LeasedMessage(queue, message))
                self.offsets.commit(*queue.key, queue.committed_offset)
            self.table.touch()

        try:
            record = settlement.journal_record()
            await self.journal.write([record], roll_back, dead_letters, even_later=True)
        finally:
            for settled in settlement.valid():
                queue = settled.queue
                self.offsets.commit(*queue.key, queue.committed_offset)
                # Wake a pop, because the next messages of a message group can be delivered, or the
                # queue accepts new leases again.
                if queue.fifo or queue.was_full(len(settled.settled)):
                    self.polls.wake_pop(*queue.key)
