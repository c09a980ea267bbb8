"""A peer that takes a call and then says nothing, with the options of the services.

`integration/client/test_http2.py` has the same for the client.
"""

from __future__ import annotations

import asyncio

import pytest

from aerobee_chassis.rpc.loops import open_channel
from aerobee_chassis.rpc.transport import CHANNEL_OPTIONS, CallFailed

SETTINGS = bytes(3) + b"\x04" + bytes(5)  # an empty frame of HTTP/2
# What says when a peer is asked, and how long it has to answer.
QUICK = {"grpc.keepalive_time_ms": 50, "grpc.http2.ping_timeout_ms": 50}


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(SETTINGS)
    while await reader.read(65_536):
        pass
    writer.close()


async def test_calls_to_a_silent_peer_fail() -> None:
    given = dict(CHANNEL_OPTIONS)
    assert QUICK.keys() <= given.keys()
    assert sum(given[name] for name in QUICK) <= 40_000
    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        channel = open_channel(f"127.0.0.1:{port}", tuple({**given, **QUICK}.items()))
        with pytest.raises(CallFailed) as caught:
            await channel.unary("/test.Words/Say", b"", 30)
        assert caught.value.status == "UNAVAILABLE"
        await channel.close()
