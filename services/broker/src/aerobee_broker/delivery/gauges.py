"""Measures the state of the broker (storage, clients, backlog, lags) as gauges."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import structlog

from aerobee_broker import declared_metrics as declared
from aerobee_broker.delivery.delay.level_delivery import LevelDelivery
from aerobee_broker.delivery.delay.timer_delivery import TimerDelivery
from aerobee_broker.delivery.lite.lag import LiteLag
from aerobee_broker.delivery.pop.lease_space import LeaseSpace
from aerobee_broker.delivery.pull.long_polls import LongPolls
from aerobee_broker.delivery.pull.offsets import OffsetQueries
from aerobee_broker.delivery.transaction.transactions import Transactions
from aerobee_broker.disk import Disk
from aerobee_broker.metrics import STORAGE, BrokerMetrics, flag, lag_labels
from aerobee_broker.registry.clients import Client, Clients
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.message_store import MessageStore
from aerobee_chassis.clock import Clock
from aerobee_chassis.metrics.series import Labels, Metric
from aerobee_wire import topics as names
from aerobee_wire.printable import printable
from aerobee_wire.status import MqError

LONGEST_LABEL = 64  # characters of a label that a client states; clients alike count together

LITE_TOPICS_A_ROUND = 10_000
# What is measured before other work runs, about 0.5 ms: a pair of group and topic or a queue costs
# 1 (5 µs), and a read of a record READ_COST. A record that is not in memory takes longer.
SLICE_COST = 128
READ_COST = 8
# The part of the time that a measurement in slices may take, as 1 / n.
TIME_SHARE = 50
PROTOCOL = "grpc"
# The upper bounds of RocketMQ's classes of waiting messages, in seconds.
TIMER_BOUNDS_S = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)


@dataclass(frozen=True, slots=True)
class Backlog:
    """The parts of the broker in which calls or messages wait.

    Calls wait for messages. Messages wait for their delivery time or the end of their transaction.
    """

    polls: LongPolls
    levels: LevelDelivery
    timers: TimerDelivery
    transactions: Transactions

    def delayed(self) -> dict[str, int]:
        """Return the numbers of delayed messages, without zeros.

        The keys are the names of delay queues, and "timers" for messages with their own time.
        """
        waiting = self.timers.waiting
        return self.levels.undelivered() | ({"timers": waiting} if waiting else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreGauges:
    """Measures a store and its disk. Each role of a replica does, so that alerts see a slave's."""

    metrics: BrokerMetrics
    disk: Disk
    path: Path
    clock: Clock

    def measure(self, store: MessageStore) -> None:
        """Update the gauges of the store. It must be open."""
        metrics, end = self.metrics, store.end_offset
        metrics.set(declared.COMMIT_LOG, end - store.min_physical_offset)
        metrics.set(declared.STORE_READ_ONLY, bool(store.flush.read_only_reason))
        metrics.set(declared.DISK_FULL, bool(store.disk_full_reason))
        metrics.set(declared.STORAGE_FLUSH_BEHIND, end - store.flushed_offset, *STORAGE)
        metrics.set(declared.STORAGE_DISPATCH_BEHIND, end - store.confirmed_offset, *STORAGE)
        with suppress(OSError):
            usage = self.disk.usage(self.path)
            metrics.set(declared.STORAGE_SIZE, usage.used, *STORAGE)
            metrics.set(declared.DISK_FREE, usage.free)
            metrics.set(declared.DISK_SIZE, usage.used + usage.free)
        stored_ms = None
        with suppress(OSError, MqError):
            stored_ms = store.log_timestamp(store.min_physical_offset)
        age: dict[Labels, float] = {}
        if stored_ms is not None:
            age[STORAGE] = max(0, self.clock.now_ms() - stored_ms)
        metrics.replace(declared.STORAGE_RESERVE_TIME, age)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """Measures what is known at once: sizes, counts and ages of what waits."""

    metrics: BrokerMetrics
    store: MessageStore
    store_gauges: StoreGauges
    backlog: Backlog
    leases: LeaseSpace
    topics: TopicRegistry
    groups: GroupRegistry
    clients: Clients
    clock: Clock

    def measure(self, broker_permission: int) -> None:
        """Update all gauges. This is fast enough to be called every few seconds."""
        backlog = self.backlog
        leases, table = self.leases.counts(), backlog.transactions.table
        overdue, late_ms = self.leases.deadlines.overdue()
        oldest = table.first()
        half_ms = 0 if oldest is None else backlog.transactions.schedule.age_ms(oldest.half)
        values: tuple[tuple[Metric, float], ...] = (
            (declared.BROKER_PERMISSION, broker_permission),
            (declared.TOPIC_NUMBER, len(self.topics.table)),
            (declared.CONSUMER_GROUP_NUMBER, len(self.groups.table)),
            (declared.PARKED_PULLS, backlog.polls.parked_pulls),
            (declared.PARKED_POPS, backlog.polls.parked_pops),
            (declared.LEASED_MESSAGES, leases.leased),
            (declared.WAITING_MESSAGES, leases.waiting),
            (declared.POP_CHECKPOINTS, leases.leased + leases.waiting),
            (declared.POP_REVIVE_LAG, overdue),
            (declared.POP_REVIVE_LATENCY, late_ms),
            (declared.BLOCKED_GROUPS, leases.blocked_groups),
            (declared.BLOCKED_SECONDS, self._blocked_ms() / 1_000),
            (declared.OLDEST_HALF_MESSAGE, half_ms / 1_000),
        )
        for metric, value in values:
            self.metrics.set(metric, value)
        self.metrics.half_messages(table.by_topic())
        self.store_gauges.measure(self.store)
        self._measure_timers()
        self._measure_clients()

    def _blocked_ms(self) -> int:
        """Return for how long the message group that waits longest is blocked, or 0."""
        since_ms = [
            group.since_ms or first.pop_time_ms
            for queue in self.leases.table.queues()
            if queue.message_groups
            for _, group, first in queue.blocked_groups()
        ]
        return max(0, self.clock.now_ms() - min(since_ms)) if since_ms else 0

    def _measure_timers(self) -> None:
        metrics, timers = self.metrics, self.backlog.timers
        metrics.set(declared.TIMING_MESSAGES, timers.waiting, *STORAGE)
        overdue, late_ms = timers.overdue()
        metrics.set(declared.TIMER_DEQUEUE_LAG, overdue, *STORAGE)
        metrics.set(declared.TIMER_DEQUEUE_LATENCY, late_ms, *STORAGE)
        with suppress(OSError, MqError):
            lacking, stored_ms = timers.not_taken()
            metrics.set(declared.TIMER_ENQUEUE_LAG, lacking, *STORAGE)
            age_ms = 0 if stored_ms is None else max(0, self.clock.now_ms() - stored_ms)
            metrics.set(declared.TIMER_ENQUEUE_LATENCY, age_ms, *STORAGE)

    def _measure_clients(self) -> None:
        producers: Counter[Labels] = Counter()
        consumers: Counter[Labels] = Counter()
        for client in self.clients.all():
            made = sdk_labels(client)
            if client.producer_groups or client.published_topics:
                producers[*made, PROTOCOL] += 1
            for group, consumer in client.consumers.items():
                mode, system = consumer.consume_type.name.lower(), names.is_system_group(group)
                consumers[group, *made, mode, PROTOCOL, flag(system)] += 1
        self.metrics.replace(declared.PRODUCER_CONNECTIONS, producers)
        self.metrics.replace(declared.CONSUMER_CONNECTIONS, consumers)
        self.metrics.replace(
            declared.GROUP_MEMBERS,
            {
                (group.consumer_group,): len(self.clients.members(group.consumer_group))
                for group in self.groups.table.all()
                if not names.is_system_group(group.consumer_group)
            },
        )
        differing = self.clients.differing()
        self.metrics.replace(declared.SUBSCRIPTIONS_DIFFER, {(group,): 1 for group in differing})

    async def clear(self) -> None:
        """Remove what was measured, because this broker does not serve any more."""
        for metric in MEASURED:
            self.metrics.replace(metric, {})
        self.metrics.lags({})
        self.metrics.lite_lags({})


# The gauges that only a master measures.
MEASURED = (
    *(declared.BROKER_PERMISSION, declared.TOPIC_NUMBER, declared.CONSUMER_GROUP_NUMBER),
    *(declared.PARKED_PULLS, declared.PARKED_POPS, declared.LEASED_MESSAGES),
    *(declared.WAITING_MESSAGES, declared.POP_CHECKPOINTS, declared.POP_REVIVE_LAG),
    *(declared.POP_REVIVE_LATENCY, declared.BLOCKED_GROUPS, declared.BLOCKED_SECONDS),
    *(declared.OLDEST_HALF_MESSAGE, declared.HALF_MESSAGES, declared.TIMING_MESSAGES),
    *(declared.TIMER_DEQUEUE_LAG, declared.TIMER_DEQUEUE_LATENCY, declared.TIMER_ENQUEUE_LAG),
    *(declared.TIMER_ENQUEUE_LATENCY, declared.TIMER_SNAPSHOT, declared.PRODUCER_CONNECTIONS),
    *(declared.CONSUMER_CONNECTIONS, declared.GROUP_MEMBERS, declared.SUBSCRIPTIONS_DIFFER),
    *(declared.CONSUMER_LAG_LATENCY, declared.CONSUMER_INFLIGHT_MESSAGES),
    *(declared.CONSUMER_QUEUEING_LATENCY, declared.CONSUMER_READY_MESSAGES),
    *(declared.QUEUE_LAG, declared.EXPIRED_UNCONSUMED),
)


def sdk_labels(client: Client) -> Labels:
    """Return language and version of a client. A client states them, in any form and length."""
    stated = (client.language, client.version)
    language, version = (printable(each[:LONGEST_LABEL].lower()) or "unknown" for each in stated)
    return language, version


@dataclass(slots=True, eq=False)
class SlicedMeasurement:
    """Runs a long measurement in slices, for at most a part of the time.

    After a measurement that took long, the next calls of `round` do nothing.
    """

    clock: Clock
    _next_ms: int = field(default=0, init=False)  # monotonic
    _spent: int = field(default=0, init=False)  # in this slice

    @property
    def is_due(self) -> bool:
        return self.clock.monotonic_ms() >= self._next_ms

    def took(self, begin_ms: int) -> None:
        """Record a measurement that began at a monotonic time and has ended."""
        end_ms = self.clock.monotonic_ms()
        self._next_ms = end_ms + (end_ms - begin_ms) * TIME_SHARE

    async def spend(self, cost: int) -> None:
        """Let other work run if a slice of the measurement ends with this cost."""
        self._spent += cost
        if self._spent >= SLICE_COST:
            self._spent = 0
            await asyncio.sleep(0)


class _Lag(NamedTuple):
    """The lag of a group in one queue: three numbers of messages, and where the last two begin.

    `unsettled` = `held` + the messages from `next_offset` on, and those that wait for redelivery.
    """

    unsettled: int
    held: int
    first_offset: int
    next_offset: int


@dataclass(slots=True, eq=False, kw_only=True)
class ConsumerGauges:
    """Measures how far each group is behind in each topic and queue, and for how long."""

    queries: OffsetQueries
    leases: LeaseSpace
    metrics: BrokerMetrics
    clock: Clock
    timers: TimerDelivery
    _pace: SlicedMeasurement = field(init=False)

    def __post_init__(self) -> None:
        self._pace = SlicedMeasurement(self.clock)

    async def measure(self) -> None:
        """Measure everything, in slices. Called every 5 s, and does less for many groups."""
        if not self._pace.is_due:
            return
        begin_ms = self.clock.monotonic_ms()
        found = _Found()
        for topic, group in list(self.queries.offsets.rows()):
            if self.queries.has_lag(group):
                await self._measure(topic, group, found)
            await self._pace.spend(1)
        found.keep(self._exists)
        self.metrics.lags(found.lags)
        for metric, values in found.gauges.items():
            self.metrics.replace(metric, values)
        await self._measure_times()
        self._pace.took(begin_ms)

    def _exists(self, labels: Labels) -> bool:
        """Return whether the group and the topic of a series exist, which may be deleted by now."""
        group, topic = labels[:2]
        return group in self.queries.groups.table and topic in self.queries.topics.table

    async def _measure(self, topic: str, group: str, found: _Found) -> None:
        config = self.queries.topics.table.get(topic)
        if config is None:
            return
        labels, retry = lag_labels(group, topic), flag(names.is_retry(topic))
        now_ms = self.clock.now_ms()
        unsettled = held = 0
        oldest, next_ones = _Age(), _Age()
        for queue_id in range(config.read_queue_count):
            lag = self._queue_lag(group, topic, queue_id)
            found.gauges[declared.QUEUE_LAG][group, topic, str(queue_id), retry] = lag.unsettled
            unsettled += lag.unsettled
            held += lag.held
            cost = 1
            if lag.unsettled:
                oldest.add(self._stored_ms(topic, queue_id, lag.first_offset), now_ms)
                cost += READ_COST
            if lag.unsettled > lag.held:
                next_ones.add(self._stored_ms(topic, queue_id, lag.next_offset), now_ms)
                cost += READ_COST
            await self._pace.spend(cost)
        found.lags[labels] = unsettled
        for metric, value in (
            (declared.CONSUMER_LAG_LATENCY, oldest.ms),
            (declared.CONSUMER_INFLIGHT_MESSAGES, held),
            (declared.CONSUMER_QUEUEING_LATENCY, next_ones.ms),
            (declared.CONSUMER_READY_MESSAGES, unsettled - held),
        ):
            if value is not None:
                found.gauges[metric][labels] = value
        expired = self.queries.expired(group, topic)
        found.gauges[declared.EXPIRED_UNCONSUMED][group, topic] = expired

    def _queue_lag(self, group: str, topic: str, queue_id: int) -> _Lag:
        store, queries = self.queries.store, self.queries
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        committed = queries.offsets.of(group, topic).get(queue_id)
        first = max(low, committed or 0)
        unsettled = max(0, high - first)
        queue = self.leases.table.find(group, topic, queue_id)
        if queue is not None:
            held, next_offset = queue.leased_count, max(first, queue.cursor)
        else:
            pulled = queries.clients.pulled_to(group, topic).get(queue_id, first)
            next_offset = min(max(first, pulled), max(first, high))
            held = next_offset - first
        return _Lag(unsettled, min(held, unsettled), first, next_offset)

    def _stored_ms(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return the store time of a message, or None if it cannot be read.

        At the end of the queue, where messages only wait for redelivery, returns 0.
        """
        if queue_offset >= self.queries.store.max_offset(topic, queue_id):
            return 0
        with suppress(OSError, MqError):
            return self.queries.store.store_timestamp(topic, queue_id, queue_offset) or None
        return None

    async def _measure_times(self) -> None:
        """Count the messages with a delivery time by how long they still wait."""
        counts = [0] * (len(TIMER_BOUNDS_S) + 1)
        for waits_ms in self.timers.waits_ms():
            for wait_ms in waits_ms:
                counts[bisect_left(TIMER_BOUNDS_S, wait_ms / 1_000)] += 1
            await asyncio.sleep(0)
        self.metrics.replace(
            declared.TIMER_SNAPSHOT,
            {
                (str(bound), *STORAGE): count
                for bound, count in zip(TIMER_BOUNDS_S, counts, strict=False)
            },
        )


class _Age:
    """The highest age of some messages in ms; None if the age of one of them is not known."""

    def __init__(self) -> None:
        self.ms: int | None = 0

    def add(self, stored_ms: int | None, now_ms: int) -> None:
        if stored_ms is None or self.ms is None:
            self.ms = None
        elif stored_ms:
            self.ms = max(self.ms, now_ms - stored_ms)


class _Found:
    """The series that a measurement has found so far."""

    def __init__(self) -> None:
        self.lags: dict[Labels, float] = {}
        self.gauges: dict[Metric, dict[Labels, float]] = {
            metric: {}
            for metric in (
                declared.CONSUMER_LAG_LATENCY,
                declared.CONSUMER_INFLIGHT_MESSAGES,
                declared.CONSUMER_QUEUEING_LATENCY,
                declared.CONSUMER_READY_MESSAGES,
                declared.QUEUE_LAG,
                declared.EXPIRED_UNCONSUMED,
            )
        }

    def keep(self, exists: Callable[[Labels], bool]) -> None:
        """Keep only the series whose labels begin with a group and a topic that exist."""
        for values in (self.lags, *self.gauges.values()):
            for labels in [each for each in values if not exists(each)]:
                del values[labels]


@dataclass(slots=True, eq=False)
class LiteGauges:
    """Measures the lag of each group that is bound to a parent of lite topics.

    After a measurement that visited many lite topics, the next calls of `measure` do nothing. On
    average, a call visits at most `LITE_TOPICS_A_ROUND` lite topics.
    """

    lag: LiteLag
    metrics: BrokerMetrics
    _idle: int = field(default=0, init=False)  # number of calls of `measure` to skip

    async def measure(self) -> None:
        """Measure the lags. Called every 10 s.

        If the lag of a group cannot be read, logs a warning, removes its series, and continues with
        the next group.
        """
        if self._idle:
            self._idle -= 1
            return
        looked_at, lags = 0, dict[tuple[str, str], int]()
        for consumer_group, parent in list(self.lag.bound()):
            looked_at += self.lag.size(parent)
            try:
                lags[consumer_group, parent] = await self.lag.total(consumer_group, parent)
            except (OSError, MqError) as error:
                structlog.get_logger().warning(
                    "lite_lag_not_measured", group=consumer_group, topic=parent, reason=str(error)
                )
        self.metrics.lite_lags(lags)
        self._idle = looked_at // LITE_TOPICS_A_ROUND
