"""What the preparation of a slave, and the snapshot of a master, ask of the rest of a broker: for a
simulated replica."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from aerobee_broker.delivery.delay.progress import DelayOffsets
from aerobee_broker.delivery.pop.lease_table import LeaseTable
from aerobee_broker.delivery.standby import WarmLeases
from aerobee_broker.metadata.persistent_table import JsonFile, PersistentTable
from aerobee_broker.metadata.table import Table
from aerobee_broker.replication.in_sync.counts import ReplicaCounts
from aerobee_broker.replication.log.diverged import DivergedFiles
from aerobee_broker.replication.log.snapshot import Snapshot
from aerobee_broker.replication.role.enrollment import EnrollmentFile
from aerobee_broker.replication.role.preparation import Preparation, ReopenStore
from aerobee_broker.replication.role.snapshot_source import SnapshotSource
from aerobee_broker.replication.role.unfinished import UnfinishedFile
from aerobee_broker.replication.role.warm_lite import WarmLite
from aerobee_broker.store.format import FormatFile
from aerobee_broker.store.message_store import MessageStore
from support.disk.stores import PATH
from support.replication.journalled_tables import ReplicaTables

if TYPE_CHECKING:
    from support.replication.replica import SimulatedReplica

CONFIG = PATH / "config"


@dataclass
class _Environment:
    flusher: Any
    writer: Any
    disk: Any
    clock: Any
    options: Any
    format: FormatFile
    path: Any = PATH


class _Tables:
    """Those that are not journalled."""

    def __init__(self, replica: SimulatedReplica, writer: Any) -> None:
        self._replica = replica
        self._writer = writer
        self.delay_offsets = DelayOffsets(replica.group.clock)
        self.saved_delay_offsets = self.file_of(self.delay_offsets, "delayOffset.json")

    def file_of(self, table: Table, name: str) -> PersistentTable:
        return PersistentTable(table, JsonFile(self._replica.disk, CONFIG / name), self._writer)


class ReplicaParts:
    """A ReplicaStore over the store that the replica has open."""

    def __init__(self, replica: SimulatedReplica, worker: Any) -> None:
        self.store = replica.opened()
        self.epochs = replica.epochs
        self.replica = replica.identity
        self.in_use = asyncio.Lock()
        options = SimpleNamespace(broker_cluster_name="c")
        clock = replica.group.clock
        store_format = FormatFile(replica.disk, PATH)
        store_format.load()
        self.environment = _Environment(worker, worker, replica.disk, clock, options, store_format)
        self.unfinished = UnfinishedFile(replica.disk, CONFIG / "unfinished.json")
        self.unfinished.load()
        self.enrollment = EnrollmentFile(replica.disk, CONFIG / "enrollment.json")
        self.enrollment.load()
        self._worker = worker
        self.diverged = DivergedFiles(replica.disk, PATH / "diverged")
        self.counts = ReplicaCounts()
        tables: Any = _Tables(replica, worker)
        environment: Any = self.environment
        self.tables = tables
        self.lite = WarmLite(environment, self.store, tables)
        self.own_tables = ReplicaTables(
            replica.disk, self.store, replica.group.clock, worker, parents=self.lite.lines
        )
        self.saved = self.own_tables.saved
        self.replay = self.own_tables.replay
        tables.topics = self.saved.tables.topics
        self.own_tables.restore()
        self.lite.load(self.replay.parents())
        self.leases = _leases(replica, self.store, worker)

    @property
    def is_unfinished(self) -> bool:
        return self.unfinished.is_due(self.store.end_offset)

    async def raise_generation(self, known: int) -> None:
        generation = max(self.enrollment.generation, known) + 1
        await self._worker(partial(self.enrollment.start, generation))

    def preparation(self, fetch: Callable[[int, int], Awaitable[Snapshot]]) -> Preparation:
        own: Any = self
        return Preparation(own, fetch)

    def snapshots(self, log: Any, epoch: int) -> SnapshotSource:
        """As master."""
        own: Any = self
        broker: Any = _Broker(log)
        return SnapshotSource(own, broker, epoch)


def _leases(replica: SimulatedReplica, store: MessageStore, writer: Any) -> WarmLeases:
    table = LeaseTable(replica.group.clock, lambda: leases.position)
    file = PersistentTable(table, JsonFile(replica.disk, CONFIG / "popLeases.json"), writer)
    leases = WarmLeases(store, table, file, "rmq_sys_REVIVE_LOG_c")
    return leases


class _Broker:
    def __init__(self, log: Any) -> None:
        self.log = log
        self.consuming = self.leases = self
        self.table = LeaseTable(log.store._clock, lambda: 0)


__all__ = ["ReopenStore", "ReplicaParts"]
