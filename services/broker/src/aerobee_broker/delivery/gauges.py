"""Measures the state of the broker (storage, clients, backlog, lags) as gauges for Prometheus."""

from __future__ import annotations

from dataclasses import dataclass, field

import structlog

from aerobee_broker.delivery.delay.level_delivery import LevelDelivery
from aerobee_broker.delivery.delay.timer_delivery import TimerDelivery
from aerobee_broker.delivery.lite.lag import LiteLag
from aerobee_broker.delivery.pop.lease_space import LeaseSpace
from aerobee_broker.delivery.pull.long_polls import LongPolls
from aerobee_broker.delivery.pull.offsets import OffsetQueries
from aerobee_broker.delivery.transaction.transactions import Transactions
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.registry.clients import Clients
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.message_store import MessageStore
from aerobee_wire.status import MqError

LITE_TOPICS_A_ROUND = 10_000


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
class Gauges:
    metrics: BrokerMetrics
    store: MessageStore
    backlog: Backlog
    leases: LeaseSpace
    topics: TopicRegistry
    groups: GroupRegistry
    clients: Clients
    offset_queries: OffsetQueries

    def measure(self, broker_permission: int) -> None:
        """Update all gauges. This is fast enough to be called every few seconds."""
        store, backlog, clients = self.store, self.backlog, self.clients.all()
        leases = self.leases.counts()
        for name, value in (
            ("broker_permission", broker_permission),
            ("topic_number", len(self.topics.table)),
            ("consumer_group_number", len(self.groups.table)),
            ("producer_connections", sum(bool(client.producer_groups) for client in clients)),
            ("consumer_connections", sum(bool(client.consumers) for client in clients)),
            ("storage_size", store.end_offset - store.min_physical_offset),
            ("storage_flush_behind_bytes", store.end_offset - store.flushed_offset),
            ("parked_pulls", backlog.polls.parked_pulls),
            ("parked_pops", backlog.polls.parked_pops),
            ("pop_leased_messages", leases.leased),
            ("pop_waiting_messages", leases.waiting),
            ("pop_blocked_message_groups", leases.blocked_groups),
            ("timing_messages", backlog.timers.waiting),
            ("store_read_only", bool(store.flush.read_only_reason)),
        ):
            self.metrics.set(name, value)
        self.metrics.half_messages(backlog.transactions.table.by_topic())
        for consumer_group, topic, lag in self.offset_queries.lags():
            self.metrics.lag(topic, consumer_group, lag)
            expired = self.offset_queries.expired(consumer_group, topic)
            self.metrics.expired(topic, consumer_group, expired)


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

        If the lag of a group cannot be read, logs a warning and continues with the next group.
        """
        if self._idle:
            self._idle -= 1
            return
        looked_at = 0
        for consumer_group, parent in list(self.lag.bound()):
            looked_at += self.lag.size(parent)
            try:
                total = await self.lag.total(consumer_group, parent)
            except (OSError, MqError) as error:
                structlog.get_logger().warning(
                    "lite_lag_not_measured", group=consumer_group, topic=parent, reason=str(error)
                )
            else:
                self.metrics.lag(parent, consumer_group, total)
        self._idle = looked_at // LITE_TOPICS_A_ROUND
