"""A peer that takes a call and then says nothing, with the options of the services.

`integration/client/test_http2.py` has the same for the client.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from aerobee_chassis.rpc.http2.channel import Http2Channel
from aerobee_chassis.rpc.transport import CHANNEL_OPTIONS, CallFailed

SETTINGS = bytes(3) + b"\x04" + bytes(5)  # an empty frame of HTTP/2

# Decides when a peer is pinged, and how long it has to answer.
QUICK = replace(
    CHANNEL_OPTIONS,
    times=replace(CHANNEL_OPTIONS.times, silence_s=30, keepalive_s=0.05, ping_timeout_s=0.05),
)


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(SETTINGS)
    while await reader.read(65_536):
        pass
    writer.close()


async def test_calls_to_a_silent_peer_fail() -> None:
    times = CHANNEL_OPTIONS.times
    assert times.keepalive_s + times.ping_timeout_s <= 40
    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        channel = Http2Channel(f"127.0.0.1:{port}", QUICK)
        with pytest.raises(CallFailed) as caught:
            await channel.unary("/test.Words/Say", b"", 30)
        assert caught.value.status == "UNAVAILABLE"
        await channel.close()
