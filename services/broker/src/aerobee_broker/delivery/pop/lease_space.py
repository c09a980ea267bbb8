"""Lease spaces: all leases on one kind of queue, with the parts that create and end them.

A broker has one lease space for message queues and one for lite topics. Each has its own lease
table and lease journal. `LeaseSpaces` passes each lease of a request to the space of its topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import nsmallest
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

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
from aerobee_broker.errors import DiskFull, FlushTimeout, StoreReadOnly
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.messages import LeasableQueues
from aerobee_chassis.lifecycle import Component
from aerobee_chassis.rpc.in_flight import InFlight
from aerobee_wire import topics as names
from aerobee_wire.queues.lite import is_line
from aerobee_wire.record import decode
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_broker.traces import BrokerTraces

Q = TypeVar("Q")
R = TypeVar("R")

SLICE = 10_000  # messages that are restored at once: about 10 ms of the event loop


class LeaseCounts(NamedTuple):
    leased: int  # messages
    waiting: int  # messages in flight without a lease
    blocked_groups: int  # message groups in which a message waits for leased ones


class BlockedMessageGroup(NamedTuple):
    """A message group in which messages wait for a failed one. Times are since the epoch."""

    topic: str
    queue_id: int
    message_group: str
    queue_offset: int  # of the failed message
    message_id: str  # of the failed message; empty if it cannot be read
    attempt: int  # number of deliveries of the failed message
    waiting: int  # number of messages that wait for the failed one
    since_ms: int  # first known delivery of the failed message
    next_try_ms: int  # end of the failed message's lease; 0 if it is not on lease
    client_id: str  # the client that received the failed message last; empty if unknown


class BlockedMessageGroups(NamedTuple):
    """The message groups that are blocked longest, and the number of all blocked groups."""

    groups: list[BlockedMessageGroup]
    total: int


class LeaseSpace(Component):
    """All leases on one kind of queue: the message queues or the lite topics of a broker.

    Args:
        store: Reads the queues.
        journal: The lease journal, which also has the lease table.
        offsets: The offsets of the consumer groups in these queues.
        polls: Wakes receives when messages can be leased.
        whole_batches: See InvisibleDurations.
        traces: Creates spans; None if there is no receiver of spans.
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
        traces: BrokerTraces | None = None,
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
            traces=traces,
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
            store=store,
            table=table,
            acks=self.acks,
            topics=topics,
            groups=groups,
            metrics=metrics,
            traces=traces,
        )
        self.expiry = LeaseExpiry(
            deadlines=deadlines,
            table=table,
            groups=groups,
            polls=polls,
            clock=clock,
            metrics=metrics,
            attempts_used_up=self.dead_letters.attempts_used_up,
            traces=traces,
        )

    # ---- pops ----

    async def grant(self, batches: Sequence[tuple[PopRequest, PopBatch]], room: InFlight) -> None:
        """Write the leases of selected batches to the journal, and wait until they are durable.

        Meanwhile, `room` counts the bytes of the messages as unsent responses. If the log rejects
        the leases, they are rolled back. If the call is cancelled, or ends with FlushTimeout, no
        consumer gets the messages, so they become visible at once. After a cancellation, the caller
        must wake another receive. Raises the errors of LeaseJournal.write.
        """

        def roll_back() -> None:
            for _, batch in batches:
                batch.roll_back()

        size = sum(batch.size for _, batch in batches)
        room.answering(size)  # until the response itself is counted
        try:
            records = [batch.journal_record(request) for request, batch in batches]
            await self.journal.write(records, roll_back)
        except (asyncio.CancelledError, FlushTimeout):
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
        self, consumer_group: str, topic: str, offsets: Mapping[int, int], requested_by: str = ""
    ) -> asyncio.Future[None] | None:
        """End a group's leases in some queues, and let it continue at the given offsets.

        `offsets` has the new queue offset by queue id. `requested_by` is the operator.
        Returns the future of LeaseJournal.write_until_durable, or None if no queue has an entry in
        the lease table. Raises DiskFull or StoreReadOnly, without any change.
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
                records.append(ResetRecord(*queue.key, queue.cursor, requested_by))
            durable = self.journal.write_until_durable(records)
        self._polls.wake_pops(topic)
        return durable

    def follow(self, consumer_group: str, topic: str, queue_id: int) -> None:
        """Continue at the group's offset, which a member that pulls has committed.

        Otherwise the next start would set the offset back to the last pop of the group. Nothing
        changes if the offset is not beyond the last pop, or while a message is on lease.
        """
        queue = self.table.find(consumer_group, topic, queue_id)
        if queue is None:
            return
        offset = self._offsets.get(consumer_group, topic, queue_id)
        if offset is None or offset <= queue.cursor or any(each.is_leased for each in queue):
            return
        if queue.in_flight:  # members that pull have consumed these, too
            with suppress(DiskFull, StoreReadOnly):  # the next commit retries
                self.reset(consumer_group, topic, {queue_id: offset})
        else:
            queue.cursor = offset
            self.table.touch()

    def check_forget(self, *, consumer_group: str = "", topic: str = "") -> None:
        """Check that `forget` with the same arguments can write to the journal.

        Raises DiskFull, StoreReadOnly.
        """
        if self.table.keys_of(consumer_group=consumer_group, topic=topic):
            self.journal.check_open_to_appends()

    def forget(self, *, consumer_group: str = "", topic: str = "") -> asyncio.Future[None] | None:
        """Remove the leases of a deleted group or topic.

        If both are given, removes the leases of the group in the topic. Returns the future of
        LeaseJournal.write_until_durable, or None if there were no leases.
        """
        durable = None
        if self.table.forget(consumer_group=consumer_group, topic=topic):
            durable = self.journal.write_until_durable([DeleteRecord(consumer_group, topic)])
        if topic:
            self._polls.wake_pops(topic)
        return durable

    def leave(self, consumer_group: str, topic: str) -> asyncio.Future[None] | None:
        """Remove the leases of a group in a topic that it does not consume any more.

        Returns the result of `forget`. Raises the errors of `check_forget`, without any change.
        """
        self.check_forget(consumer_group=consumer_group, topic=topic)
        return self.forget(consumer_group=consumer_group, topic=topic)

    def counts(self, consumer_group: str = "") -> LeaseCounts:
        """Count the messages in flight of a group, or of all groups if it is empty."""
        leased = waiting = blocked_groups = 0
        for queue in self.table.queues():
            if consumer_group not in ("", queue.consumer_group):
                continue
            on_lease = queue.leased_count
            leased += on_lease
            waiting += len(queue.in_flight) - on_lease
            blocked_groups += queue.blocked_group_count
        return LeaseCounts(leased, waiting, blocked_groups)

    def blocked_groups(self, consumer_group: str, limit: int) -> BlockedMessageGroups:
        """Return up to `limit` message groups of a consumer group that a failed message blocks.

        The group that is blocked longest is the first. Raises GroupNotExist.
        """
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
        """Restore the leases, yielding between slices of the work.

        Leases that expired while the broker was down end when LeaseExpiry starts.
        """
        leased, records = 0, (yield from self.journal.replay())
        self._forget_recreated()
        self._end_at_log()
        for queue in list(self.table.queues()):
            yield from self._restore_queue(queue)
            leased += queue.leased_count
        structlog.get_logger().info("leases_restored", leases=leased, journal_records=records)

    def _restore_queue(self, queue: InFlightQueue) -> Iterator[None]:
        yield from regroup_slices(self._store, queue)
        # The journal lacks messages of the snapshot whose leases were rolled back.
        queue.distrust_journal()
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
        self._follow_saved(queue)
        self._offsets.commit(*queue.key, queue.committed_offset)

    def _end_at_log(self) -> None:
        """Lower offsets that are beyond the end of their queue.

        The tables are newer than the log if the store was copied while the broker ran, or if only
        the log was restored from a backup. Such an offset would hide the next messages.
        """
        beyond = [
            (consumer_group, topic, queue_id, end)
            for (topic, consumer_group), queues in self._offsets.rows().items()
            if not names.is_system_group(consumer_group)
            for queue_id, offset in queues.items()
            if offset > (end := self._store.max_offset(topic, queue_id))
        ]
        for entry in beyond:
            self._offsets.commit(*entry)
        for queue in self.table.queues():
            end = self._store.max_offset(queue.topic, queue.queue_id)
            if queue.cursor > end:
                queue.end_at(end)
                self.table.touch()
                beyond.append((*queue.key, end))
        if beyond:
            group, topic, queue_id, end = beyond[0]
            structlog.get_logger().warning(
                "offsets_beyond_log",
                queues=len(set(beyond)),
                first=f"{group} in {topic} queue {queue_id}: lowered to {end}",
            )

    def _follow_saved(self, queue: InFlightQueue) -> None:
        """Continue at the group's saved offset if members that pull have committed a later one.

        The journal does not record this (see `follow`).
        """
        offset = self._offsets.get(*queue.key)
        end = self._store.max_offset(queue.topic, queue.queue_id)
        if offset is not None and not queue.in_flight and queue.cursor < offset <= end:
            queue.cursor = queue.journalled_cursor = offset

    def _forget_recreated(self) -> None:
        """Remove the groups' offsets and leases in topics without messages.

        They may remain if the broker is killed right after a topic's deletion. They would be wrong
        in a recreated topic, because its first message has the queue offset 0 again.
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
    """The two lease spaces of a broker. Passes each lease of a request to the space of its topic.

    `lite_in_use` returns whether a topic of type LITE exists. If none exists, all leases belong to
    `queues`.
    """

    queues: LeaseSpace
    lite: LeaseSpace
    lite_in_use: Callable[[], bool]

    async def ack(self, lease_sets: Sequence[LeaseSet]) -> list[AckFailure]:
        """Acknowledge leases of any topics (see Acknowledgements.ack)."""
        lite = self._lite(lease_set.topic for lease_set in lease_sets)
        if not lite:
            return await self.queues.acks.ack(lease_sets)
        failures: list[AckFailure] = []
        for space, at in self._divided(lite, len(lease_sets)):
            failed = await space.acks.ack([lease_sets[each] for each in at])
            failures += [each._replace(set_index=at[each.set_index]) for each in failed]
        return sorted(failures, key=lambda failure: failure[:2])

    async def change(self, changes: Sequence[InvisibleChange]) -> list[InvisibleDuration]:
        """Change invisible durations of leases in any topics (see InvisibleDurations.change)."""
        topics = (change.lease.topic for change in changes)
        return await self._routed(changes, topics, lambda space: space.durations.change)

    async def dead_letter(self, requests: Sequence[DeadLetterRequest]) -> list[MqError | None]:
        """Dead-letter leased messages of any topics (see DeadLetters.dead_letter)."""
        topics = (request.lease.topic for request in requests)
        return await self._routed(requests, topics, lambda space: space.dead_letters.dead_letter)

    def in_flight(self) -> int:
        """Return the number of messages that are popped and not settled."""
        return sum(self.in_flight_by_group().values())

    def in_flight_by_group(self) -> dict[str, int]:
        """Return the number of messages that are popped and not settled, by consumer group."""
        found: dict[str, int] = {}
        for space in (self.queues, self.lite):
            for queue in space.table.queues():
                group = queue.consumer_group
                found[group] = found.get(group, 0) + len(queue.in_flight)
        return found

    def counts(self, consumer_group: str) -> LeaseCounts:
        """Count the messages in flight of a consumer group."""
        queues, lite = self.queues.counts(consumer_group), self.lite.counts(consumer_group)
        return LeaseCounts(*map(sum, zip(queues, lite, strict=True)))

    # ---- steps ----

    def _lite(self, topics: Iterable[str]) -> list[int]:
        """Return the indices of the topics that are lite topics."""
        return (
            [at for at, topic in enumerate(topics) if is_line(topic)] if self.lite_in_use() else []
        )

    def _divided(self, lite: list[int], count: int) -> list[tuple[LeaseSpace, list[int]]]:
        """Return each space that has leases in a request, with the indices of these leases.

        `lite` has the indices of the leases of lite topics. `count` is the number of all leases.
        """
        others = sorted(set(range(count)).difference(lite))
        return [(self.lite, lite), *([(self.queues, others)] if others else [])]

    async def _routed(
        self,
        requests: Sequence[Q],
        topics: Iterable[str],
        handler: Callable[[LeaseSpace], Callable[[Sequence[Q]], Awaitable[list[R]]]],
    ) -> list[R]:
        """Let each space handle all its requests in one call.

        Returns the results in the order of the requests.
        """
        lite = self._lite(topics)
        if not lite:
            return await handler(self.queues)(requests)
        results: dict[int, R] = {}
        for space, at in self._divided(lite, len(requests)):
            handled = await handler(space)([requests[each] for each in at])
            results.update(zip(at, handled, strict=True))
        return [results[at] for at in range(len(requests))]
