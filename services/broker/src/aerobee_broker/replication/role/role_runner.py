"""Run the roles of one process, one at a time, and serve the RPCs of the present role."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.errors import NotServed
from aerobee_broker.replication.log.sender import CoordinatedSet
from aerobee_broker.replication.role.master import MasterRole
from aerobee_broker.replication.role.preparation import ReopenStore
from aerobee_broker.replication.role.replica_store import ReplicaStore
from aerobee_broker.replication.role.slave import FindMaster, SlaveRole
from aerobee_broker.wiring.name_server_registration import NameServerRegistration
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import Service
from aerobee_chassis.rpc.switch import Switch

ISOLATED = "a master without contact to etcd and to a replica in sync: another may be master by now"
Ended = Callable[[MasterRole], Awaitable[None]]


class RoleRunner:
    """Run one role at a time, with `run_master` or `run_slave`, on the opened store `own`.

    `epoch` is the last epoch in which this replica was master, or 0 if it never was.
    """

    def __init__(
        self,
        own: ReplicaStore,
        name_servers: NameServerRegistration,
        switch: Switch,
        server: Server,
        reader: Worker,
    ) -> None:
        """Create the runner without a role.

        `reader` is the thread on which masters read the log for slaves that are far behind.
        """
        self.own = own
        self._name_servers = name_servers
        self._switch = switch
        self._server = server
        self._reader = reader
        self.slave: SlaveRole | None = None
        self.master: MasterRole | None = None  # while it serves
        self._moved = asyncio.Event()  # set when the role has changed since the last wait
        self._served: list[Service] = []  # the services of that master
        self.is_isolated = False
        self.epoch = 0
        self.taken = asyncio.Event()  # set when the first role was taken

    @property
    def serves(self) -> bool:
        """Return whether this replica is healthy.

        It is unhealthy if its master refuses it, its store does not open, or its disk does not
        accept writes.
        """
        if self.own.trouble or self.is_isolated:
            return False
        if self.slave is not None and self.slave.refusal:
            return False
        return not (self.own.is_open and self.own.store.flush.read_only_reason)

    @property
    def is_following(self) -> bool:
        """Return whether a stream to a master is open."""
        return self.slave is not None and self.slave.is_following

    async def run_master(
        self,
        epoch: int,
        members: CoordinatedSet,
        ended: Ended,
        ends_at: Callable[[int], bool] = lambda _: True,
    ) -> None:
        """Serve as master of `epoch` until `ended` returns or raises.

        `ends_at` is that of `MasterRole`.

        After that the store is reopened, because the log of another master may differ from this
        log. If the call is cancelled, the role stops in order, as at shutdown.

        Raises the errors of `MasterRole.start` and `ReplicaStore.reopen`.
        """
        role = MasterRole(self.own, members, self._name_servers, self._reader, ends_at)
        try:
            self._served = await role.start(epoch, self._server)
            self._switch.serve(self._served)
            self.master, self.epoch = role, epoch
            self.own.note_current(epoch)
            self._moved.set()
            structlog.get_logger().info("role_taken", role="master", epoch=epoch)
            self.taken.set()
            await ended(role)
        except BaseException:
            self.master, self.is_isolated = None, False
            await self._switch.end_calls(but=role.for_slaves)
            await role.stop()
            await self._switch.end_calls()
            raise
        self.master, self.is_isolated = None, False
        structlog.get_logger().warning("role_left", role="master", epoch=epoch)
        await self._switch.end_calls()
        await role.stop_deposed()
        await self.own.reopen()

    async def set_isolated(self, master: MasterRole, *, is_isolated: bool) -> None:
        """Serve only slaves while another master may have replaced `master`.

        During that time clients should look for another master.
        """
        if master is not self.master or is_isolated == self.is_isolated:
            return
        self.is_isolated = is_isolated
        log = structlog.get_logger().bind(epoch=self.epoch)
        if is_isolated:
            log.error("master_isolated")
            await self._switch.end_calls(but=master.for_slaves)
        else:
            log.warning("master_in_contact")
            self._switch.serve(self._served)

    async def wait_for_mastership(self, epoch: int) -> None:
        """Wait until this replica serves as master of `epoch` or of a later one."""
        while self.master is None or self.epoch < epoch:
            self._moved.clear()
            await self._moved.wait()

    async def run_slave(
        self,
        find_master: FindMaster,
        broker_id: int,
        on_broken: Callable[[], None] = lambda: None,
    ) -> None:
        """Run as slave of the master that `find_master` returns, until the call is cancelled.

        The slave is registered as `broker_id`. `on_broken` is called when a stream has ended.
        Raises OSError or MqError if the disk fails.
        """
        own = self.own
        structlog.get_logger().info("role_taken", role="slave", epoch=own.highest_epoch())
        while True:
            registration = self._name_servers.make(broker_id, own.tables, own.highest_epoch)
            await self._name_servers.switch(registration)
            self.taken.set()
            slave = self.slave = SlaveRole(
                own, broker_id, find_master, registration.refresh, on_broken
            )
            try:
                await self._serve_reads(slave)
            except ReopenStore:
                await own.reopen()

    async def _serve_reads(self, slave: SlaveRole) -> None:
        """Serve reads while the slave runs. Raises the errors of `SlaveRole.run`."""
        self._switch.serve(slave.reads.services())
        try:
            await slave.run()
        finally:
            self.slave = None
            slave.reads.close()
            await self._switch.end_calls()

    async def register_candidate(self, broker_id: int) -> None:
        """Register a candidate, so that operators find it and clients wait for its master.

        Do nothing if an earlier role has registered this process.
        """
        if not self._name_servers.is_registered:
            own = self.own
            await self._name_servers.switch(
                self._name_servers.make(broker_id, own.tables, own.highest_epoch)
            )

    def refusal(self) -> NotServed:
        """Return the error for a call that the present role does not serve."""
        if self.own.trouble:
            return NotServed(f"a replica whose store does not open ({self.own.trouble})", "")
        if self.is_isolated:
            return NotServed(ISOLATED, "")
        if self.slave is None:
            return NotServed("about to take a role", "")
        return self.slave.not_served()
