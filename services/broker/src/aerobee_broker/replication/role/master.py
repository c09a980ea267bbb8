"""Run a master for one epoch: start, serve clients and slaves, stop.

    flush the received log → write the epoch entry, sync → confirm and derive the whole log
    → restore delivery → serve → register as id 0

The whole log of a new master counts as confirmed at once, because the master is the only member of
the in-sync set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import structlog
from aerobee.broker.v1 import replication_pb2

from aerobee_broker.broker import Broker
from aerobee_broker.cluster.peers import Peers, broker_caller
from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.config import BrokerOptions
from aerobee_broker.errors import Deposed, MasterOutdated
from aerobee_broker.replication.errors import NotCaughtUp, NotElectable
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.in_sync.in_sync_set import InSyncRules, InSyncSet
from aerobee_broker.replication.in_sync.quorum import Quorum
from aerobee_broker.replication.log.sender import CoordinatedSet, ReplicationSender
from aerobee_broker.replication.log.status import MasterStatus, master_status
from aerobee_broker.replication.role.replica_store import ReplicaStore
from aerobee_broker.replication.role.snapshot_source import SnapshotSource
from aerobee_broker.replication.rpc.stream import ReplicationRpcs
from aerobee_broker.upkeep import periodic_work
from aerobee_broker.wiring.name_server_registration import NameServerRegistration
from aerobee_chassis.background import BackgroundTask, PeriodicTask
from aerobee_chassis.lifecycle import Lifecycle, Step
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import Service, bind
from aerobee_wire.route import MASTER_ID

DISK_S = 0.1  # seconds between two checks of whether the store accepts writes
# Seconds after a handover in which a successor must take over. Then sends are accepted again.
SUCCESSION_S = 5.0
_SERVICE = replication_pb2.DESCRIPTOR.services_by_name["ReplicationService"]


class MasterRole:
    """Serve clients and slaves as master of one epoch.

    `over` is a future. Its result is a higher epoch, if one is known, or 0 if the store no longer
    accepts writes.
    """

    def __init__(
        self,
        own: ReplicaStore,
        members: CoordinatedSet,
        name_servers: NameServerRegistration,
        reader: Worker,
        ends_at: Callable[[int], bool],
    ) -> None:
        """Create the role; call this on the event loop.

        `reader` is the thread that reads the log for slaves that are far behind. `ends_at` returns
        whether this master must end because a slave knows the given higher epoch.
        """
        self.over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._own = own
        self._members = members
        self._name_servers = name_servers
        self._reader = reader
        self._ends_at = ends_at
        self._lifecycle = Lifecycle()
        self._broker: Broker | None = None
        self._sender: ReplicationSender | None = None
        self._epoch = 0
        self._is_settled = False
        self._succession: asyncio.TimerHandle | None = None  # set while it waits for its successor
        self._deposed = False
        # Set when a replica has made progress since the last wait.
        self._progressed = asyncio.Event()
        self.for_slaves: list[Service] = []  # the services that slaves call; set by `start`

    async def start(self, epoch: int, server: Server) -> list[Service]:
        """Start the role and return the services of the port.

        Raises ValueError if this log already knows that epoch. Raises ReplicaRefused if this
        replica has not yet taken its master's tables. Raises OSError and the errors of the store.
        """
        own, store = self._own, self._own.store
        await own.flush_rest()
        own.check_finished()
        end, before = store.end_offset, own.epochs.history.quorums
        follows_another = own.epochs.history.newest_epoch > 0
        await self._begin(epoch, end)
        await self._confirm_all(end)
        self._epoch = epoch
        sender = self._sender = self._make_sender(end, before)
        own.keep_log_from(lambda: self._needed_from(sender))
        store.flush.open_to_appends()
        identity, options = self._name_servers.as_broker(MASTER_ID), own.environment.options
        registration = self._name_servers.make(MASTER_ID, own.tables, lambda: epoch)
        broker = self._broker = Broker(
            own.environment,
            store,
            own.tables,
            identity,
            announce=registration.announce,
            spread=Peers(registration, identity, partial(broker_caller, options)).create,
            replicas=sender,
            table_upkeep=own.table_upkeep,
        )
        broker.consuming.leases.journal.take_over(own.leases.hand_over(), own.leases.position)
        sender.on_progress(broker.commit.advance)
        sender.on_progress(self._progressed.set)
        broker.commit.advance()
        # The in-sync set is stopped last, so that slaves confirm the writes that the other
        # components make while they stop.
        await self._lifecycle.start(
            BackgroundTask("in-sync set", sender.run),
            Step(stop=self._until_replicated),
            *broker.components(),
            Step(stop=broker.end_long_calls),
            *periodic_work(broker, own.tables, own.environment, server),
            PeriodicTask("disk", DISK_S, self._look_at_disk),
        )
        if follows_another:
            broker.clients.expect_all()
        await self._name_servers.switch(registration)
        snapshots = SnapshotSource(own, broker, epoch)
        sender.serves()
        self.for_slaves = [bind(_SERVICE, ReplicationRpcs(sender.serve, snapshots.take))]
        return [*broker.services(), *self.for_slaves]

    async def _begin(self, epoch: int, end: int) -> None:
        own, options = self._own, self._own.environment.options
        store_id = own.replica.store_id
        quorum = Quorum(options.total_replicas, options.least_copies)
        known = None if options.is_elected else quorum  # the coordinator has the set itself
        await own.environment.flusher(
            partial(own.epochs.change, lambda history: history.begin(epoch, store_id, end, known))
        )

    async def use(self, options: BrokerOptions) -> None:
        """Put changed options into effect. Raises MqError if a topic cannot be saved."""
        if self._broker is not None:
            await self._broker.use(options)

    async def stop(self) -> None:
        """Flush the log and save the tables while slaves still follow, and then stop."""
        self._take_messages()
        await self._lifecycle.stop()

    def _needed_from(self, sender: ReplicationSender) -> int | None:
        """Return the physical offset from which slaves need the log.

        Return None if the disk is almost full: the log is then deleted although slaves lack it.
        """
        if self._own.store.cleaning.retention.forced:
            return None
        return sender.in_sync.needed_from()

    async def _until_replicated(self) -> None:
        """Wait until all replicas of the in-sync set have the whole log.

        The next elected master then continues without cutting its log. Replicas that do not answer
        leave the set before the wait ends.
        """
        options = self._own.environment.options
        wait_s = (options.ha_max_time_slave_not_catchup + options.ha_send_heartbeat_interval) / 1000
        if self._deposed or self._own.store.flush.read_only_reason:
            return
        behind = await self._unconfirmed(wait_s)
        if behind:
            structlog.get_logger().warning("stopped_ahead_of_slaves", bytes=behind)

    async def _unconfirmed(self, wait_s: float) -> int:
        """Wait for at most `wait_s`, and return how many bytes the in-sync set still lacks."""
        assert self._sender is not None, "it has started"
        store, in_sync = self._own.store, self._sender.in_sync
        try:
            async with asyncio.timeout(wait_s):
                while in_sync.confirmed < store.end_offset:
                    self._progressed.clear()
                    await self._progressed.wait()
        except TimeoutError:
            pass
        return max(0, store.end_offset - in_sync.confirmed)

    # ---- a successor ----

    def status(self) -> MasterStatus:
        assert self._sender is not None, "it has started"
        now_ms = self._own.environment.clock.real.monotonic_ms()
        sender, end = self._sender, self._own.store.written_offset
        return master_status(sender.in_sync, end, now_ms, sender.clock_offsets())

    def silent_ms(self) -> int:
        """Return for how many milliseconds at least one in-sync replica has not reported.

        Return 0 if this replica is the whole set, because no other replica can be elected then.
        """
        assert self._sender is not None, "it has started"
        heard_ms = self._sender.in_sync.heard_of_all_ms()
        now_ms = self._own.environment.clock.real.monotonic_ms()
        return 0 if heard_ms is None else now_ms - heard_ms

    def take_waits(self) -> list[int]:
        """Return how long flushes waited for replicas since the last call, in ms."""
        return [] if self._sender is None else self._sender.waits.take()

    async def hand_over(self, epoch: int, successor: Replica) -> int:
        """Stop accepting messages, wait until the whole set has the log, and return the log's end.

        `successor` must be in the set. If no successor takes over within SUCCESSION_S, this master
        accepts messages again.

        Raises MasterOutdated, NotElectable, NotCaughtUp. After an error this master continues as
        before.
        """
        sender, store = self._sender, self._own.store
        assert sender is not None, "it has started"
        if epoch != self._epoch:
            raise MasterOutdated(str(self._own.replica), self._epoch, epoch)
        self._check_in_sync(sender, successor)
        timeout_ms = self._own.environment.options.slave_timeout
        if self._succession is not None:
            self._succession.cancel()
        structlog.get_logger().warning("hands_over", successor=str(successor))
        store.flush.close_to_appends(f"this broker hands over to replica {successor}")
        # The timer also covers a call that is cancelled while it waits.
        loop = asyncio.get_running_loop()
        wait_s = timeout_ms / 1000
        self._succession = loop.call_later(wait_s + SUCCESSION_S, self._take_messages)
        behind = await self._unconfirmed(wait_s)
        if behind:
            self._take_messages()
            raise NotCaughtUp(behind, timeout_ms)
        try:
            self._check_in_sync(sender, successor)
        except NotElectable:
            self._take_messages()
            raise
        return store.end_offset

    def _check_in_sync(self, sender: ReplicationSender, successor: Replica) -> None:
        if successor not in sender.in_sync.members:
            members = ", ".join(sorted(map(str, sender.in_sync.members)))
            raise NotElectable(
                f"replica {successor} is not in sync, {members} are: wait until it has caught up "
                "(aerobee broker ha-status), or promote one of these"
            )

    def _take_messages(self) -> None:
        """Reopen the log for sends if no successor took over."""
        if self._succession is None:
            return
        self._succession.cancel()
        self._succession = None
        if not self._deposed:
            self._own.store.flush.open_to_appends()
            structlog.get_logger().warning("stays_master", epoch=self._epoch)

    def end(self, epoch: int) -> None:
        """End this role if `epoch` is higher than its own, and acknowledge nothing from now on."""
        if epoch > self._epoch:
            self._acknowledge_nothing()
            self._end(epoch)

    async def stop_deposed(self) -> None:
        """Stop after another replica became master.

        Calls that wait for replicas end at once; their outcome is unknown.
        """
        self._acknowledge_nothing()
        await self._lifecycle.stop()

    def _acknowledge_nothing(self) -> None:
        self._deposed = True
        if self._succession is not None:
            self._succession.cancel()
        if self._broker is not None:
            self._own.store.flush.close_to_appends("this broker is no longer master")
            self._broker.commit.give_up(Deposed())

    async def _confirm_all(self, end: int) -> None:
        """Confirm the log up to `end`, and derive its consume queues and index.

        The work is done in small steps, because a blocked event loop cannot renew the lease at
        etcd.
        """
        clock, follower = self._own.environment.clock.real, self._own.store.follower
        replay = self._own.replay
        follower.confirm(end, clock.monotonic_ms())
        follower.derive_over_damage()
        while follower.underived or follower.halted:
            replay.arrived(follower.derive(clock.monotonic_ms(), at_once=True))
            await asyncio.sleep(0)
        replay.apply()
        await self._own.leases.catch_up()
        await self._own.lite.stop()  # the master loads the files that this saves

    def _make_sender(self, end: int, before: tuple[Quorum, ...]) -> ReplicationSender:
        own, options = self._own, self._own.environment.options
        rules = InSyncRules(
            synchronous=options.is_synchronous,
            elected=options.is_elected,
            in_sync_replicas=options.required_replicas,
            auto_in_sync_replicas=options.enable_auto_in_sync_replicas,
            min_in_sync_replicas=options.min_in_sync_replicas,
            copies=options.total_replicas,
            before=before,
            max_not_caught_up_ms=options.ha_max_time_slave_not_catchup,
            max_gap=options.ha_max_gap_not_in_sync,
        )
        limited = options.ha_flow_control_enable
        copy_bytes_s = options.max_ha_transfer_byte_in_second if limited else None
        return ReplicationSender(
            own.store,
            # This replica may have noted a higher epoch, in which it must not confirm anything.
            lambda: replace(own.describe(), epoch=self._epoch),
            InSyncSet(own.replica, end, rules),
            self._members,
            timing=replace(own.timing, copy_bytes_s=copy_bytes_s),
            reader=self._reader,
            clock=own.environment.clock.real,
            on_outdated=self._look_at_epoch,
        )

    def _look_at_epoch(self, epoch: int) -> None:
        if self._ends_at(epoch):
            self._end(epoch)
        else:
            structlog.get_logger().error("epoch_not_known", epoch=epoch, own_epoch=self._epoch)

    def _end(self, epoch: int) -> None:
        if not self.over.done():
            self.over.set_result(epoch)

    async def _look_at_disk(self) -> None:
        reason = self._own.store.flush.read_only_reason
        if reason and not self.over.done():
            structlog.get_logger().error("master_cannot_write", reason=reason)
            self._end(0)
        if self._sender is not None and not self._is_settled:
            shown, history = self._sender.in_sync.shown, self._own.epochs.history
            self._is_settled = history.can_settle(self._epoch, shown)
            if self._is_settled:
                await self._settle()

    async def _settle(self) -> None:
        """Note that enough replicas know the quorum of this epoch. Log a failure."""
        own, epoch = self._own, self._epoch
        settle = partial(own.epochs.change, lambda history: history.settle(epoch))
        try:
            await own.environment.flusher(settle)
        except OSError as error:  # promotions then need more replicas than necessary
            structlog.get_logger().warning("epoch_not_settled", epoch=epoch, reason=str(error))

    async def give_up_unmet(self) -> None:
        """Accept sends although too few replicas know the quorum of this master.

        The operator has given up the other replicas.
        """
        assert self._sender is not None, "it has started"
        await self._settle()
        self._sender.in_sync.give_up_unmet()
        self._progressed.set()
        if self._broker is not None:
            self._broker.commit.advance()
