"""Whole brokers of a group without etcd: the disk of the replica that is promoted fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aerobee_wire.status import MqError
from support.disk.stores import LOG, PATH, visible
from support.simulation.client import STRICT, SimulatedClient
from support.simulation.cluster import SimulatedCluster, simulated
from support.simulation.node import BrokerNode


class LosingDisk:
    """The next sync of the log of `node` fails, and the kernel drops the pages that it lost."""

    def __init__(self, node: BrokerNode) -> None:
        self.failed = False
        self._node = node

    def arm(self) -> None:
        self._node.disk.fail_syncs = self._fails

    def _fails(self, path: Path) -> bool:
        if self.failed or path.parent != LOG:
            return False
        self.failed = True
        durable = self._node.disk.durable(path)
        asyncio.get_running_loop().call_later(0.1, self._node.disk.put, path, durable)
        return True


def has_begun(node: BrokerNode) -> bool:
    """Whether it would lead again after a restart."""
    return b'"epoch"' in node.disk.files()[PATH / "config" / "replicas.json"]


@simulated(1)
async def test_promotion_ends_if_the_disk_loses_the_log_that_was_compared(
    cluster: SimulatedCluster,
) -> None:
    """It had the longest log, in the page cache. Another one has what was acknowledged."""
    await cluster.begin(3, STRICT, elected=False)
    await cluster.settle()
    client = SimulatedClient(cluster)
    await client.put_topic("orders")
    await cluster.settle()
    master, furthest, other = cluster.nodes
    furthest.kill()
    furthest.slowest_job_ms = 3_000
    furthest.start()
    await cluster.settle()
    await asyncio.sleep(3)
    first, second = furthest.store, other.store
    assert first is not None and second is not None
    for _ in range(50):
        await client.send("orders", b"acknowledged")
        if first.written_offset == second.flushed_offset > first.flushed_offset:
            break
    else:
        raise AssertionError("it never has in the page cache what the other has on its disk")
    disk = LosingDisk(furthest)
    disk.arm()
    master.kill()
    refused = await cluster.promote(furthest)
    assert disk.failed and isinstance(refused, MqError)
    assert not has_begun(furthest)
    assert await cluster.promote(other) is None
    assert other.store is not None
    bodies = [list(found.values()) for found in visible(other.store).values()]
    assert b"acknowledged" in [body for each in bodies for body in each]
    master.start()
    cluster.check_alike(await cluster.settle())
