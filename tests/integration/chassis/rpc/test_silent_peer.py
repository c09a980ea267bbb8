"""A peer that takes a call and then says nothing, with the options of each who calls others."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_chassis.rpc.loops import open_channel
from aerobee_chassis.rpc.transport import CHANNEL_OPTIONS, CallFailed
from aerobee_client.cluster import transport as client

SETTINGS = bytes(3) + b"\x04" + bytes(5)  # an empty frame of HTTP/2
# What says when a peer is asked, and how long it has to answer.
QUICK = {"grpc.keepalive_time_ms": 50, "grpc.http2.ping_timeout_ms": 50}


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(SETTINGS)
    while await reader.read(65_536):
        pass
    writer.close()


@pytest.mark.parametrize("options", [CHANNEL_OPTIONS, client.CHANNEL_OPTIONS])
async def test_calls_to_a_silent_peer_fail(options: tuple[tuple[str, int], ...]) -> None:
    given = dict(options)
    assert QUICK.keys() <= given.keys()
    assert sum(given[name] for name in QUICK) <= 40_000
    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        channel = open_channel(f"127.0.0.1:{port}", tuple({**given, **QUICK}.items()))
        with pytest.raises(CallFailed) as caught:
            await channel.unary("/test.Words/Say", b"", 30)
        assert caught.value.status == "UNAVAILABLE"
        await channel.close()
