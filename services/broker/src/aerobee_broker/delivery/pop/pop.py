"""Pop leases messages to a consumer. Notifications report that a pop would find messages.

Both can wait for messages with a long poll. Leases are durable before the messages are sent.

A pop first takes messages of the group's retry topic, whatever their origin topic: redriven dead
letters, and messages that members of an earlier kind sent back.

There are several differences from RocketMQ. A redelivered message stays in its queue at its offset,
and is not copied to a retry topic. The delivery attempt is part of the lease. The group's offset is
the offset below which all messages are settled, not delivered. The broker, not the proxy, creates
dead letters.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aerobee_broker.delivery.pop.invisible_duration import MAX_INVISIBLE_DURATION_MS
from aerobee_broker.delivery.pop.lease_space import LeaseSpace
from aerobee_broker.delivery.pop.lease_table import LeaseTable
from aerobee_broker.delivery.pop.selector import PopBatch, PopRequest
from aerobee_broker.delivery.pull.access import ReadAccess
from aerobee_broker.delivery.pull.long_polls import LongPolls
from aerobee_broker.errors import InvalidParameter
from aerobee_broker.filter.filter import compile_filter
from aerobee_broker.metadata.subscription_groups import SubscriptionGroup
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.store.messages import LeasableQueues

if TYPE_CHECKING:
    from aerobee_broker.traces import BrokerTraces

MAX_MESSAGES = 32  # as in RocketMQ
DEFAULT_BYTES = 4 * 1024 * 1024
MAX_BYTES = 16 * 1024 * 1024
MAX_POLL_MS = 30_000
EVERYTHING = compile_filter("TAG", "*")


@dataclass(frozen=True, slots=True)
class PopResult:
    """The leased messages of a pop.

    `records` contains the concatenated records as stored in the log. `attempts` has the delivery
    attempt of each message, starting at 1. `pop_time_ms` is in milliseconds since the epoch.
    """

    records: bytes
    attempts: list[int]
    lease_id: int
    pop_time_ms: int
    invisible_duration_ms: int

    @classmethod
    def of(cls, batch: PopBatch) -> PopResult:
        lease_id, _, expires_ms, pop_time_ms, _ = batch.lease
        records = b"".join(batch.records)
        return cls(records, batch.attempts, lease_id, pop_time_ms, expires_ms - pop_time_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Finds the retry topic from which a pop of a group also takes messages."""

    leases: LeaseSpace
    access: ReadAccess
    store: LeasableQueues

    def select(self, request: PopRequest) -> tuple[PopRequest, PopBatch] | None:
        """Lease messages of the retry topic in memory, and return the pop of that topic with them.

        Return None if it has none, or if the pop is of one queue or repeats an earlier one. The
        filter of the pop does not apply: the group received these messages before. Raises the
        errors of MessageSelector.select.
        """
        config = self.access.retry_topic(request.consumer_group)
        if config is None or request.queue_id is not None or self._is_repeated(request):
            return None
        count = config.read_queue_count
        if not any(self.store.max_offset(config.topic, queue_id) for queue_id in range(count)):
            return None
        wanted = replace(request, topic=config.topic, filter=EVERYTHING, start="earliest")
        ordered = self.access.is_ordered(request.consumer_group, config)
        batch = self.leases.selector.select(wanted, count, by_priority=False, ordered=ordered)
        return (wanted, batch) if batch.runs or batch.scan_unfinished else None

    def _is_repeated(self, request: PopRequest) -> bool:
        if not request.attempt_id:
            return False
        group = self.leases.table.group(request.consumer_group, request.topic)
        return request.attempt_id in group.attempts


class HeldCall:
    """Detects that the offset of a group in a topic was deleted while its call waited.

    Such a call must end. Otherwise it would commit an offset again, for a client that has left.
    """

    def __init__(self, table: LeaseTable, request: PopRequest) -> None:
        self._table, self._key = table, (request.consumer_group, request.topic)
        self._entry = table.entry(*self._key)

    def selected(self) -> None:
        """Record that messages were selected, which creates the entry of a new group."""
        self._entry = self._table.entry(*self._key)

    @property
    def is_forgotten(self) -> bool:
        """Return whether the entry of the last selection was deleted."""
        return self._entry is not None and self._entry is not self._table.entry(*self._key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pop:
    leases: LeaseSpace
    polls: LongPolls
    access: ReadAccess
    retries: Retries
    metrics: BrokerMetrics
    long_polling: bool
    traces: BrokerTraces | None = None

    async def pop(self, request: PopRequest, poll_ms: int = 0) -> PopResult | None:
        """Lease messages, and wait up to `poll_ms` for the first one.

        Returns None if no message arrived in time, or if the group's offset in the topic was
        deleted meanwhile. Raises NoPermission, TopicNotExist,
        GroupNotExist, InvalidParameter, TooMuchUnflushed, TooMuchInFlight, MqError with the code
        POLLING_FULL, and the errors of the store.
        """
        request = await self._checked(request)
        loop = asyncio.get_running_loop()
        end = loop.time() + (min(poll_ms, MAX_POLL_MS) / 1000 if self.long_polling else 0)
        held = HeldCall(self.leases.table, request)
        while True:
            self.leases.journal.check_room()
            await self.access.room()
            self.access.check_group(request.consumer_group)
            if held.is_forgotten:
                return None
            topic = self.access.topic(request.topic, request.queue_id)
            wanted = self.access.filter_in(topic, request.filter)
            if wanted is not request.filter:
                request = replace(request, filter=wanted)
            chosen, batch = self.retries.select(request) or (
                request,
                self.leases.selector.select(
                    request,
                    topic.read_queue_count,
                    by_priority=topic.by_priority,
                    ordered=self.access.is_ordered(request.consumer_group, topic),
                ),
            )
            held.selected()
            if batch.is_repeated:
                await self.leases.journal.flush()  # the first response may not be durable yet
                if not self.leases.selector.is_leased(batch):
                    continue
            if batch.runs:
                begin_ns = self.traces.now_ns() if self.traces is not None else 0
                if not batch.is_repeated:
                    try:
                        await self.leases.grant([(chosen, batch)], self.access.in_flight)
                    except asyncio.CancelledError:
                        self.polls.wake_pop(chosen.consumer_group, chosen.topic)
                        raise
                return self._hand_out(batch, chosen, begin_ns)
            if batch.scan_unfinished:
                await asyncio.sleep(0)
                continue
            left_s = end - loop.time()
            if left_s <= 0:
                return None
            woken = await self.polls.park_pop(
                request.consumer_group,
                request.topic,
                request.queue_id,
                request.filter.tags_codes,
                left_s,
                client_id=request.client_id,
            )
            if not woken:
                return None

    def _hand_out(self, batch: PopBatch, request: PopRequest, begin_ns: int) -> PopResult:
        # There may be more messages for another pop.
        if len(batch.attempts) >= request.max_messages or batch.is_cut:
            self.polls.wake_pop(request.consumer_group, request.topic)
        self.metrics.delivered(
            request.topic,
            request.consumer_group,
            len(batch.attempts),
            batch.size,
            redelivered=batch.redelivered,
        )
        if self.traces is not None:
            messages = [(queue.key, message.offset) for queue, message in batch.messages()]
            self.traces.leased(messages, batch.records, batch.attempts, begin_ns)
        return PopResult.of(batch)

    async def _checked(self, request: PopRequest) -> PopRequest:
        """Check a pop, and return it with the settings of its group applied."""
        self.access.check_broker()
        group = await self.access.group(request.consumer_group)
        check_limits(request.invisible_duration_ms, request.max_messages)
        self.access.check_filter(request.filter)
        return starting_as(group, request)


def check_limits(invisible_duration_ms: int, max_messages: int) -> None:
    """Raise InvalidParameter if a value of a pop is out of range."""
    if not 1 <= invisible_duration_ms <= MAX_INVISIBLE_DURATION_MS:
        raise InvalidParameter(
            f"invisible duration {invisible_duration_ms} ms is out of range: "
            f"use 1 to {MAX_INVISIBLE_DURATION_MS}"
        )
    if not 1 <= max_messages <= MAX_MESSAGES:
        raise InvalidParameter(f"max_messages is 1 to {MAX_MESSAGES}, not {max_messages}")


def starting_as(group: SubscriptionGroup, request: PopRequest) -> PopRequest:
    """Return the pop with the start position that the group's settings define for new queues."""
    if request.start == "automatic" and not group.consume_from_min_enable:
        return replace(request, start="latest")
    return request


@dataclass(frozen=True, slots=True, kw_only=True)
class Notifications:
    """Long polls that report whether a pop would find a message, without a lease.

    A client that waits for messages of several brokers uses them to find a broker to pop from. As
    in RocketMQ, a notification does not reserve a message, so another pop may lease it first.
    """

    leases: LeaseSpace
    polls: LongPolls
    access: ReadAccess
    retries: Retries
    long_polling: bool

    async def is_repeated(self, request: PopRequest) -> bool:
        """Return whether a pop with this attempt id would return messages that are already leased.

        This is the case if an earlier pop with the attempt id has leased them. Raises the errors of
        `wait`.
        """
        await self._checked(request)
        self.access.topic(request.topic, None)  # check first: the next line creates an entry
        group = self.leases.table.group(request.consumer_group, request.topic)
        attempt = group.attempts.get(request.attempt_id)
        return attempt is not None and bool(group.still_leased(attempt))

    async def wait(self, request: PopRequest, poll_ms: int) -> bool:
        """Wait up to `poll_ms` until a pop would find a message, and return whether it would.

        Raises NoPermission, TopicNotExist, GroupNotExist, MqError with the code POLLING_FULL, and
        the errors of the store.
        """
        request = await self._checked(request)
        loop = asyncio.get_running_loop()
        end = loop.time() + (min(poll_ms, MAX_POLL_MS) / 1000 if self.long_polling else 0)
        held = HeldCall(self.leases.table, request)
        while True:
            self.access.check_group(request.consumer_group)
            if held.is_forgotten:
                return False
            batch = self._peek(request)
            held.selected()
            if batch.runs:
                return True
            if batch.scan_unfinished:
                await asyncio.sleep(0)
                continue
            left_s = end - loop.time()
            if left_s <= 0 or self.polls.closed:
                return False
            await self.polls.park_notification(
                request.consumer_group, request.topic, request.filter.tags_codes, left_s
            )

    def _peek(self, request: PopRequest) -> PopBatch:
        """Return the batch that a pop of one message would lease, without leasing the message."""
        topic = self.access.topic(request.topic, None)
        request = replace(
            request, max_messages=1, filter=self.access.filter_in(topic, request.filter)
        )
        _, batch = self.retries.select(request) or (
            request,
            self.leases.selector.select(
                request,
                topic.read_queue_count,
                by_priority=False,
                ordered=self.access.is_ordered(request.consumer_group, topic),
            ),
        )
        for queue, message in batch.messages():
            message.uncounted = True
            queue.expire(message)
        return batch

    async def _checked(self, request: PopRequest) -> PopRequest:
        self.access.check_broker()
        group = await self.access.group(request.consumer_group)
        self.access.check_filter(request.filter)
        return starting_as(group, request)
