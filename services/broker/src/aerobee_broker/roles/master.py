"""A master, for one epoch: from its promotion, over the service of clients and slaves, to its end.

    what was taken in is synced → epoch entry, synced → all of the log confirmed, derived
    → delivery restored → served → registered as id 0

Everything in its log counts at once, for a new master is the whole in-sync set.
"""

from __future__ import annotations

import asyncio
from functools import partial

import structlog
from aerobee.broker.v1 import replication_pb2

from aerobee_broker.broker import Broker
from aerobee_broker.cluster.peers import Peers
from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.errors import Deposed
from aerobee_broker.replication.in_sync import InSyncRules, InSyncSet
from aerobee_broker.replication.leader import Leader, SetAtCoordinator
from aerobee_broker.roles.presence import Presence
from aerobee_broker.roles.replica_store import ReplicaStore
from aerobee_broker.roles.snapshot_source import SnapshotSource
from aerobee_broker.rpc.replication import ReplicationRpcs
from aerobee_broker.store.follow import PIECE_MS
from aerobee_broker.upkeep import periodic_work
from aerobee_chassis.background import BackgroundTask, PeriodicTask
from aerobee_chassis.lifecycle import Lifecycle, Step
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import Service, bind

MASTER_ID = 0
DISK_S = 0.1  # between two looks whether the store takes writes
_SERVICE = replication_pb2.DESCRIPTOR.services_by_name["ReplicationService"]


class MasterRole:
    """`over`: done when a slave has told of a higher epoch, with that epoch, or when the store
    takes no writes any more, with 0."""

    def __init__(
        self, own: ReplicaStore, members: SetAtCoordinator, presence: Presence, reader: Worker
    ) -> None:
        """`reader`: a thread that reads what slaves lack. To be made on the loop."""
        self.over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._own = own
        self._members = members
        self._presence = presence
        self._reader = reader
        self._lifecycle = Lifecycle()
        self._broker: Broker | None = None
        self._deposed = False
        self._progressed = asyncio.Event()  # a replica has moved since it was last waited for
        self.for_slaves: list[Service] = []  # what slaves call, since it has started

    async def start(self, epoch: int, server: Server) -> list[Service]:
        """Returns what it serves from now on. Raises what the store raises, OSError; ValueError
        where this log knows of that epoch already; ReplicaRefused: this replica is unfinished."""
        own, store = self._own, self._own.store
        await own.flush_rest()
        own.check_finished()
        end = store.end_offset
        history = own.epochs.history.begin(epoch, own.replica.store_id, end)
        await own.environment.flusher(partial(own.epochs.save, history))
        await self._confirm_all(end)
        leader = self._leader(end)
        own.keep_log_from(leader.in_sync.needed_from)
        store.flush.open_to_appends()
        identity = self._presence.as_broker(MASTER_ID)
        registration = self._presence.make(MASTER_ID, own.tables, lambda: epoch)
        broker = self._broker = Broker(
            own.environment,
            store,
            own.tables,
            identity,
            announce=registration.announce,
            spread=Peers(registration, identity).create,
            replicas=leader,
            table_upkeep=own.table_upkeep,
        )
        leader.on_progress(broker.commit.advance)
        leader.on_progress(self._progressed.set)
        broker.commit.advance()
        # Stopped last: what the others still write reaches the slaves, and is confirmed.
        await self._lifecycle.start(
            BackgroundTask("in-sync set", leader.run),
            Step(stop=self._until_replicated),
            *broker.components(),
            Step(stop=broker.end_long_calls),
            *periodic_work(broker, own.tables, own.environment, server),
            PeriodicTask("disk", DISK_S, self._look_at_disk),
        )
        await self._presence.enter(registration)
        snapshots = SnapshotSource(own, broker, epoch)
        self.for_slaves = [bind(_SERVICE, ReplicationRpcs(leader.serve, snapshots.take))]
        return [*broker.services(), *self.for_slaves]

    async def stop(self) -> None:
        """In order: what it has is flushed, and its tables are saved, while slaves still follow."""
        await self._lifecycle.stop()

    async def _until_replicated(self) -> None:
        """All replicas of the set have everything: whoever is elected goes on without a cut. Those
        that do not answer leave the set before the wait ends."""
        own, options = self._own, self._own.environment.options
        wait_s = (options.ha_max_time_slave_not_catchup + options.ha_send_heartbeat_interval) / 1000
        if self._deposed or own.store.flush.read_only_reason:
            return
        try:
            async with asyncio.timeout(wait_s):
                while own.store.confirmed_offset < own.store.end_offset:
                    self._progressed.clear()
                    await self._progressed.wait()
        except TimeoutError:
            structlog.get_logger().warning(
                "stopped_ahead_of_slaves",
                bytes=own.store.end_offset - own.store.confirmed_offset,
            )

    async def stop_deposed(self) -> None:
        """Another replica is master: what waits for replicas ends at once, unknown."""
        self._deposed = True
        if self._broker is not None:
            self._own.store.flush.close_to_appends("this broker is no longer master")
            self._broker.commit.give_up(Deposed())
        await self._lifecycle.stop()

    async def _confirm_all(self, end: int) -> None:
        """In slices: a blocked loop renews no lease."""
        clock, follower = self._own.environment.clock.real, self._own.store.follower
        replay = self._own.replay
        follower.confirm(end, clock.monotonic_ms())
        while follower.underived or follower.halted:
            replay.arrived(follower.derive(clock.monotonic_ms() + PIECE_MS))
            await asyncio.sleep(0)
        replay.apply()
        await self._own.leases.catch_up()
        await self._own.leases.try_save()  # from which the master's own are loaded

    def _leader(self, end: int) -> Leader:
        own, options = self._own, self._own.environment.options
        rules = InSyncRules(
            synchronous=options.is_synchronous,
            in_sync_replicas=options.required_replicas,
            auto_in_sync_replicas=options.enable_auto_in_sync_replicas,
            min_in_sync_replicas=options.min_in_sync_replicas,
            max_not_caught_up_ms=options.ha_max_time_slave_not_catchup,
            max_gap=options.ha_max_gap_not_in_sync,
        )
        return Leader(
            own.store,
            own.describe,
            InSyncSet(own.replica, end, rules),
            self._members,
            timing=own.timing,
            reader=self._reader,
            clock=own.environment.clock.real,
            on_outdated=self._end,
        )

    def _end(self, epoch: int) -> None:
        if not self.over.done():
            self.over.set_result(epoch)

    async def _look_at_disk(self) -> None:
        reason = self._own.store.flush.read_only_reason
        if reason and not self.over.done():
            structlog.get_logger().error("master_cannot_write", reason=reason)
            self._end(0)
