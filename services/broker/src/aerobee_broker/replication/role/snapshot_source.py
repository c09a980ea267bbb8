"""Take the snapshot that a master sends to a replica which copies or cuts its log."""

from __future__ import annotations

import asyncio

from aerobee_broker.broker import Broker
from aerobee_broker.errors import NotMaster
from aerobee_broker.replication.log import snapshot
from aerobee_broker.replication.log.snapshot import Snapshot
from aerobee_broker.replication.role.replica_store import ReplicaStore
from aerobee_wire.checked_json import encode


class SnapshotSource:
    """Take snapshots of the master of one epoch."""

    def __init__(self, own: ReplicaStore, broker: Broker, epoch: int) -> None:
        self._own = own
        self._broker = broker
        self._epoch = epoch

    async def take(self, epoch: int, log_begin: int) -> Snapshot:
        """Return a snapshot of the tables, after all its contents are confirmed.

        All tables are captured in one iteration of the event loop. The snapshot is for a replica
        whose log begins at the physical offset `log_begin`, or where this log begins if that is
        higher.

        Raises NotMaster if `epoch` is not the epoch of this master, FlushTimeout, and the errors of
        the store.
        """
        if epoch != self._epoch:
            raise NotMaster(f"this broker is master of epoch {self._epoch}, not of {epoch}")
        own, store = self._own, self._own.store
        tables = {name: file.encoded() for name, file in own.saved.files.items()}
        files = {snapshot.TABLES[name]: data for name, (data, _) in tables.items()}
        files[snapshot.DELAY_OFFSETS] = encode(own.tables.delay_offsets.to_json())
        files[snapshot.LEASES] = encode(self._broker.consuming.leases.table.to_json())
        files[snapshot.DELETED_TOPICS] = encode(store.deleted_topics)
        files[snapshot.FRONTS] = snapshot.encode_fronts(store.fronts(log_begin))
        position = store.end_offset
        confirmed = [logged.confirmed for _, logged in tables.values() if logged.confirmed]
        await asyncio.gather(self._broker.log.flushed(position), *confirmed)
        return Snapshot(position, files)
