"""The registration of a client with one broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from aerobee.broker.v1 import client_pb2

from aerobee_client.cluster.broker_link import BrokerLink
from aerobee_client.errors import BrokerUnreachable
from aerobee_client.runtime.clock import SystemClock
from support.client.memory import MemoryBroker, MemoryCluster
from support.clock.manual_clock import ManualClock
from support.clock.polling import until
from support.clock.virtual_loop import VirtualLoop

ADDRESS = "10.0.0.11:10911"


async def test_closing_a_link_releases_those_who_wait_for_it() -> None:
    """Its broker hangs, and a new route no longer names it."""
    cluster = MemoryCluster(MemoryBroker("a", ADDRESS))
    cluster.answers["Heartbeat"] = lambda address, request: asyncio.Event().wait()
    link = BrokerLink(ADDRESS, cluster, client_pb2.HeartbeatRequest, None, clock=SystemClock())
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
        clock=SystemClock(),
    )
    link.watch()
    await link.until_watching()
    forgets = True
    broker.watchers["client"].put_nowait(None)
    await until(lambda: not broker.watchers, "the stream has ended")
    await until(lambda: bool(broker.watchers), "it is open again")
    await until(lambda: "client" in broker.clients, "the broker knows the client")
    await link.close(None)


def test_a_broker_that_refuses_streams_is_asked_ever_more_slowly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It takes heartbeats: what lies between lets no streams through."""

    class WithoutStreams(MemoryCluster):
        async def stream(self, address: str, rpc: Any, request: Any) -> AsyncGenerator[Any, None]:
            if address == ADDRESS:
                raise BrokerUnreachable(address, "no streams")
            yield

    cluster = WithoutStreams(MemoryBroker("a", ADDRESS))

    async def stay() -> None:
        link = BrokerLink(
            ADDRESS,
            cluster,
            client_pb2.HeartbeatRequest,
            lambda address, notice: None,
            clock=SystemClock(),
        )
        link.watch()
        await asyncio.sleep(60)
        await link.close(None)

    with caplog.at_level(logging.WARNING), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(stay())
    assert len(cluster.requests("Heartbeat")) < 40
    assert len(caplog.records) == 1


async def test_link_knows_how_far_the_clock_of_its_broker_is_ahead() -> None:
    cluster = MemoryCluster(MemoryBroker("a", ADDRESS))
    clock = ManualClock(1_000_000)

    def answer(address: str, request: Any) -> client_pb2.HeartbeatResponse:
        clock.advance(10)  # the way there and back
        return client_pb2.HeartbeatResponse(now_timestamp_ms=1_700_005)

    cluster.answers["Heartbeat"] = answer
    link = BrokerLink(ADDRESS, cluster, client_pb2.HeartbeatRequest, None, clock=clock)
    await link.until_tried()
    assert link.clock_ahead_ms == 700_000
    await link.close(None)


@pytest.mark.parametrize(("later_s", "heartbeats"), [(1.0, 1), (10.0, 2)])
def test_a_heartbeat_is_repeated_if_the_stream_opens_late(later_s: float, heartbeats: int) -> None:
    """The broker forgets a client without a stream, for example one that was frozen before."""
    cluster = MemoryCluster(MemoryBroker("a", ADDRESS))

    async def stay() -> None:
        link = BrokerLink(
            ADDRESS,
            cluster,
            lambda: client_pb2.HeartbeatRequest(client_id="client"),
            lambda address, notice: None,
            clock=SystemClock(),
        )
        await link.until_tried()
        await asyncio.sleep(later_s)
        link.watch()
        await link.until_watching()
        await asyncio.sleep(1)
        await link.close(None)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(stay())
    assert len(cluster.requests("Heartbeat")) == heartbeats
