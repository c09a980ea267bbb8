"""Whole brokers of a group with etcd, in a virtual loop: a master that hears of nobody, and a
replica that is left when the whole in-sync set is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_broker.replication.election.coordinators.etcd import EtcdRefused, Unchanged, Write
from aerobee_broker.replication.election.unclean import UNCLEAN_WAIT_MS
from aerobee_broker.replication.in_sync.counts import Reason
from aerobee_wire import rpcs
from aerobee_wire.status import Code
from support.codes import raises_code
from support.disk.replicated import DIVERGED
from support.disk.stores import visible
from support.simulation.client import STRICT, SimulatedClient
from support.simulation.cluster import NAMESRV_ADDRESS, SimulatedCluster, simulated
from support.simulation.node import BrokerNode

ALONE_TOO = {**STRICT, "enableAutoInSyncReplicas": True}
TOPIC = "orders"


async def begun(
    cluster: SimulatedCluster, count: int, options: Mapping[str, object]
) -> tuple[BrokerNode, list[BrokerNode], SimulatedClient]:
    """All in sync, with one message: the master, the others, a client of the master."""
    await cluster.begin(count, options, elected=True)
    master = await cluster.settle()
    client = SimulatedClient(cluster)
    client.address = master.address
    await client.put_topic(TOPIC)
    await client.send(TOPIC, b"before")
    return master, [node for node in cluster.nodes if node is not master], client


def lose_etcd(cluster: SimulatedCluster, node: BrokerNode) -> None:
    cluster.etcd_clients[node.number].cut = True


def is_isolated(node: BrokerNode) -> bool:
    return node.roles is not None and node.roles.is_isolated


@simulated(3)
async def test_a_master_on_the_wrong_side_of_a_partition_sends_its_clients_away(
    cluster: SimulatedCluster,
) -> None:
    """They are on its side, and would read there while another one leads."""
    old, slaves, client = await begun(cluster, 3, STRICT)
    for slave in slaves:
        cluster.network.part(old.number, slave.number)
    lose_etcd(cluster, old)
    await asyncio.sleep(20)
    assert old.epoch_as_master == 1, "it has not heard of its successor"
    assert any(slave.epoch_as_master == 2 for slave in slaves)
    client.address = old.address
    with raises_code(Code.SERVICE_NOT_AVAILABLE):
        await client.topics()
    assert old.roles is not None and not old.roles.serves
    cluster.heal()
    cluster.check_alike(await cluster.settle())
    assert not old.epoch_as_master and not is_isolated(old)


@simulated(3)
async def test_a_candidate_that_does_not_hear_who_won_asks_once(
    cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And does not stand again and again for what it has lost."""
    old, slaves, _ = await begun(cluster, 3, STRICT)
    write, refused = cluster.etcd.write, 0

    def counted(conditions: Sequence[Unchanged], writes: Sequence[Write]) -> int | None:
        nonlocal refused
        revision = write(conditions, writes)
        refused += revision is None
        if refused > 20:
            raise EtcdRefused("too many requests")
        return revision

    monkeypatch.setattr(cluster.etcd, "write", counted)
    old.kill()
    cluster.etcd.end_leases()
    await asyncio.sleep(0.01)  # both hear that there is no master
    monkeypatch.setattr(cluster.etcd, "silent", True)
    await asyncio.sleep(1)
    assert sorted(slave.epoch_as_master for slave in slaves) == [0, 2]
    assert refused == 1


@pytest.mark.parametrize("unclean", [False, True])
@simulated(3)
async def test_a_candidate_whose_claims_etcd_refuses_pauses_between_them(
    cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch, *, unclean: bool
) -> None:
    """As an etcd does whose disk is full: it answers reads, so the view stays as it is."""
    old, slaves, _ = await begun(cluster, 2, {**ALONE_TOO, "enableElectUncleanMaster": unclean})
    if unclean:
        cluster.network.part(old.number, slaves[0].number)
        await asyncio.sleep(10)  # the slave leaves the set
    claims = 0

    def full(conditions: Sequence[Unchanged], _: object) -> int | None:
        nonlocal claims
        claims += bool(conditions)
        assert claims < 1_000
        raise EtcdRefused("no space")

    with monkeypatch.context() as patch:
        patch.setattr(cluster.etcd, "write", full)
        old.kill()
        await asyncio.sleep(30)
    assert 1 < claims <= 150
    await asyncio.sleep(5)
    assert slaves[0].epoch_as_master == 2


@simulated(3)
async def test_a_replica_that_may_not_be_elected_is_found_and_promoted_all_the_same(
    cluster: SimulatedCluster,
) -> None:
    """It has started where no master is, and never took a role."""
    master, (slave,), client = await begun(cluster, 2, ALONE_TOO)
    slave.kill()
    await client.send(TOPIC, b"on the master alone, which is the set")
    master.kill()
    await asyncio.sleep(130)  # its lease has ended, and the name server has forgotten both
    slave.start()
    await asyncio.sleep(20)
    request = namesrv_pb2.GetClusterInfoRequest()
    reported = await cluster.client.spawn(
        cluster.caller.call(NAMESRV_ADDRESS, rpcs.GET_CLUSTER_INFO, request, timeout_s=3)
    )
    (broker,) = reported.brokers
    assert list(broker.addresses.values()) == [slave.address] and 0 not in broker.addresses
    assert await cluster.promote(slave, unclean=True) is None
    assert slave.epoch_as_master


@pytest.mark.parametrize("what", ["etcd", "slave", "all replicas"])
@simulated(4)
async def test_a_master_that_cannot_have_been_replaced_goes_on(
    cluster: SimulatedCluster, what: str
) -> None:
    """With etcd away alone, its replicas follow it, so none was elected. Without a slave alone,
    etcd says so. As the whole set, no other one may be elected."""
    master, slaves, client = await begun(cluster, 3, ALONE_TOO)
    if what != "etcd":
        for slave in slaves if what == "all replicas" else slaves[:1]:
            cluster.network.part(master.number, slave.number)
        await asyncio.sleep(10)  # they leave the set
    if what != "slave":
        cluster.etcd.go_away()
    for _ in range(60):
        await asyncio.sleep(0.5)
        assert not is_isolated(master)
    client.address = master.address
    assert await client.topics() == {TOPIC}
    cluster.heal()
    cluster.check_alike(await cluster.settle())


@simulated(5)
async def test_a_master_that_is_heard_again_serves_again_in_its_epoch(
    cluster: SimulatedCluster,
) -> None:
    master, slaves, client = await begun(cluster, 2, STRICT)
    cluster.etcd.go_away()
    cluster.network.part(master.number, slaves[0].number)
    await asyncio.sleep(20)
    assert is_isolated(master)
    with raises_code(Code.SERVICE_NOT_AVAILABLE):
        await client.topics()
    cluster.network.heal()
    await asyncio.sleep(15)
    assert not is_isolated(master), "its slave follows it, and etcd is away"
    client.address = master.address
    assert await client.topics() == {TOPIC}
    cluster.heal()
    cluster.check_alike(await cluster.settle())
    assert cluster.elections == 1


@pytest.mark.parametrize("allowed", [True, False])
@simulated(6)
async def test_when_the_whole_set_is_gone_one_outside_leads_only_where_that_is_allowed(
    cluster: SimulatedCluster, *, allowed: bool
) -> None:
    options = {**ALONE_TOO, "enableElectUncleanMaster": allowed}
    master, [slave], client = await begun(cluster, 2, options)
    cluster.network.part(master.number, slave.number)
    await asyncio.sleep(10)  # the slave leaves the set
    for number in range(5):
        await client.send(TOPIC, b"alone %d" % number)
    await asyncio.sleep(5)  # until etcd notices its end
    assert master.store is not None and slave.store is not None
    lacks = master.store.end_offset - slave.store.end_offset
    assert lacks > 0
    master.kill()
    await asyncio.sleep(UNCLEAN_WAIT_MS / 1000 - 2)
    assert not slave.epoch_as_master, "a member may come back"
    await asyncio.sleep(20)
    assert bool(slave.epoch_as_master) is allowed
    cluster.network.heal()
    if allowed:
        assert slave.roles is not None
        assert slave.roles.own.counts.given_up_bytes == lacks
        assert visible(slave.store)[TOPIC, 0] == {0: b"before"}
        cluster.shown.clear()  # what was shown and is given up has another message's place
        client.address = slave.address
        await client.send(TOPIC, b"after")
    cluster.heal()
    cluster.check_alike(await cluster.settle())
    assert cluster.elections == (2 if allowed else 1) + (not allowed)
    assert any(path.parent == DIVERGED for path in master.disk.files()) is allowed


@pytest.mark.parametrize(
    ("fast", "powered", "reason"),
    [
        (True, True, Reason.PORT_REFUSES),
        (False, True, Reason.NO_MASTER),
        (True, False, Reason.NO_MASTER),
    ],
)
@simulated(7)
async def test_a_process_that_has_ended_is_followed_up_before_its_lease_ends_where_that_is_wanted(
    cluster: SimulatedCluster, *, fast: bool, powered: bool, reason: Reason
) -> None:
    old, slaves, _ = await begun(cluster, 3, {**STRICT, "haFastFailover": fast})
    if powered:
        old.kill()
    else:
        old.lose_power()
    new = None
    while new is None:
        await asyncio.sleep(0.1)
        cluster.look()
        new = next((slave for slave in slaves if slave.epoch_as_master), None)
    assert new.roles is not None
    assert new.roles.own.counts.elections == {reason: 1}
    cluster.heal()
    cluster.check_alike(await cluster.settle())
