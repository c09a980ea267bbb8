"""The registration of a client with one broker."""

from __future__ import annotations

import asyncio

from aerobee.broker.v1 import client_pb2

from aerobee_client.cluster.broker_link import BrokerLink
from support.client.memory.cluster import MemoryBroker, MemoryCluster
from support.clock.polling import until

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


async def test_a_broker_that_sees_the_end_of_a_stream_late_knows_the_client_all_the_same() -> None:
    """It forgets the client after the heartbeat of the new link, whose stream is not open yet."""
    broker = MemoryBroker("a", ADDRESS)
    cluster = MemoryCluster(broker)
    forgets = False

    def forget_after(address: str, request: client_pb2.HeartbeatRequest) -> None:
        if forgets and not broker.watchers:
            asyncio.get_running_loop().call_soon(broker.clients.pop, "client", None)

    cluster.answers["Heartbeat"] = forget_after
    link = BrokerLink(
        ADDRESS,
        cluster,
        lambda: client_pb2.HeartbeatRequest(client_id="client"),
        lambda address, notice: None,
    )
    link.watch()
    await link.until_watching()
    forgets = True
    broker.watchers["client"].put_nowait(None)
    await until(lambda: not broker.watchers, "the stream has ended")
    await until(lambda: bool(broker.watchers), "it is open again")
    await until(lambda: "client" in broker.clients, "the broker knows the client")
    await link.close(None)
