"""Whole brokers of a group without etcd: a part of a replica's disk is lost or is older."""

from __future__ import annotations

import asyncio

from aerobee_wire.status import Code
from support.disk.stores import PATH
from support.simulation.client import SimulatedClient
from support.simulation.cluster import SimulatedCluster, simulate
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


def test_replica_that_kept_only_its_config_does_not_count_among_those_that_answer() -> None:
    """It was the first master, so it has never copied a log."""

    async def scenario(cluster: SimulatedCluster) -> None:
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

    simulate(1, scenario)
