"""What touches several tables at once: deleting topics and groups, and the broker's own numbers."""

from __future__ import annotations

import asyncio
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
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metadata.persistent_table import PersistentTable
from aerobee_broker.metrics import Meters
from aerobee_broker.registry.clients import Clients
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.message_store import MessageStore
from aerobee_wire.topics import is_system_group

_STATM = Path("/proc/self/statm")


@dataclass(frozen=True, slots=True)
class BrokerStatus:
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


class Administration:
    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicRegistry,
        groups: GroupRegistry,
        offsets: ConsumerOffsets,
        saved_offsets: PersistentTable,
        clients: Clients,
        polls: LongPolls,
        offset_queries: OffsetQueries,
        levels: LevelDelivery,
        transactions: Transactions,
        timers: TimerDelivery,
        meters: Meters,
        identity: Identity,
        disk: Disk,
        store_path: Path,
        leases: Leases,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._saved_offsets = saved_offsets
        self._clients = clients
        self._polls = polls
        self._offset_queries = offset_queries
        self._levels = levels
        self._transactions = transactions
        self._timers = timers
        self._meters = meters
        self._identity = identity
        self._disk = disk
        self._store_path = store_path
        self._leases = leases

    async def delete_topic(self, topic: str) -> bool:
        """Also its consumer offsets and consume queues. False: there was no such topic. Raises what
        the store raises: when its log takes nothing, nothing is done.

        All of it before anything is waited for: a send may make the topic again at any moment, and
        what it stores then is the new topic's.
        """
        logged: asyncio.Future[None] | None = None

        def forget() -> None:
            nonlocal logged
            self._leases.check_forget(topic=topic)
            self._store.delete_topic(topic)
            self._offsets.remove_topic(topic)
            logged = self._leases.forget(topic=topic)
            for queue_id in queue_ids:
                self._polls.wake_pulls(topic, queue_id)

        queue_ids = self._store.queues(topic)
        removed = await self._topics.remove(topic, forget)
        if removed:  # by time, a kill could leave them to a topic that is made again
            await self._saved_offsets.save()
        if logged is not None:
            await asyncio.shield(logged)
        return removed

    async def delete_group(self, consumer_group: str, *, remove_offsets: bool) -> bool:
        """False: there was no such group. Raises as `delete_topic` does.

        A consumer may make the group again at any moment, so all of it is done at once; and a
        deletion that fails when it is saved leaves nothing that a second one would not find.
        """
        logged: asyncio.Future[None] | None = None

        def forget() -> None:
            nonlocal logged
            if remove_offsets:
                self._leases.check_forget(consumer_group=consumer_group)
                self._offsets.remove_group(consumer_group)
                logged = self._leases.forget(consumer_group=consumer_group)

        deleted = self._groups.remove(consumer_group, forget)
        # The group last: a kill before that leaves one that begins anew, not what a group of its
        # name would go on from.
        if deleted and remove_offsets:
            await self._saved_offsets.save()
        if logged is not None:
            await asyncio.shield(logged)
        if deleted:
            await self._groups.save()
        return deleted

    def status(self) -> BrokerStatus:
        usage = self._disk.usage(self._store_path)
        one, meters, store = self._identity, self._meters, self._store
        return BrokerStatus(
            cluster=one.cluster,
            broker_name=one.broker_name,
            broker_id=one.broker_id,
            broker_address=one.address,
            version=one.version,
            start_timestamp_ms=one.start_timestamp_ms,
            min_physical_offset=store.min_physical_offset,
            max_physical_offset=store.end_offset,
            flushed_physical_offset=store.flushed_offset,
            read_only_reason=store.flush.read_only_reason,
            messages_in_total=meters.messages_in,
            messages_out_total=meters.messages_out,
            dead_letters_total=meters.dead_letters,
            corrupted_records_total=meters.corrupted_records,
            store_path=str(self._store_path),
            disk_free_bytes=usage.free,
            disk_total_bytes=usage.used + usage.free,
            parked_pulls=self._polls.parked_pulls,
            parked_pops=self._polls.parked_pops,
            delayed_messages=self._delayed(),
            resident_memory_bytes=resident_memory(),
        )

    def _delayed(self) -> dict[str, int]:
        waiting = self._timers.waiting
        return self._levels.undelivered() | ({"timers": waiting} if waiting else {})

    def measure(self, broker_permission: int) -> None:
        """Brings the gauges up to date: cheap enough for every few seconds."""
        leases = self._leases.counts()
        self._meters.half_messages(self._transactions.by_topic())
        store, clients = self._store, self._clients.all()
        for name, value in (
            ("broker_permission", broker_permission),
            ("topic_number", len(self._topics.table)),
            ("consumer_group_number", len(self._groups.table)),
            ("producer_connections", sum(bool(one.producer_groups) for one in clients)),
            ("consumer_connections", sum(bool(one.consumers) for one in clients)),
            ("storage_size", store.end_offset - store.min_physical_offset),
            ("storage_flush_behind_bytes", store.end_offset - store.flushed_offset),
            ("parked_pulls", self._polls.parked_pulls),
            ("parked_pops", self._polls.parked_pops),
            ("pop_leased_messages", leases.leased),
            ("pop_waiting_messages", leases.waiting),
            ("pop_blocked_message_groups", leases.blocked_groups),
            ("timing_messages", self._timers.waiting),
            ("store_read_only", bool(store.flush.read_only_reason)),
        ):
            self._meters.set(name, value)
        for group in self._groups.table.all():
            if is_system_group(group.consumer_group):
                continue  # its offsets are the broker's own marks: nobody falls behind
            for topic in self._offsets.topics_of(group.consumer_group):
                lag = self._offset_queries.lag(group.consumer_group, topic)
                self._meters.lag(topic, group.consumer_group, lag)


def resident_memory() -> int:
    """Bytes of memory that this process holds; 0 where the system does not tell."""
    try:
        pages = int(_STATM.read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
