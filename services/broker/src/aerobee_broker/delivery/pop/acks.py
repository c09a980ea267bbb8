"""Acknowledgements; and settlements, which take them and dead letters into the journal.

Each request is one record of the journal and one wait for the disk. It takes effect in memory at
once, so that the second of two acknowledgements of a message finds it settled, and is rolled back
when the log does not take the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aerobee_broker.delivery.pop.expiry import LeaseDeadlines, Wakes
from aerobee_broker.delivery.pop.in_flight import InFlightQueue
from aerobee_broker.delivery.pop.in_flight_message import InFlightMessage
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


class AckFailure(NamedTuple):
    """A lease that is not settled, by its indices, and why."""

    set_index: int
    offset_index: int  # in `queue_offsets` of the set
    error: MqError


@dataclass(slots=True)
class _QueueSettlement:
    queue: InFlightQueue
    ended: list[InFlightMessage]  # their leases ended by it
    settled: list[InFlightMessage]
    resets: int  # of the queue, when it was settled

    @property
    def is_void(self) -> bool:
        """Whether the group was reset, or group or topic deleted, since."""
        return self.queue.resets != self.resets

    def journal_record(self) -> SettledQueue:
        offsets = [message.offset for message in self.settled]
        in_flight = self.queue.in_flight
        acked = [message.offset for message in self.ended if message.offset in in_flight]
        return SettledQueue(*self.queue.key, settled_runs(offsets), acked)


class Settlement:
    """The messages that one record of the journal settles, by queue."""

    def __init__(self) -> None:
        self._queues: dict[InFlightQueue, _QueueSettlement] = {}

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(
        self, queue: InFlightQueue, ended: list[InFlightMessage], settled: list[InFlightMessage]
    ) -> None:
        """Messages whose leases ended, and messages that are settled by that."""
        found = self._queues.get(queue)
        if found is None:
            self._queues[queue] = _QueueSettlement(queue, ended, settled, queue.resets)
        else:
            found.ended += ended
            found.settled += settled

    def journal_record(self) -> SettleRecord:
        return SettleRecord([settlement.journal_record() for settlement in self._queues.values()])

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

    async def ack(self, lease_sets: Sequence[LeaseSet]) -> list[AckFailure]:
        """Returns the leases that it could not acknowledge, in order. Raises like
        LeaseJournal.write."""
        settlement = Settlement()
        failures = [
            AckFailure(set_index, index, invalid_lease(lease_set, lease_set.queue_offsets[index]))
            for set_index, lease_set in enumerate(lease_sets)
            for index in self._acknowledge(lease_set, settlement)
        ]
        if settlement:
            await self.settle(settlement)
        elif len(failures) < sum(len(lease_set.queue_offsets) for lease_set in lease_sets):
            await self.journal.flush()  # repeated: the first may not be durable yet
        return failures

    def _acknowledge(self, lease_set: LeaseSet, settlement: Settlement) -> Sequence[int]:
        """Returns the indices of the offsets that it does not settle."""
        consumer_group, topic, queue_id, lease_id, expires_ms, offsets = lease_set
        queue = self.table.find(consumer_group, topic, queue_id)
        if queue is None:
            return range(len(offsets))
        now_ms = self.clock.monotonic_ms()
        ended, settled, invalid = queue.acknowledge(offsets, lease_id, now_ms)
        if ended:
            settlement.add(queue, ended, settled)
        if invalid and expires_ms > self.clock.now_ms():  # else it is no repetition
            return [at for at in invalid if not queue.is_acknowledged(offsets[at], lease_id)]
        return invalid

    async def settle(self, settlement: Settlement, dead_letters: Sequence[NewMessage] = ()) -> None:
        """Returns when the settlement, which memory already shows, and the dead letters before it
        are durable. Commits the groups' offsets. Raises like LeaseJournal.write."""

        def roll_back() -> None:
            for settled in settlement.valid():
                settled.queue.roll_back_settlement(settled.ended, settled.settled)
                for message in settled.ended:
                    self.deadlines.watch(LeasedMessage(settled.queue, message))

        try:
            await self.journal.write([settlement.journal_record()], roll_back, dead_letters)
        finally:
            for settled in settlement.valid():
                queue = settled.queue
                self.offsets.commit(*queue.key, queue.committed_offset)
                # The next messages of these message groups may go out, or of a queue with room.
                if queue.fifo or queue.was_full(len(settled.settled)):
                    self.polls.wake_pop(*queue.key)
