"""Scenarios of an unclean promotion: a master has gone on alone, its consumers with it, and another
broker becomes master without what only that one has. Then as many messages come as were given up,
at the queue offsets of these: no consumer group may skip them.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from aerobee.broker.v1 import offset_pb2

from aerobee_wire import rpcs
from fault.replication.scenarios import STRICT, TOPIC, Scenario
from support.simulation.node import BrokerNode

WITH_ONE: dict[str, Any] = {**STRICT, "enableAutoInSyncReplicas": True}
GROUP = "readers"
TOGETHER, ALONE, AFTER = 2, 3, 5  # messages
SNAPSHOT_S = 40  # until the leases are in their file
INVISIBLE_MS = 60_000


async def go_on_alone(played: Scenario) -> tuple[BrokerNode, BrokerNode]:
    """Returns the master, which has ALONE more messages than the other one, which is isolated."""
    await played.begin(2, WITH_ONE)
    cluster = played.cluster
    old, new = cluster.nodes
    await played.client.put_group(GROUP)
    for _ in range(TOGETHER):
        await played.send(old.number)
    await cluster.settle()
    played.cluster.isolate(new.number)
    for _ in range(ALONE):
        await played.send(old.number)
    return old, new


async def promote_without_it(played: Scenario, old: BrokerNode, new: BrokerNode) -> None:
    cluster = played.cluster
    old.kill()
    cluster.network.heal()
    cluster.vanishing.update({topic for topic, _, _ in cluster.shown})
    refused = await cluster.promote(new, unclean=True)
    assert refused is None, refused
    played.client.address = new.address


async def commit_what_was_given_up(played: Scenario, rng: random.Random) -> None:
    """A consumer that has read all commits its offset to the new master too."""
    old, new = await go_on_alone(played)
    await commit(played, old, TOGETHER + ALONE)
    assert await committed(played, old) == TOGETHER + ALONE
    await asyncio.sleep(rng.uniform(0, 10))  # until the offsets are in their file, or not
    await promote_without_it(played, old, new)
    found = await committed(played, new)
    assert found <= TOGETHER, f"the group is at {found}, and the queue ends at {TOGETHER}"
    await commit(played, new, TOGETHER + ALONE)
    for _ in range(AFTER):
        await played.send(new.number)
    found = await committed(played, new)
    assert found <= TOGETHER, f"the group skips what came at {TOGETHER} to {found}"


async def lease_what_was_given_up(played: Scenario, rng: random.Random) -> None:
    """A group has popped and acknowledged all. The old master comes back, is cut, and becomes
    master again: the group is told what came instead."""
    old, new = await go_on_alone(played)
    leases = [lease for _, lease in await pop(played, old)]
    assert len(leases) == TOGETHER + ALONE
    await played.client.ack(leases)
    await asyncio.sleep(SNAPSHOT_S + rng.uniform(0, 10))
    await promote_without_it(played, old, new)
    for _ in range(AFTER):
        await played.send(new.number)
    old.start()
    await played.cluster.settle()
    refused = await played.cluster.promote(old)
    assert refused is None, refused
    delivered: set[int] = set()
    for _ in range(20):
        delivered |= {record.queue_offset for record, _ in await pop(played, old)}
        await asyncio.sleep(0.5)
    skipped = set(range(TOGETHER + AFTER)) - delivered
    assert not skipped, f"the group is never told of the messages at {sorted(skipped)}"


async def pop(played: Scenario, node: BrokerNode) -> list[tuple[Any, Any]]:
    played.client.address = node.address
    return await played.client.pop(TOPIC, GROUP, 32, INVISIBLE_MS)


async def commit(played: Scenario, node: BrokerNode, queue_offset: int) -> None:
    offset = offset_pb2.QueueOffset(topic=TOPIC, queue_id=0, queue_offset=queue_offset)
    request = offset_pb2.UpdateConsumerOffsetsRequest(consumer_group=GROUP, offsets=[offset])
    played.client.address = node.address
    await played.client.call(rpcs.UPDATE_CONSUMER_OFFSETS, request)


async def committed(played: Scenario, node: BrokerNode) -> int:
    """0: nothing was."""
    request = offset_pb2.QueryConsumerOffsetsRequest(consumer_group=GROUP, topic=TOPIC)
    played.client.address = node.address
    found = (await played.client.call(rpcs.QUERY_CONSUMER_OFFSETS, request)).offsets
    return max((int(each.queue_offset) for each in found), default=0)
