"""Whole brokers of a group without etcd: an operator gives another replica the role of a master."""

from __future__ import annotations

import asyncio

import pytest

from support.clock.polling import until
from support.simulation.client import STRICT, SimulatedClient, begun
from support.simulation.cluster import SimulatedCluster, simulated


@pytest.mark.parametrize("restarts", [False, True])
@simulated(1)
async def test_replica_that_lacks_messages_does_not_lead_by_its_options(
    cluster: SimulatedCluster, restarts: bool
) -> None:
    """The others would cut what was acknowledged."""
    client = await begun(cluster)
    gone, changed, whole = cluster.nodes
    changed.kill()
    await client.send("orders", b"acknowledged")
    gone.kill()
    whole.kill()
    changed.configure({"brokerRole": "SYNC_MASTER", "brokerId": 0})
    changed.start()
    if restarts:
        await asyncio.sleep(5)
        changed.kill()
        changed.start()
    await asyncio.sleep(5)
    assert not changed.epoch_as_master, "too few replicas answer"
    whole.start()
    await asyncio.sleep(15)
    assert not changed.epoch_as_master, "another one has more"
    assert await cluster.promote(whole) is None
    assert b"acknowledged" in whole.shown("orders")
    client.address = whole.address
    await until(
        lambda: changed.store is not None and changed.shown("orders") == whole.shown("orders"),
        "alike",
    )


@simulated(1)
async def test_replica_that_has_all_messages_leads_by_its_options(
    cluster: SimulatedCluster,
) -> None:
    client = await begun(cluster)
    _, changed, other = cluster.nodes
    await client.send("orders", b"acknowledged")
    await cluster.settle()
    for node in cluster.nodes:
        node.kill()
    changed.configure({"brokerRole": "SYNC_MASTER", "brokerId": 0})
    changed.start()
    other.start()
    await until(lambda: changed.epoch_as_master > 0, "it leads")
    assert changed.shown("orders") == {b"acknowledged"}
    client.address = changed.address
    await asyncio.sleep(5)
    await client.send("orders", b"of the next master")
    changed.kill()
    changed.start()
    await until(lambda: changed.epoch_as_master > 0, "it leads again")
    assert len(changed.shown("orders")) == 2


@simulated(1)
async def test_replica_does_not_lead_by_its_options_if_the_number_of_copies_is_unknown(
    cluster: SimulatedCluster,
) -> None:
    """Two copies are required, and no option says how many there are: it may lack messages."""
    await cluster.begin(3, {**STRICT, "totalReplicas": 1}, elected=False)
    await cluster.settle()
    client = SimulatedClient(cluster)
    await client.put_topic("orders")
    await cluster.settle()
    gone, changed, whole = cluster.nodes
    changed.kill()
    await client.send("orders", b"acknowledged")
    gone.kill()
    whole.kill()
    changed.configure({"brokerRole": "SYNC_MASTER", "brokerId": 0})
    changed.start()
    await asyncio.sleep(5)
    assert not changed.epoch_as_master
    whole.start()
    await asyncio.sleep(5)
    refused = await cluster.promote(changed)
    assert refused is not None and "totalReplicas" in refused.message
    assert not changed.epoch_as_master
    assert await cluster.promote(whole, unclean=True) is None
    assert b"acknowledged" in whole.shown("orders")
