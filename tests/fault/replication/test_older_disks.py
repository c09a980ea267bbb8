"""Elected groups in a virtual loop: a replica with an older disk beside one that has more."""

from __future__ import annotations

import asyncio

from aerobee_wire.status import Code
from fault.replication.operators import begin, kill_all, send_some
from fault.replication.scenarios import Scenario
from support.simulation.cluster import SimulatedCluster, simulated
from support.simulation.node import BrokerNode


async def reason_of(cluster: SimulatedCluster, node: BrokerNode) -> str:
    return (await cluster.status(node)).reason


@simulated(1)
async def test_a_second_process_with_a_copy_of_the_masters_disk_waits_and_stops(
    cluster: SimulatedCluster,
) -> None:
    played = Scenario(cluster)
    master, _, _ = await begin(played)
    twin = cluster.start_twin(master, master.disk)
    await asyncio.sleep(5)
    cluster.look()
    assert cluster.master is master and cluster.elections == 1
    assert f"another process at {master.address}" in await reason_of(cluster, twin)
    await asyncio.sleep(10)
    assert twin.stopped_by is not None and twin.stopped_by.code is Code.ILLEGAL_OPERATION
    cluster.remove(twin)
    await send_some(played)
    await played.end()


@simulated(*range(3))
async def test_no_member_is_promoted_beside_one_that_has_more(cluster: SimulatedCluster) -> None:
    """All were killed before etcd had a later end of any log."""
    played = Scenario(cluster)
    _, slave, other = await begin(played)
    copy = slave.disk.copy()
    await send_some(played)
    kill_all(played)
    slave.put_disk_back(copy)
    slave.start()
    other.start()
    await asyncio.sleep(cluster.rng.uniform(0.5, 3))
    refused = await cluster.promote(slave)
    assert refused is not None and f"replica {other.number}" in refused.message
    cluster.look()
    await played.end()
