"""Retention times of topics in a group of brokers, in a virtual loop."""

from __future__ import annotations

import asyncio

from aerobee.broker.v1 import offset_pb2

from aerobee_broker.store.options import HOUR_MS
from aerobee_wire import rpcs
from aerobee_wire.topics import retry_topic
from support.simulation.client import STRICT, SimulatedClient
from support.simulation.cluster import SimulatedCluster, simulated

TOPIC = "orders"
RETRY = retry_topic("g")


async def pass_time(cluster: SimulatedCluster, ms: int) -> None:
    """On the clock of each machine, and enough upkeep for every queue."""
    for node in cluster.nodes:
        node.clock.ahead_ms += ms
    await asyncio.sleep(65)


def min_offsets(cluster: SimulatedCluster, topic: str = TOPIC) -> list[int]:
    return [node.store.min_offset(topic, 0) for node in cluster.nodes if node.store]


@simulated(1)
async def test_minimum_offsets_are_those_of_each_replica_and_of_a_new_master(
    cluster: SimulatedCluster,
) -> None:
    """Also where the time of the topic was raised after messages had expired. A slave that learned
    of it late had expired one more, and shows it again."""
    await cluster.begin(2, STRICT, elected=False)
    await cluster.settle()
    slave = cluster.nodes[1]
    cluster.vanishing.add(TOPIC)
    client = SimulatedClient(cluster)
    await client.put_topic(TOPIC, queues=1, reserve_time="1")
    for number in range(3):
        await client.send(TOPIC, b"early %d" % number)
    await pass_time(cluster, HOUR_MS // 2)
    await client.send(TOPIC, b"late")
    await pass_time(cluster, HOUR_MS // 2)
    assert min_offsets(cluster) == [3, 3]
    await client.put_topic(TOPIC, queues=1, reserve_time="5")
    await pass_time(cluster, HOUR_MS)
    assert min_offsets(cluster) == [3, 3]
    slave.kill()
    slave.start()
    await cluster.settle()
    assert min_offsets(cluster) == [3, 3]
    assert await cluster.promote(slave) is None
    await pass_time(cluster, 4 * HOUR_MS)
    assert min_offsets(cluster) == [4, 4]
    cluster.check_alike(await cluster.settle())


@simulated(1)
async def test_expired_retries_stay_expired_on_each_replica_and_on_a_new_master(
    cluster: SimulatedCluster,
) -> None:
    """The topic of the group loses its time. The slave restarts, and becomes master."""
    await cluster.begin(2, STRICT, elected=False)
    await cluster.settle()
    slave = cluster.nodes[1]
    cluster.vanishing.update({TOPIC, RETRY})
    client = SimulatedClient(cluster)
    await client.put_topic(TOPIC, queues=1, reserve_time="1")
    await client.put_group("g")
    await client.put_topic(RETRY, queues=1)
    offset = offset_pb2.QueueOffset(topic=TOPIC, queue_id=0, queue_offset=0)
    request = offset_pb2.UpdateConsumerOffsetsRequest(consumer_group="g", offsets=[offset])
    await client.call(rpcs.UPDATE_CONSUMER_OFFSETS, request)
    await client.send(RETRY, b"early")
    await pass_time(cluster, HOUR_MS // 2)
    await client.send(RETRY, b"late")
    await pass_time(cluster, HOUR_MS // 2)
    assert min_offsets(cluster, RETRY) == [1, 1]
    await client.put_topic(TOPIC, queues=1)
    await pass_time(cluster, 5 * HOUR_MS)
    assert min_offsets(cluster, RETRY) == [1, 1]
    slave.kill()
    slave.start()
    await cluster.settle()
    assert min_offsets(cluster, RETRY) == [1, 1]
    assert await cluster.promote(slave) is None
    await pass_time(cluster, HOUR_MS)
    assert min_offsets(cluster, RETRY) == [1, 1]
    cluster.check_alike(await cluster.settle())
