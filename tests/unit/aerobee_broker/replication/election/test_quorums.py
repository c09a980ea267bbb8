"""Whole brokers of a group without etcd whose options are not alike, or change one after the other.

No promotion loses an acknowledged message, whatever each replica is configured with.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aerobee_wire.status import Code
from support.clock.polling import until
from support.codes import raises_code
from support.disk.simulated_disk import never
from support.simulation.client import SimulatedClient, begun
from support.simulation.cluster import SimulatedCluster, simulated
from support.simulation.node import BrokerNode


def sync(required: int) -> dict[str, Any]:
    return {"brokerRole": "SYNC_MASTER", "inSyncReplicas": required}


async def begun_with(cluster: SimulatedCluster, required: int, count: int = 3) -> SimulatedClient:
    client = await begun(cluster, sync(required), count=count)
    await client.send("orders", b"of all")
    await cluster.settle()
    return client


def keep_no_epochs(slave: BrokerNode) -> None:
    """It answers, and cannot follow a new master."""
    slave.disk.fail_writes = lambda path: path.name.startswith("epochs.json")


def restart(node: BrokerNode, **options: Any) -> None:
    """With a disk that works."""
    node.kill()
    node.disk.fail_writes = never
    node.configure(options)
    node.start()


async def refused(cluster: SimulatedCluster, node: BrokerNode) -> bool:
    """Whether its promotion would lose acknowledged messages."""
    await until(lambda: node.store is not None, "it opens its store")
    error = await cluster.promote(node)
    return error is not None and error.code is Code.ILLEGAL_OPERATION


@simulated(1)
async def test_slave_that_requires_more_than_its_master_did_is_not_promoted_alone(
    cluster: SimulatedCluster,
) -> None:
    """Its options say that each message is on all three; its master waited for two."""
    client = await begun_with(cluster, required=2)
    master, slave, other = cluster.nodes
    slave.kill()
    slave.configure({"inSyncReplicas": 3})
    await client.send("orders", b"acknowledged")
    master.kill()
    other.kill()
    slave.start()
    assert await refused(cluster, slave)
    other.start()
    await asyncio.sleep(5)
    assert await cluster.promote(other) is None
    master.configure({"inSyncReplicas": 3})
    cluster.heal()
    cluster.check_alike(await cluster.settle())


@simulated(1)
async def test_master_that_requires_less_acknowledges_after_enough_slaves_know_that(
    cluster: SimulatedCluster,
) -> None:
    """A slave that answers, and whose disk fails, still relies on three copies of each message."""
    client = await begun_with(cluster, required=3)
    master, slave, other = cluster.nodes
    keep_no_epochs(slave)
    restart(master, inSyncReplicas=2)
    await until(lambda: master.in_sync == {0, 2}, "the other one is in sync")
    await asyncio.sleep(5)
    with raises_code(Code.SLAVE_NOT_AVAILABLE):
        await client.send("orders", b"refused")
    restart(slave)
    await cluster.settle()
    slave.kill()
    await client.send("orders", b"acknowledged")
    master.kill()
    other.kill()
    slave.start()
    assert await refused(cluster, slave)
    other.start()
    await asyncio.sleep(5)
    assert await cluster.promote(other) is None
    cluster.heal()
    cluster.check_alike(await cluster.settle())


@simulated(1)
async def test_operator_gives_up_replicas_that_do_not_know_the_lower_requirement(
    cluster: SimulatedCluster,
) -> None:
    client = await begun_with(cluster, required=2)
    master, one, two = cluster.nodes
    one.kill()
    two.kill()
    restart(master, inSyncReplicas=1)
    await asyncio.sleep(30)
    assert not master.epoch_as_master, "another one may have been promoted"
    assert await cluster.promote(master, unclean=True) is None
    await client.send("orders", b"on one disk")
    restart(master)
    await until(lambda: master.epoch_as_master > 0, "it leads again")
    await client.send("orders", b"on one disk")
    restart(master, minInSyncReplicas=1)
    cluster.heal()
    cluster.check_alike(await cluster.settle())


@simulated(1)
async def test_master_that_is_stuck_since_its_options_changed_is_freed_by_an_operator(
    cluster: SimulatedCluster,
) -> None:
    client = await begun_with(cluster, required=3)
    master, slave, _ = cluster.nodes
    keep_no_epochs(slave)
    restart(master, inSyncReplicas=2)
    await until(lambda: master.in_sync == {0, 2}, "the other one is in sync")
    await asyncio.sleep(5)
    with raises_code(Code.SLAVE_NOT_AVAILABLE):
        await client.send("orders", b"refused")
    assert await cluster.promote(master, unclean=True) is None
    await client.send("orders", b"acknowledged")


@simulated(1)
async def test_master_of_a_larger_group_acknowledges_after_its_former_group_knows_that(
    cluster: SimulatedCluster,
) -> None:
    """Its old slaves are off, and rely on two copies among three."""
    client = await begun_with(cluster, required=2)
    master, one, two = cluster.nodes
    one.kill()
    two.kill()
    more = {**sync(2), "brokerRole": "SLAVE", "totalReplicas": 5}
    master.kill()
    master.configure({"totalReplicas": 5})
    new = [cluster.add(number, more) for number in (3, 4)]
    master.start()
    await asyncio.sleep(30)
    assert not master.epoch_as_master, "another one may have been promoted"
    one.start()
    await until(lambda: master.in_sync == {0, 1, 3, 4}, "all are in sync")
    one.kill()
    await client.send("orders", b"acknowledged")
    for node in (master, *new):
        node.kill()
    one.start()
    two.start()
    await asyncio.sleep(5)
    assert await refused(cluster, one)
    new[0].start()
    new[1].start()
    await asyncio.sleep(5)
    assert await cluster.promote(new[0]) is None
    cluster.heal()
    cluster.check_alike(await cluster.settle())


@simulated(1)
async def test_replica_beyond_the_copies_of_its_master_holds_no_acknowledged_message_alone(
    cluster: SimulatedCluster,
) -> None:
    """Its own options say that there are four copies, and those of the others three."""
    client = await begun_with(cluster, required=2)
    master, one, two = cluster.nodes
    fourth = cluster.add(3, {**sync(2), "brokerRole": "SLAVE", "totalReplicas": 4})
    await asyncio.sleep(10)
    assert master.in_sync == {0, 1, 2}
    one.kill()
    two.kill()
    await asyncio.sleep(5)
    with raises_code(Code.SLAVE_NOT_AVAILABLE):
        await client.send("orders", b"refused")
    assert fourth.store is not None


@simulated(1)
async def test_two_disjoint_halves_of_four_do_not_both_acknowledge(
    cluster: SimulatedCluster,
) -> None:
    """Two of four are required: a promotion needs three of them."""
    client = await begun_with(cluster, required=2, count=4)
    master, one, two, three = cluster.nodes
    for here in (master, one):
        for there in (two, three):
            cluster.network.part(here.number, there.number)
    await asyncio.sleep(10)
    await client.send("orders", b"acknowledged by two")
    assert await refused(cluster, two)
    assert await refused(cluster, three)
    master.kill()
    await asyncio.sleep(5)
    assert await refused(cluster, two)
    cluster.network.heal()
    await asyncio.sleep(5)
    assert await refused(cluster, two)
    assert await cluster.promote(one) is None
    cluster.heal()
    cluster.check_alike(await cluster.settle())
