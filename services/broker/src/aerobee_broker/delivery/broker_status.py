"""The broker's own numbers: for GetBrokerStatus, and as gauges for Prometheus."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aerobee_broker.delivery.delay.level_delivery import LevelDelivery
from aerobee_broker.delivery.delay.timer_delivery import TimerDelivery
from aerobee_broker.delivery.pop.leases import Leases
from aerobee_broker.delivery.pull.long_polls import LongPolls
from aerobee_broker.delivery.pull.offsets import OffsetQueries
from aerobee_broker.delivery.transaction.transactions import Transactions
from aerobee_broker.disk import Disk
from aerobee_broker.identity import Identity
from aerobee_broker.metadata.drain import Drain
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.registry.clients import Clients
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.message_store import MessageStore

_STATM = Path("/proc/self/statm")


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """As GetBrokerStatus answers it. Counts are since the start of the process."""

    cluster: str
    broker_name: str
    broker_id: int
    broker_address: str
    version: str
    start_timestamp_ms: int
    min_physical_offset: int
    max_physical_offset: int
    flushed_physical_offset: int
    read_only_reason: str
    messages_in_total: int
    messages_out_total: int
    dead_letters_total: int
    corrupted_records_total: int
    store_path: str
    disk_free_bytes: int
    disk_total_bytes: int
    parked_pulls: int
    parked_pops: int
    delayed_messages: Mapping[str, int]
    resident_memory_bytes: int
    draining_since_ms: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits in the broker: calls for messages, messages for their time or their transaction's
    end.
    """

    polls: LongPolls
    levels: LevelDelivery
    timers: TimerDelivery
    transactions: Transactions

    def delayed(self) -> dict[str, int]:
        """Name of a delay level, or "timers" → messages that wait; those where none wait are left
        out."""
        waiting = self.timers.waiting
        return self.levels.undelivered() | ({"timers": waiting} if waiting else {})


class StatusReport:
    def __init__(
        self,
        identity: Identity,
        store: MessageStore,
        metrics: BrokerMetrics,
        backlog: Backlog,
        drain: Drain,
        *,
        disk: Disk,
        store_path: Path,
    ) -> None:
        self._identity = identity
        self._store = store
        self._metrics = metrics
        self._backlog = backlog
        self._drain = drain
        self._disk = disk
        self._store_path = store_path

    def status(self) -> BrokerStatus:
        usage = self._disk.usage(self._store_path)
        identity, metrics, store = self._identity, self._metrics, self._store
        return BrokerStatus(
            cluster=identity.cluster,
            broker_name=identity.broker_name,
            broker_id=identity.broker_id,
            broker_address=identity.address,
            version=identity.version,
            start_timestamp_ms=identity.start_timestamp_ms,
            min_physical_offset=store.min_physical_offset,
            max_physical_offset=store.end_offset,
            flushed_physical_offset=store.flushed_offset,
            read_only_reason=store.flush.read_only_reason,
            messages_in_total=metrics.messages_in,
            messages_out_total=metrics.messages_out,
            dead_letters_total=metrics.dead_letters,
            corrupted_records_total=metrics.corrupted_records,
            store_path=str(self._store_path),
            disk_free_bytes=usage.free,
            disk_total_bytes=usage.used + usage.free,
            parked_pulls=self._backlog.polls.parked_pulls,
            parked_pops=self._backlog.polls.parked_pops,
            delayed_messages=self._backlog.delayed(),
            resident_memory_bytes=resident_memory(),
            draining_since_ms=self._drain.since_ms,
        )


class Gauges:
    def __init__(
        self,
        metrics: BrokerMetrics,
        store: MessageStore,
        backlog: Backlog,
        leases: Leases,
        *,
        topics: TopicRegistry,
        groups: GroupRegistry,
        clients: Clients,
        offset_queries: OffsetQueries,
    ) -> None:
        self._metrics = metrics
        self._store = store
        self._backlog = backlog
        self._leases = leases
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._offset_queries = offset_queries

    def measure(self, broker_permission: int) -> None:
        """Brings the gauges up to date: cheap enough for every few seconds."""
        store, backlog, clients = self._store, self._backlog, self._clients.all()
        leases = self._leases.counts()
        for name, value in (
            ("broker_permission", broker_permission),
            ("topic_number", len(self._topics.table)),
            ("consumer_group_number", len(self._groups.table)),
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
            self._metrics.set(name, value)
        self._metrics.half_messages(backlog.transactions.by_topic())
        for consumer_group, topic, lag in self._offset_queries.lags():
            self._metrics.lag(topic, consumer_group, lag)


def resident_memory() -> int:
    """Bytes of memory that this process holds; 0 where the system does not tell."""
    try:
        pages = int(_STATM.read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
