"""The leases of whole groups and topics: restored at the start, void after a reset or a deletion,
counted for the gauges, and listed where message groups wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from operator import itemgetter
from typing import NamedTuple

import structlog

from aerobee_broker.delivery.pop.expiry import MAX_AT_ONCE, LeaseDeadlines, Wakes
from aerobee_broker.delivery.pop.in_flight import InFlightQueue, MessageGroupQueue
from aerobee_broker.delivery.pop.in_flight_message import LEASE_IDS_PER_MS, InFlightMessage
from aerobee_broker.delivery.pop.lease_journal import LeaseJournal
from aerobee_broker.delivery.pop.lease_journal_format import DeleteRecord, ResetRecord
from aerobee_broker.delivery.pop.lease_table import LeaseTable
from aerobee_broker.delivery.pop.selector import regroup_slices, stored_record
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.store.messages import LeasableQueues
from aerobee_chassis.clock import Clock
from aerobee_chassis.lifecycle import Component
from aerobee_wire.record import decode
from aerobee_wire.status import MqError

SLICE = 10_000  # messages that are restored in one go: some 10 ms of the loop


class LeaseCounts(NamedTuple):
    leased: int  # messages
    waiting: int  # messages in flight that are on no lease
    blocked_groups: int  # message groups in which a message waits for others on lease


class BlockedMessageGroup(NamedTuple):
    """A message group in which messages wait behind one that has failed. Times since the epoch."""

    topic: str
    queue_id: int
    message_group: str
    queue_offset: int  # of the failing message
    message_id: str  # of the same; empty: it cannot be read
    attempt: int  # deliveries of it so far
    waiting: int  # messages in flight behind it
    since_ms: int  # it was first delivered, as far as this process knows
    next_try_ms: int  # when its lease ends; 0: it waits for a receive
    client_id: str  # who received it last; empty: unknown


class BlockedMessageGroups(NamedTuple):
    """Those that wait the longest, and how many there are."""

    groups: list[BlockedMessageGroup]
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leases(Component):
    store: LeasableQueues
    table: LeaseTable
    journal: LeaseJournal
    deadlines: LeaseDeadlines
    polls: Wakes
    offsets: ConsumerOffsets
    groups: GroupRegistry
    clock: Clock

    def reset(
        self, consumer_group: str, topic: str, offsets: Mapping[int, int]
    ) -> asyncio.Future[None] | None:
        """The group continues at these offsets (queue id → queue offset): its leases there are
        void. Returns the future of LeaseJournal.write_until_durable; None: there were none.
        Raises DiskFull, StoreReadOnly; then nothing is done."""
        durable = None
        queues = [
            queue
            for queue_id in offsets
            if (queue := self.table.find(consumer_group, topic, queue_id)) is not None
        ]
        if queues:
            self.journal.check_open_to_appends()
            records = []
            for queue in queues:
                queue.reset(offsets[queue.queue_id])
                records.append(ResetRecord(*queue.key, queue.cursor))
            durable = self.journal.write_until_durable(records)
        self.polls.wake_pops(topic)
        return durable

    def check_forget(self, *, consumer_group: str = "", topic: str = "") -> None:
        """Before a group or a topic is deleted, or a group leaves a topic. Raises DiskFull,
        StoreReadOnly."""
        if self.table.keys_of(consumer_group=consumer_group, topic=topic):
            self.journal.check_open_to_appends()

    def forget(self, *, consumer_group: str = "", topic: str = "") -> asyncio.Future[None] | None:
        """A group or a topic was deleted; with both, the group has left the topic. Returns the
        future of LeaseJournal.write_until_durable; None: there were no leases."""
        durable = None
        if self.table.forget(consumer_group=consumer_group, topic=topic):
            durable = self.journal.write_until_durable([DeleteRecord(consumer_group, topic)])
        if topic:
            self.polls.wake_pops(topic)
        return durable

    def leave(self, consumer_group: str, topic: str) -> asyncio.Future[None] | None:
        """A group has left a topic: as `forget`. Raises as `check_forget`; then nothing is done."""
        self.check_forget(consumer_group=consumer_group, topic=topic)
        return self.forget(consumer_group=consumer_group, topic=topic)

    def counts(self) -> LeaseCounts:
        leased = waiting = blocked_groups = 0
        for queue in self.table.queues():
            on_lease = queue.leased_count
            leased += on_lease
            waiting += len(queue.in_flight) - on_lease
            blocked_groups += queue.blocked_group_count
        return LeaseCounts(leased, waiting, blocked_groups)

    def blocked_groups(self, consumer_group: str, limit: int) -> BlockedMessageGroups:
        """Raises GroupNotExist."""
        self.groups.get(consumer_group)
        found = [
            (group.since_ms or first.lease_id // LEASE_IDS_PER_MS, name, queue, group, first)
            for leases in self.table
            if leases.consumer_group == consumer_group
            for queue in leases.queues.values()
            for name, group, first in queue.blocked_groups()
        ]
        longest = nsmallest(limit, found, key=itemgetter(0))
        return BlockedMessageGroups([self._blocked_group(*entry) for entry in longest], len(found))

    def _blocked_group(
        self,
        since_ms: int,
        name: str,
        queue: InFlightQueue,
        group: MessageGroupQueue,
        first: InFlightMessage,
    ) -> BlockedMessageGroup:
        try:
            raw = stored_record(self.store, queue, first.offset)
        except MqError:
            raw = b""
        record = decode(raw, check_crc=False) if raw else None
        return BlockedMessageGroup(
            topic=queue.topic,
            queue_id=queue.queue_id,
            message_group=name,
            queue_offset=first.offset,
            message_id=(record.unique_message_id or record.offset_message_id) if record else "",
            attempt=first.attempt,
            waiting=len(group.offsets) - 1,
            since_ms=since_ms,
            next_try_ms=first.expires_ms if first.is_leased else 0,
            client_id=group.client_id,
        )

    # ---- at the start ----

    def restore_slices(self) -> Iterator[None]:
        """Leases as before the stop. Those that expired since end once expiry starts."""
        leased, records = 0, (yield from self.journal.replay())
        self._forget_recreated()
        for queue in list(self.table.queues()):
            yield from self._restore_queue(queue)
            leased += queue.leased_count
        structlog.get_logger().info("leases_restored", leases=leased, journal_records=records)

    def _restore_queue(self, queue: InFlightQueue) -> Iterator[None]:
        yield from regroup_slices(self.store, queue)
        queue.distrust_journal()  # it lacks messages of a snapshot whose leases were rolled back
        now_ms, monotonic_ms = self.clock.now_ms(), self.clock.monotonic_ms()
        leased: dict[int, list[int]] = {}  # by deadline: the messages of a pop have the same
        for number, message in enumerate(queue, 1):
            duration_ms = message.expires_ms - message.pop_time_ms
            left_ms = min(message.expires_ms - now_ms, duration_ms)
            message.deadline_ms = monotonic_ms + max(0, left_ms)
            if message.is_leased:
                leased.setdefault(message.deadline_ms, []).append(message.offset)
            if number % SLICE == 0:
                yield
        for deadline_ms, offsets in leased.items():
            for begin in range(0, len(offsets), MAX_AT_ONCE):
                part = offsets[begin : begin + MAX_AT_ONCE]
                self.deadlines.watch_all(queue, part, deadline_ms)
        self.offsets.commit(*queue.key, queue.committed_offset)

    def _forget_recreated(self) -> None:
        """A kill right after a topic's deletion may leave offsets and leases of groups there. When
        the topic is recreated, its first message has queue offset 0 again."""
        topics = self.offsets.begun() | {
            queue.topic for queue in self.table.queues() if queue.cursor
        }
        for topic in topics:
            queue_ids = self.store.queues(topic)
            if not any(self.store.max_offset(topic, queue_id) for queue_id in queue_ids):
                self.offsets.remove_topic(topic)
                self.forget(topic=topic)
