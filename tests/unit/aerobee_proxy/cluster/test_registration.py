"""The registration of a proxy: one stream to each name server, opened again when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aerobee.namesrv.v1.namesrv_pb2 import (
    RegisterProxyRequest,
    RegisterProxyResponse,
    UnregisterProxyResponse,
)

from aerobee_proxy.cluster import registration as module
from aerobee_proxy.cluster.registration import Registration
from aerobee_wire.rpcs import REGISTER_PROXY, UNREGISTER_PROXY
from support.clock.polling import until
from support.proxy.fake_transport import FakeTransport

NAMESRVS = "10.0.0.8:9876", "10.0.0.9:9876"


async def test_stream_is_opened_again_and_the_proxy_says_that_it_stops() -> None:
    ends = asyncio.Event()

    async def stream(
        address: str, request: RegisterProxyRequest
    ) -> AsyncIterator[RegisterProxyResponse]:
        yield RegisterProxyResponse()
        if address == NAMESRVS[0]:
            await ends.wait()
        else:
            await asyncio.Event().wait()

    transport = FakeTransport(RegisterProxy=stream, UnregisterProxy=UnregisterProxyResponse())
    process = RegisterProxyRequest(name="host:8081", process_id="p")
    registration = Registration(transport, NAMESRVS, lambda: process)
    task = asyncio.create_task(registration.run())
    await until(lambda: len(transport.requests(REGISTER_PROXY)) == 2, "both streams")
    ends.set()
    await until(lambda: len(transport.requests(REGISTER_PROXY)) >= 3, "a stream again")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    del transport.answers["RegisterProxy"]
    await registration.leave()
    assert [request.process_id for request in transport.requests(UNREGISTER_PROXY)] == ["p", "p"]


async def test_no_stream_opens_after_the_proxy_has_said_that_it_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name server that was down would list the proxy as missing."""
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
    transport = FakeTransport(UnregisterProxy=UnregisterProxyResponse())  # no stream opens
    process = RegisterProxyRequest(name="host:8081", process_id="p")
    registration = Registration(transport, NAMESRVS, lambda: process)
    task = asyncio.create_task(registration.run())
    await until(lambda: len(transport.requests(REGISTER_PROXY)) >= 4, "streams again")
    await registration.leave()
    tried = len(transport.requests(REGISTER_PROXY))
    await asyncio.wait_for(task, 10)
    assert len(transport.requests(REGISTER_PROXY)) == tried
