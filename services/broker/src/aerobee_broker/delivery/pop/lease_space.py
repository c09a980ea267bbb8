"""Lease spaces: the leases over one kind of queue, with all parts that create and end them.

A broker has two: of message queues, and of lite topics. They share no lease table and no journal.
`LeaseSpaces` routes the leases of a request to the space that their topics belong to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from operator import itemgetter
from typing import NamedTuple, TypeVar

import structlog

from aerobee_broker.delivery.pop.acks import AckFailure, Acknowledgements
from aerobee_broker.delivery.pop.dead_letters import DeadLetterRequest, DeadLetters
from aerobee_broker.delivery.pop.expiry import MAX_AT_ONCE, LeaseDeadlines, LeaseExpiry, Wakes
from aerobee_broker.delivery.pop.in_flight import (
    LEASE_IDS_PER_MS,
    InFlightMessage,
    InFlightQueue,
    MessageGroupQueue,
)
from aerobee_broker.delivery.pop.invisible_duration import (
    InvisibleChange,
    InvisibleDuration,
    InvisibleDurations,
)
from aerobee_broker.delivery.pop.lease_journal import LeaseJournal
from aerobee_broker.delivery.pop.lease_journal_format import DeleteRecord, ResetRecord
from aerobee_broker.delivery.pop.lease_table import LeaseSet
from aerobee_broker.delivery.pop.selector import (
    MessageSelector,
    PopBatch,
    PopRequest,
    regroup_slices,
    stored_record,
)
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.messages import LeasableQueues
from aerobee_chassis.lifecycle import Component
from aerobee_chassis.rpc.in_flight import InFlight
from aerobee_wire.queues.lite import is_line
from aerobee_wire.record import decode
from aerobee_wire.status import MqError

Q = TypeVar("Q")
R = TypeVar("R")

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


class LeaseSpace(Component):
    """The leases over one kind of queue: `store` has the queues, `offsets` the groups' offsets.

    `polls`: notified when messages may be leased. `journal`: the lease journal, which also has
    the lease table. `whole_batches`: see InvisibleDurations.
    """

    def __init__(
        self,
        store: LeasableQueues,
        journal: LeaseJournal,
        offsets: ConsumerOffsets,
        polls: Wakes,
        *,
        topics: TopicRegistry,
        groups: GroupRegistry,
        metrics: BrokerMetrics,
        levels_ms: Sequence[int],
        whole_batches: bool = False,
    ) -> None:
        self.journal = journal
        table, clock = self.table, self._clock = journal.table, journal.clock
        deadlines = self.deadlines = LeaseDeadlines(clock)
        self._store, self._offsets, self._polls, self._groups = store, offsets, polls, groups
        self.selector = MessageSelector(
            store=store, table=table, offsets=offsets, journal=journal, clock=clock
        )
        self.acks = Acknowledgements(
            table=table,
            journal=journal,
            deadlines=deadlines,
            polls=polls,
            offsets=offsets,
            clock=clock,
        )
        self.durations = InvisibleDurations(
            table=table,
            journal=journal,
            deadlines=deadlines,
            groups=groups,
            clock=clock,
            levels_ms=levels_ms,
            whole_batches=whole_batches,
        )
        self.dead_letters = DeadLetters(
            store=store, table=table, acks=self.acks, topics=topics, groups=groups, metrics=metrics
        )
        self.expiry = LeaseExpiry(
            deadlines=deadlines,
            table=table,
            groups=groups,
            polls=polls,
            clock=clock,
            attempts_used_up=self.dead_letters.attempts_used_up,
        )

    # ---- pops ----

    async def grant(self, batches: Sequence[tuple[PopRequest, PopBatch]], room: InFlight) -> None:
        """Return when the selected leases are durable.

        `room` counts the bytes of their messages until then. If the log rejects the leases, they
        are rolled back. If the call is cancelled, the messages become visible at once, and the
        caller wakes another receive. Raises the errors of LeaseJournal.write.
        """

        def roll_back() -> None:
            for _, batch in batches:
                batch.roll_back()

        size = sum(batch.size for _, batch in batches)
        room.answering(size)  # until the response itself is counted
        try:
            records = [batch.journal_record(request) for request, batch in batches]
            await self.journal.write(records, roll_back)
        except asyncio.CancelledError:
            for _, batch in batches:
                self.durations.give_back(batch.messages())
            raise
        finally:
            room.answered(size)
            for _, batch in batches:
                for queue, messages in batch.runs:
                    offsets = [message.offset for message in messages]
                    self.deadlines.watch_all(queue, offsets, batch.lease.deadline_ms)

    # ---- whole groups and topics ----

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
        self._polls.wake_pops(topic)
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
            self._polls.wake_pops(topic)
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
        self._groups.get(consumer_group)
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
            raw = stored_record(self._store, queue, first.offset)
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
        yield from regroup_slices(self._store, queue)
        queue.distrust_journal()  # it lacks messages of a snapshot whose leases were rolled back
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
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
        self._offsets.commit(*queue.key, queue.committed_offset)

    def _forget_recreated(self) -> None:
        """Forget offsets and leases in topics without messages.

        If the broker is killed right after a topic's deletion, these may remain. When the topic is
        recreated, its first message has queue offset 0 again.
        """
        topics = self._offsets.begun() | {
            queue.topic for queue in self.table.queues() if queue.cursor
        }
        for topic in topics:
            queue_ids = self._store.queues(topic)
            if not any(self._store.max_offset(topic, queue_id) for queue_id in queue_ids):
                self._offsets.remove_topic(topic)
                self.forget(topic=topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSpaces:
    """The lease spaces of a broker. Each lease of a request goes to the space of its topic.

    `lite_in_use`: returns whether a topic of type LITE exists. If not, no topic is compared.
    """

    queues: LeaseSpace
    lite: LeaseSpace
    lite_in_use: Callable[[], bool]

    async def ack(self, lease_sets: Sequence[LeaseSet]) -> list[AckFailure]:
        """Acknowledge leases; see Acknowledgements.ack."""
        lite = self._lite(lease_set.topic for lease_set in lease_sets)
        if not lite:
            return await self.queues.acks.ack(lease_sets)
        failures: list[AckFailure] = []
        for space, at in self._divided(lite, len(lease_sets)):
            failed = await space.acks.ack([lease_sets[each] for each in at])
            failures += [each._replace(set_index=at[each.set_index]) for each in failed]
        return sorted(failures, key=lambda failure: failure[:2])

    async def change(self, changes: Sequence[InvisibleChange]) -> list[InvisibleDuration]:
        """Change invisible durations; see InvisibleDurations.change."""
        topics = (change.lease.topic for change in changes)
        return await self._routed(changes, topics, lambda space: space.durations.change)

    async def dead_letter(self, requests: Sequence[DeadLetterRequest]) -> list[MqError | None]:
        """Dead-letter leased messages; see DeadLetters.dead_letter."""
        topics = (request.lease.topic for request in requests)
        return await self._routed(requests, topics, lambda space: space.dead_letters.dead_letter)

    def in_flight(self) -> int:
        """Return the number of messages that are popped and not settled."""
        counts = self.queues.counts(), self.lite.counts()
        return sum(leases.leased + leases.waiting for leases in counts)

    # ---- steps ----

    def _lite(self, topics: Iterable[str]) -> list[int]:
        """Return the indices of the topics that are lite topics."""
        return (
            [at for at, topic in enumerate(topics) if is_line(topic)] if self.lite_in_use() else []
        )

    def _divided(self, lite: list[int], count: int) -> list[tuple[LeaseSpace, list[int]]]:
        """Return each space that has leases, with their indices; lite topics first."""
        others = sorted(set(range(count)).difference(lite))
        return [(self.lite, lite), *([(self.queues, others)] if others else [])]

    async def _routed(
        self,
        requests: Sequence[Q],
        topics: Iterable[str],
        handler: Callable[[LeaseSpace], Callable[[Sequence[Q]], Awaitable[list[R]]]],
    ) -> list[R]:
        """Handle the requests of each space at once. Return results in the requests' order."""
        lite = self._lite(topics)
        if not lite:
            return await handler(self.queues)(requests)
        results: dict[int, R] = {}
        for space, at in self._divided(lite, len(requests)):
            handled = await handler(space)([requests[each] for each in at])
            results.update(zip(at, handled, strict=True))
        return [results[at] for at in range(len(requests))]
