"""The registration of a client with one broker."""

from __future__ import annotations

import asyncio

from aerobee.broker.v1 import client_pb2

from aerobee_client.cluster.broker_link import BrokerLink
from support.client.memory_cluster import MemoryBroker, MemoryCluster

ADDRESS = "10.0.0.11:10911"


async def test_closing_a_link_releases_those_who_wait_for_it() -> None:
    """Its broker hangs, and a new route no longer names it."""
    cluster = MemoryCluster(MemoryBroker("a", ADDRESS))
    cluster.answers["Heartbeat"] = lambda address, request: asyncio.Event().wait()
    link = BrokerLink(ADDRESS, cluster, client_pb2.HeartbeatRequest, None)
    waiting = asyncio.create_task(link.until_tried())
    await asyncio.sleep(0)
    await link.close(None)
    async with asyncio.timeout(10):
        await waiting
