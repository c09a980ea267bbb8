"""A broker group that only elects: processes of three replicas on a simulated etcd, and rules for
each change of its keys.

A process elects whenever it may, wants sets at random while it is master, and is killed, isolated
or restarted, at times with an empty store. What it would have confirmed is not in the model: the
rules speak of who may be elected and of whom a master waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable

from aerobee_broker.replication.election.coordinators.coordinator import (
    CoordinatorAway,
    Mastership,
    View,
)
from aerobee_broker.replication.election.coordinators.etcd_coordinator import EtcdCoordinator
from aerobee_broker.replication.election.coordinators.mastership_keeper import (
    MastershipKeeper,
    MayRestore,
)
from aerobee_broker.replication.identity import Replica
from support.clock.virtual_loop import LoopClock
from support.etcd.coordinator_contract import candidacy
from support.etcd.simulated_etcd import Faults, SimulatedEtcd

REPLICAS = 3
PREFIX = "/aerobee/cluster/broker/"
MakeKeeper = Callable[[EtcdCoordinator, Mastership, MayRestore], MastershipKeeper]

FAULTS = Faults(
    lost_request=0.05,
    lost_answer=0.1,
    late_write=0.1,
    early_lease=0.1,
    late_lease=0.2,
    delay_s=0.1,
)


class Broken(AssertionError):
    """A rule does not hold."""


class Process:
    """One run of one replica."""

    def __init__(self, model: ElectionModel, replica: Replica) -> None:
        self.replica = replica
        self.client = model.etcd.client()
        self.keeper: MastershipKeeper | None = None  # of the epoch that it serves in
        # The replicas that must have a message, by the rule of InSyncSet: all of the last settled
        # set, and of the sets wanted since.
        self.waited_for = frozenset[Replica]()
        self._model = model
        self._coordinator = EtcdCoordinator(
            self.client,
            PREFIX,
            replica,
            lease_ttl_s=4,
            clock=LoopClock(),
            rng=random.Random(model.rng.random()),
        )
        self._coordinator.announce(candidacy(replica))
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(_retrieve)

    async def kill(self) -> None:
        """Its leases stay until they end."""
        self.keeper = None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self.client.cut = True
        await self._coordinator.close()

    async def _run(self) -> None:
        rng, view = self._model.rng, None
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rng.uniform(0.1, 2)):
                    view = await self._coordinator.changed(view)
            if view is None:
                continue
            if view.state is not None:  # as a log that has followed each master
                self._coordinator.announce(candidacy(self.replica, epoch=view.state.epoch))
            with contextlib.suppress(CoordinatorAway):
                elected = self._coordinator.claimed_in(view) or await self._elect(view)
                if elected is not None:
                    await self._serve(elected)

    async def _elect(self, view: View) -> Mastership | None:
        """Claims when there is no master, and at times although there is one."""
        rng = self._model.rng
        await asyncio.sleep(rng.uniform(0, 0.5))
        first = view.state is None and self.replica.replica_id == 0
        epoch = 0 if view.state is None else view.state.epoch
        if not (first or view.may_be_elected(candidacy(self.replica, epoch=epoch))):
            return None
        if view.master is not None and rng.random() < 0.7:
            return None
        return await self._coordinator.elect(view)

    async def _serve(self, elected: Mastership) -> None:
        self._model.began(self, elected)
        keeper = self.keeper = self._model.make_keeper(self._coordinator, elected, loses_no_data)
        self.waited_for = keeper.in_sync
        keeping = asyncio.create_task(keeper.run())
        rng = self._model.rng
        try:
            while not keeping.done():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(rng.uniform(0.05, 2)):
                        self.waited_for = await keeper.settled()
                        await asyncio.wait([keeping])
                if rng.random() < 0.05:
                    await self._coordinator.resign(keeper.mastership)
                    return
                others = [each for each in self._model.replicas if rng.random() < 0.6]
                self.waited_for |= {self.replica, *others}
                keeper.want(frozenset(others), 0)
        finally:
            self.keeper = None
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping


async def loses_no_data(_: frozenset[Replica]) -> bool:
    """Not called: the etcd of this model keeps its data."""
    raise AssertionError("etcd has lost its data")


def _retrieve(task: asyncio.Task[None]) -> None:
    """Retrieve the error of a task, which `kill` raises.

    Otherwise the garbage collector logs it if the model ends before `kill`. The log parses the
    traceback with `ast`, and Python 3.11 fails if this interrupts another `ast.parse`.
    """
    if not task.cancelled():
        task.exception()


class ElectionModel:
    def __init__(self, seed: int, make_keeper: MakeKeeper = MastershipKeeper) -> None:
        self.rng = random.Random(seed)
        self.etcd = SimulatedEtcd(self.rng, FAULTS)
        self.make_keeper = make_keeper
        self.replicas = [Replica(number, f"{number}-0") for number in range(REPLICAS)]
        self.epochs = 0  # that have had a master
        self.changes = 0  # of sets
        self._processes: list[Process] = []
        self._served: dict[int, Process] = {}
        self._stores = 1
        self._epoch, self._in_sync = 0, frozenset[Replica]()
        self.etcd.on_write = self._check

    async def run(self, seconds: float) -> None:
        """Raises Broken."""
        self._processes = [Process(self, replica) for replica in self.replicas]
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            await asyncio.sleep(self.rng.uniform(0.1, 3))
            await self._disturb()
        self.etcd.faults = Faults()
        for process in self._processes:
            await process.kill()
        if self.etcd.broken is not None:
            raise self.etcd.broken

    def began(self, process: Process, elected: Mastership) -> None:
        """R1: an epoch is served by one run of one replica."""
        other = self._served.setdefault(elected.epoch, process)
        if other is not process:
            raise Broken(f"epoch {elected.epoch} is served twice")
        self.epochs += 1

    async def _disturb(self) -> None:
        number = self.rng.randrange(REPLICAS)
        process = self._processes[number]
        match self.rng.randrange(7):
            case 0:
                await process.kill()
                if self.rng.random() < 0.2 and not self._only_member(process.replica):
                    self.replicas[number] = Replica(number, f"{number}-{self._stores}")
                    self._stores += 1
                self._processes[number] = Process(self, self.replicas[number])
            case 1:
                process.client.cut = not process.client.cut
            case 2:
                self.etcd.go_away()
                await asyncio.sleep(self.rng.uniform(0.1, 10))
                self.etcd.come_back()
            case 3:
                self.etcd.end_leases()
            case 4:
                self.etcd.compact()
            case _:
                process.client.cut = False

    def _only_member(self, replica: Replica) -> bool:
        """Without it nobody could be elected ever again."""
        return self._in_sync <= {replica} or not self._in_sync

    def _check(self, key: str, value: bytes | None) -> None:
        """After each write."""
        if key != PREFIX + "state":
            return
        if value is None:
            raise Broken("the state was deleted")
        content = json.loads(value)
        epoch, master = content["epoch"], _replica(content["master"])
        in_sync = frozenset(map(_replica, content["inSync"]))
        if epoch == self._epoch:
            self.changes += 1
            self._check_waits(epoch, in_sync)
        else:
            self._check_election(epoch, master, in_sync)
        self._epoch, self._in_sync = epoch, in_sync

    def _check_election(self, epoch: int, master: Replica, in_sync: frozenset[Replica]) -> None:
        """R1 and R6."""
        if epoch != self._epoch + 1:
            raise Broken(f"epoch {epoch} follows {self._epoch}")
        if self._epoch and master not in self._in_sync:
            raise Broken(f"{master} was elected, not one of {set(self._in_sync)}")
        if in_sync != {master}:
            raise Broken(f"the set begins as {set(in_sync)}")

    def _check_waits(self, epoch: int, in_sync: frozenset[Replica]) -> None:
        """R3, at the moment when the set changes at the coordinator."""
        for process in self._processes:
            keeper = process.keeper
            if keeper is None or keeper.mastership.epoch != epoch:
                continue
            if not in_sync <= process.waited_for:
                raise Broken(f"{set(in_sync - process.waited_for)} can be elected unawaited")

    def check_waits_now(self) -> None:
        """R3, at any other moment."""
        self._check_waits(self._epoch, self._in_sync)


def _replica(content: dict[str, object]) -> Replica:
    return Replica(int(str(content["id"])), str(content["storeId"]))
