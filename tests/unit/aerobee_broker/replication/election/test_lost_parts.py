"""Whole brokers of a group without etcd: a part of a disk is lost, or a disk was copied."""

from __future__ import annotations

import asyncio

from aerobee_wire.status import Code
from support.clock.polling import until
from support.disk.stores import PATH
from support.simulation.client import SimulatedClient
from support.simulation.cluster import SimulatedCluster, simulated
from support.simulation.node import BrokerNode

STRICT = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}


async def begun(cluster: SimulatedCluster) -> SimulatedClient:
    await cluster.begin(3, STRICT, elected=False)
    await cluster.settle()
    client = SimulatedClient(cluster)
    await client.put_topic("orders")
    await cluster.settle()
    return client


def lose_all_but_config(node: BrokerNode) -> None:
    """An operator has restored its `config` on an empty disk, or only that was on another one."""
    for path in node.disk.files():
        if path.parent != PATH / "config":
            node.disk.remove(path)
    for folder in {path.parent for path in node.disk.files()}:
        node.disk.sync_directory(folder)


@simulated(1)
async def test_replica_that_kept_only_its_config_does_not_count_among_those_that_answer(
    cluster: SimulatedCluster,
) -> None:
    """It was the first master, so it has never copied a log."""
    client = await begun(cluster)
    lost, master, asked = cluster.nodes
    assert await cluster.promote(master) is None
    await cluster.settle()
    client.address = master.address
    asked.kill()
    await client.send("orders", b"acknowledged")
    lost.kill()
    lose_all_but_config(lost)
    master.kill()
    lost.start()
    asked.start()
    await asyncio.sleep(5)
    assert lost.store is not None and not lost.store.end_offset
    refused = await cluster.promote(asked)
    assert refused is not None and refused.code is Code.ILLEGAL_OPERATION
    master.start()
    cluster.check_alike(await cluster.settle())


@simulated(1)
async def test_second_process_with_a_copy_of_a_running_disk_confirms_nothing(
    cluster: SimulatedCluster,
) -> None:
    """Its confirmations would count as those of the first one, which lacks the messages."""
    client = await begun(cluster)
    master, first, other = cluster.nodes
    other.kill()
    twin = cluster.start_twin(first, first.disk.copy())
    for number in range(100):
        await client.send("orders", b"%d" % number)
        assert master.store is not None and first.store is not None
        assert first.store.flushed_offset >= master.store.confirmed_offset
        await asyncio.sleep(0.05)
    assert twin.store is not None and master.store is not None
    assert twin.store.end_offset < master.store.end_offset


@simulated(1)
async def test_replica_whose_number_another_process_has_taken_does_not_count(
    cluster: SimulatedCluster,
) -> None:
    """The other process confirms after a connection broke, and its machine is lost with the
    master's."""
    client = await begun(cluster)
    master, first, other = cluster.nodes
    other.kill()
    for source, target in ((first, master), (master, first)):
        cluster.network.cut(source.number, target.number)
    cluster.network.break_streams(first.number)
    twin = cluster.start_twin(first, first.disk.copy())
    await until(lambda: in_sync(master) == {0, 1} and follows(twin), "the twin is in sync")
    cluster.network.heal()
    await asyncio.sleep(2)
    await client.send("orders", b"acknowledged")
    master.kill()
    twin.kill()
    other.start()
    await asyncio.sleep(5)
    refused = await cluster.promote(first)
    assert refused is not None and refused.code is Code.ILLEGAL_OPERATION
    master.start()
    cluster.remove(twin)
    cluster.check_alike(await cluster.settle())
    assert await cluster.promote(first) is None, "it has caught up"


def in_sync(master: BrokerNode) -> set[int]:
    roles = master.roles
    if roles is None or roles.master is None:
        return set()
    return {each.replica_id for each in roles.master.status().in_sync}


def follows(node: BrokerNode) -> bool:
    return node.roles is not None and node.roles.is_following
