"""A replica of a group with etcd whose store is reopened while it is about to become master."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from aerobee_broker.replication.election import elections
from aerobee_broker.replication.election.coordinators.coordinator import Coordinator, View
from aerobee_broker.replication.election.coordinators.etcd_coordinator import EtcdCoordinator
from aerobee_broker.replication.election.elections import Elections
from aerobee_broker.replication.role.preparation import Preparation, ReopenStore
from aerobee_broker.replication.role.replica_store import ReplicaStore
from aerobee_wire.status import Code
from support.clock.polling import until
from support.simulation.client import STRICT
from support.simulation.cluster import SimulatedCluster, simulated
from support.simulation.node import BrokerNode
from support.simulation.process_loop import PROCESS


async def begun(cluster: SimulatedCluster) -> tuple[BrokerNode, BrokerNode, ReplicaStore]:
    """Return the master, a slave, and the store of that slave."""
    await cluster.begin(3, STRICT, elected=True)
    master = await cluster.settle()
    slave = next(node for node in cluster.nodes if node is not master)
    assert slave.roles is not None
    return master, slave, slave.roles.own


def reopen_at_next_stream(patch: pytest.MonkeyPatch, own: ReplicaStore) -> None:
    """The store of one replica is reopened once, as after a cut, and that takes a second."""
    good, left, is_due = Preparation.prepare, [own], Preparation.is_due
    good_open = ReplicaStore.open

    async def prepare(self: Preparation, *agreed: object) -> None:
        if self._own in left:
            left.clear()
            raise ReopenStore("confirmed messages were cut")
        await good(self, *agreed)  # type: ignore[arg-type]

    async def slow_open(self: ReplicaStore) -> None:
        await asyncio.sleep(1 if self is own else 0)
        await good_open(self)

    def due(self: Preparation) -> bool:
        return self._own in left or is_due.fget(self)  # type: ignore[attr-defined]

    patch.setattr(Preparation, "is_due", property(due))
    patch.setattr(Preparation, "prepare", prepare)
    patch.setattr(ReplicaStore, "open", slow_open)


def break_streams(cluster: SimulatedCluster, one: BrokerNode, other: BrokerNode) -> None:
    for stream in cluster.network.streams():
        if stream.ends == {one.number, other.number}:
            cluster.network.forget(stream)
            stream.break_off()


@pytest.mark.parametrize("read", [1, 2])
@pytest.mark.parametrize("unclean", [False, True])
@simulated(1)
async def test_promotion_that_coincides_with_a_reopen_of_the_store_may_be_retried(
    cluster: SimulatedCluster, read: int, unclean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store closes while the replica waits for etcd: for its first answer, or a later one."""
    good, good_claim = EtcdCoordinator.read, Elections._claim_by_hand
    asked: list[int] = []
    promotes: ContextVar[bool] = ContextVar("promotes", default=False)
    master, slave, own = await begun(cluster)

    async def answer(self: EtcdCoordinator) -> View:
        view = await good(self)
        if promotes.get():
            asked.append(1)
            if len(asked) == read:
                reopen_at_next_stream(monkeypatch, own)
                break_streams(cluster, slave, master)
                await until(lambda: not own.is_open, "its store closes")
        return view

    async def claim_by_hand(
        self: Elections, coordinator: Coordinator, *, unclean: bool
    ) -> tuple[int, bool]:
        promotes.set(True)
        return await good_claim(self, coordinator, unclean=unclean)

    monkeypatch.setattr(EtcdCoordinator, "read", answer)
    monkeypatch.setattr(Elections, "_claim_by_hand", claim_by_hand)
    refused = await cluster.promote(slave, unclean=unclean)
    assert len(asked) >= read
    assert refused is not None and refused.code is Code.SERVICE_NOT_AVAILABLE
    await asyncio.sleep(10)
    assert await cluster.promote(slave, unclean=unclean) is None
    cluster.check_alike(await cluster.settle())


@simulated(1)
async def test_replica_claims_no_refusing_port_while_its_store_is_reopened(
    cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave, own = await begun(cluster)

    async def refuses(address: str) -> bool:
        process = PROCESS.get()
        if process is None or process.number != slave.number:
            return False
        await until(lambda: not own.is_open, "its store closes")
        return True

    reopen_at_next_stream(monkeypatch, own)
    monkeypatch.setattr(elections, "refuses", refuses)
    break_streams(cluster, slave, master)
    await until(lambda: not own.is_open, "its store closes")
    await asyncio.sleep(10)
    cluster.check_alike(await cluster.settle())
