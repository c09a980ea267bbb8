"""Whole brokers of a group without etcd: an address belongs to a broker of another group now."""

from __future__ import annotations

import asyncio

from support.clock.polling import until
from support.simulation.cluster import SimulatedCluster, simulated

OTHER = 8
ADDRESS = "10.0.0.9:10911"
STRICT = {
    "brokerRole": "SYNC_MASTER",
    "inSyncReplicas": 2,
    "haMasterAddress": ADDRESS,
}


@simulated(1)
async def test_broker_of_another_group_neither_ends_a_master_nor_is_ended(
    cluster: SimulatedCluster,
) -> None:
    """Containers get addresses of others. Its epoch is the higher one."""
    cluster.transport.machines[ADDRESS] = OTHER
    cluster.transport.off.add(OTHER)
    await cluster.begin(3, STRICT, elected=False)
    await cluster.settle()
    group = list(cluster.nodes)
    master = group[0]
    alone = {"brokerName": "broker-b", "brokerRole": "SYNC_MASTER", "inSyncReplicas": 1}
    other = cluster.add(OTHER, {**alone, "totalReplicas": 1}, broker_id=0)
    for _ in range(3):
        await until(lambda: other.epoch_as_master > 0, "it leads its group")
        other.kill()
        other.start()
    await until(lambda: other.epoch_as_master > master.epoch_as_master, "it has more starts")
    epoch = other.epoch_as_master
    await asyncio.sleep(15)
    assert master.epoch_as_master, "it goes on"
    assert await cluster.promote(group[1]) is None
    await asyncio.sleep(5)
    assert other.epoch_as_master == epoch
    other.kill()
    cluster.remove(other)
    cluster.check_alike(await cluster.settle())
