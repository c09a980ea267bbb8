"""The leases of whole groups and topics: restoring, resetting, deleting, counting and listing.

Leases are restored at startup, become void after a reset or a deletion, and are counted for the
gauges. Blocked message groups are listed for administrators.
"""

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

SLICE = 10_000  # messages that are restored at once: about 10 ms of the event loop


class LeaseCounts(NamedTuple):
    leased: int  # messages
    waiting: int  # messages in flight without a lease
    blocked_groups: int  # message groups in which a message waits for leased ones


class BlockedMessageGroup(NamedTuple):
    """A message group in which messages wait behind a failed one. Times since the epoch."""

    topic: str
    queue_id: int
    message_group: str
    queue_offset: int  # of the failing message
    message_id: str  # of the failing message; empty if it cannot be read
    attempt: int  # its deliveries so far
    waiting: int  # messages in flight behind it
    since_ms: int  # its first delivery, as far as this process knows
    next_try_ms: int  # the end of its lease; 0 if it waits for a receive
    client_id: str  # the client that received it last; empty if unknown


class BlockedMessageGroups(NamedTuple):
    """The message groups blocked for the longest, and the total number of blocked ones."""

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
        """Void the group's leases, because it continues at these offsets (queue id → queue offset).

        Returns the future of LeaseJournal.write_until_durable; None if there were no leases. Raises
        DiskFull, StoreReadOnly, without any change.
        """
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
        """Check that a group or a topic can be deleted, or a group can leave a topic.

        Raises DiskFull, StoreReadOnly.
        """
        if self.table.keys_of(consumer_group=consumer_group, topic=topic):
            self.journal.check_open_to_appends()

    def forget(self, *, consumer_group: str = "", topic: str = "") -> asyncio.Future[None] | None:
        """Forget the leases of a deleted group or topic; with both, of a group that left the topic.

        Returns the future of LeaseJournal.write_until_durable; None if there were no leases.
        """
        durable = None
        if self.table.forget(consumer_group=consumer_group, topic=topic):
            durable = self.journal.write_until_durable([DeleteRecord(consumer_group, topic)])
        if topic:
            self.polls.wake_pops(topic)
        return durable

    def leave(self, consumer_group: str, topic: str) -> asyncio.Future[None] | None:
        """Forget the leases of a group that left a topic.

        Returns the result of `forget`. Raises the errors of `check_forget`, without any change.
        """
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
        """Return up to `limit` blocked message groups, oldest first. Raises GroupNotExist."""
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

    # ---- startup ----

    def restore_slices(self) -> Iterator[None]:
        """Restore the leases. Those that have expired in the meantime end when expiry starts."""
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
        leased: dict[int, list[int]] = {}  # by deadline: the messages of a pop share it
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
        """Forget offsets and leases in topics without messages.

        If the broker is killed right after a topic's deletion, these may remain. When the topic is
        recreated, its first message has queue offset 0 again.
        """
        topics = self.offsets.begun() | {
            queue.topic for queue in self.table.queues() if queue.cursor
        }
        for topic in topics:
            queue_ids = self.store.queues(topic)
            if not any(self.store.max_offset(topic, queue_id) for queue_id in queue_ids):
                self.offsets.remove_topic(topic)
                self.forget(topic=topic)
