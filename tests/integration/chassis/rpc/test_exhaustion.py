"""Callers that exhaust a limit are ended, and a good caller is served meanwhile."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from aerobee_chassis.healthcheck import ACK, GOAWAY, PING, PREFACE, RST_STREAM, SETTINGS, frame
from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.rpc.call import Call
from aerobee_chassis.rpc.in_flight import InFlight
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import bind
from aerobee_wire.status import CODE_KEY
from support.chassis import descriptors
from support.chassis.http2 import begun_request, opened
from support.clock.polling import until

SERVICE = descriptors.service("Limits", Ask=(False, False))
MAX_CONCURRENT_STREAMS, REFUSED_STREAM = 3, struct.pack(">I", 7)  # RFC 9113, 6.5.2 and 7
BEGUN = PREFACE + frame(SETTINGS, 0, 0, b"") + frame(SETTINGS, ACK, 0, b"")


class Handlers:
    async def ask(self, request: StringValue, call: Call) -> StringValue:
        return StringValue(value=str(len(request.value)))


@pytest.fixture
def limits() -> PortLimits:
    return PortLimits(
        connections=8, connections_per_address=4, silent_ms=300, streams=5, arrival_s=1.0
    )


@pytest.fixture
async def server(limits: PortLimits) -> AsyncIterator[Server]:
    made = Server(
        [bind(SERVICE, Handlers())],
        host="127.0.0.1",
        port=0,
        failure_of=lambda _: None,
        grace_s=0,
        in_flight=InFlight(largest_request=1024 * 1024),
        limits=limits,
    )
    await made.start()
    yield made
    await made.stop()


class Raw:
    """A connection that sends bytes by hand, and keeps the bytes that it gets."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.received = b""
        self.writer = writer
        self.over = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while chunk := await reader.read(65_536):
            self.received += chunk

    @property
    def closed(self) -> bool:
        return self.over.done()


async def connect(server: Server, data: bytes = b"") -> Raw:
    raw = Raw(*await asyncio.open_connection("127.0.0.1", server.port))
    raw.writer.write(data)
    return raw


async def ask(server: Server, size: int) -> str:
    """Make a call on a connection of its own. Return the answer, or the name of the status."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel(server.address, options=options) as channel:
        call = channel.unary_unary(
            "/test.Limits/Ask", StringValue.SerializeToString, StringValue.FromString
        )
        try:
            answer = await call(StringValue(value="x" * size), timeout=10)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        return str(answer.value)


async def test_silent_connections_are_closed(server: Server) -> None:
    silent = [await connect(server, data) for data in (b"", PREFACE)]
    assert await ask(server, 3) == "3"
    await until(lambda: all(raw.closed for raw in silent), "silent connections are closed")
    assert await ask(server, 3) == "3"


async def test_connections_above_the_limits_are_closed(server: Server, limits: PortLimits) -> None:
    first = [await connect(server, BEGUN) for _ in range(3)]
    await until(lambda: limits.counts.open == 3)
    more = [await connect(server, BEGUN) for _ in range(3)]
    await until(lambda: sum(raw.closed for raw in more) == 2, "one address has four connections")
    assert limits.counts.refused == 2
    assert not any(raw.closed for raw in first)
    flood = [await connect(server, BEGUN) for _ in range(12)]
    await until(lambda: all(raw.closed for raw in flood), "also those above the total")
    for raw in (*first, *more):
        raw.writer.close()
    await until(lambda: limits.counts.open == 0)
    assert await ask(server, 3) == "3"


async def test_request_that_does_not_arrive_whole_ends_with_its_option(
    server: Server, limits: PortLimits
) -> None:
    slow = await connect(server, begun_request("/test.Limits/Ask", bytes(100), of=900_000))
    assert await ask(server, 3) == "3"
    await until(lambda: limits.counts.late == 1)
    await until(lambda: CODE_KEY.encode() in slow.received or b"requestArrival" in slow.received)
    assert await ask(server, 3) == "3"


async def test_large_request_is_rejected_before_it_is_read(server: Server) -> None:
    assert "RESOURCE_EXHAUSTED: " in await ask(server, 2 * 1024 * 1024)
    assert "1048576" in await ask(server, 2 * 1024 * 1024)
    assert await ask(server, 3) == "3"


async def test_streams_above_the_limit_of_a_connection_are_refused(
    server: Server, limits: PortLimits
) -> None:
    flood = await connect(server, BEGUN)
    announced = struct.pack(">HI", MAX_CONCURRENT_STREAMS, limits.streams)
    await until(lambda: announced in flood.received, "the settings say the limit")
    streams = range(1, 2 * (limits.streams + 3), 2)
    flood.writer.write(b"".join(opened("/test.Limits/Ask", stream) for stream in streams))
    refused = [frame(RST_STREAM, 0, stream, REFUSED_STREAM) for stream in streams[limits.streams :]]
    await until(lambda: all(each in flood.received for each in refused))
    assert not any(
        frame(RST_STREAM, 0, stream, REFUSED_STREAM) in flood.received
        for stream in streams[: limits.streams]
    )
    assert await ask(server, 3) == "3"


async def test_ping_flood_ends_its_connection(server: Server) -> None:
    flood = await connect(server, BEGUN + frame(PING, 0, 0, bytes(8)) * 40)
    await until(lambda: flood.closed, "the connection is closed")
    assert bytes([GOAWAY]) in flood.received and b"too_many_pings" in flood.received
    assert await ask(server, 3) == "3"
