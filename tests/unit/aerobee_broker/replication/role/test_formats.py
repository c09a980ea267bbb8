"""Brokers of a group that run different versions of Aerobee, in a virtual loop."""

from __future__ import annotations

import asyncio

from aerobee_broker.store.format import (
    FEATURES,
    LITE_TOPICS,
    NOT_REPLICATED,
    REPLICATED_LOG,
    THIS_BUILD,
    Build,
    FormatFile,
    StoreTooNew,
)
from support.disk.stores import PATH
from support.simulation.client import STRICT, SimulatedClient
from support.simulation.cluster import SimulatedCluster, simulated
from support.simulation.node import BrokerNode

OLD = Build("0.1.9", {name: since for name, since in FEATURES.items() if name != LITE_TOPICS})
NEXT = Build("9.1.0", {**FEATURES, "tomorrow": "9.0.0"})


def required(node: BrokerNode) -> frozenset[str]:
    file = FormatFile(node.disk.after_power_cut(1), PATH, NEXT)
    file.load()
    return file.required - NOT_REPLICATED


@simulated(1)
async def test_features_that_a_master_uses_are_recorded_by_each_of_its_slaves(
    cluster: SimulatedCluster,
) -> None:
    """One follows when the first parent is created, one copies later."""
    await cluster.begin(3, STRICT, elected=False)
    late = cluster.nodes[2]
    await cluster.settle()
    late.kill()
    assert {required(node) for node in cluster.nodes[:2]} == {frozenset({REPLICATED_LOG})}
    await SimulatedClient(cluster).put_topic("sessions", "LITE")
    late.start()
    await cluster.settle()
    await asyncio.sleep(10)
    wanted = frozenset({REPLICATED_LOG, LITE_TOPICS})
    assert {node.number: required(node) for node in cluster.nodes} == dict.fromkeys(
        (0, 1, 2), wanted
    )


@simulated(1)
async def test_slave_of_an_older_build_is_refused_by_name_and_follows_once_it_is_upgraded(
    cluster: SimulatedCluster,
) -> None:
    await cluster.begin(3, STRICT, elected=False)
    await cluster.settle()
    old = cluster.nodes[2]
    old.kill()
    old.build = OLD
    old.start()
    await asyncio.sleep(5)
    client = SimulatedClient(cluster)
    await client.put_topic("orders")
    await client.send("orders", b"goes on without it")
    refusal = (await cluster.status(old)).reason
    assert LITE_TOPICS in refusal and FEATURES[LITE_TOPICS] in refusal
    old.kill()
    old.build = THIS_BUILD
    old.start()
    cluster.check_alike(await cluster.settle())


@simulated(1)
async def test_group_is_upgraded_slaves_first_without_a_refusal(cluster: SimulatedCluster) -> None:
    await cluster.begin(3, STRICT, elected=False)
    await cluster.settle()
    first, *slaves = cluster.nodes
    for node in slaves:
        node.kill()
        node.build = NEXT
        node.start()
        await cluster.settle()
    assert await cluster.promote(slaves[0]) is None
    first.kill()
    first.build = NEXT
    first.start()
    cluster.check_alike(await cluster.settle())
    client = SimulatedClient(cluster)
    client.address = slaves[0].address
    await client.put_topic("orders")
    await client.send("orders", b"by the new master")


@simulated(1)
async def test_replica_whose_store_needs_a_later_build_does_not_start(
    cluster: SimulatedCluster,
) -> None:
    await cluster.begin(3, STRICT, elected=False)
    await cluster.settle()
    await SimulatedClient(cluster).put_topic("sessions", "LITE")
    await asyncio.sleep(10)
    slave = cluster.nodes[1]
    slave.kill()
    slave.build = OLD
    before = slave.disk.files()
    slave.start()
    await asyncio.sleep(1)
    assert isinstance(slave.failed, StoreTooNew)
    assert slave.disk.files() == before
    slave.build = THIS_BUILD
    cluster.check_alike(await cluster.settle())
