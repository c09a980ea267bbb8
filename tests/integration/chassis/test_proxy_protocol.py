"""The PROXY protocol at a port: which balancers are trusted, and for which client they speak."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import grpc
import pytest

from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.tls_port.settings import TlsSettings
from support.chassis.tls_port import TlsTestServer, alone, check, trusting
from support.clock.polling import until

LOOPBACK = ("10.0.0.0/8", "127.0.0.0/8")
V1 = b"PROXY TCP4 192.0.2.7 10.0.0.1 5123 8081\r\n"
V1_IPV6 = b"PROXY TCP6 2001:db8::7 ::1 5123 8081\r\n"
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
V2 = SIGNATURE + b"\x21\x11\x00\x12" + bytes((192, 0, 2, 8, 10, 0, 0, 1)) + b"\x14\x03\x1f\x91"
V2 += b"\x04\x00\x03abc"  # a type-length-value
LOCAL = SIGNATURE + b"\x20\x00\x00\x00"


@asynccontextmanager
async def serving(
    *trusted: str, limits: PortLimits | None = None, mode: str = "permissive"
) -> AsyncIterator[TlsTestServer]:
    tls = None if mode == "disabled" else TlsSettings(mode)  # type: ignore[arg-type]
    made = TlsTestServer(tls, limits=limits, trusted=trusted)
    try:
        await made.start()
        yield made
    finally:
        await made.stop()


@asynccontextmanager
async def balancer(port: int, header: bytes, *, in_bytes: bool = False) -> AsyncIterator[int]:
    """A load balancer in front of a port. It sends a header at the begin of each connection."""
    pipes: set[asyncio.Task[None]] = set()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):  # a client that closes with unread bytes resets its end
            while data := await reader.read(65_536):
                writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_connection("127.0.0.1", port)
        if in_bytes:
            for byte in header:
                here.write(bytes((byte,)))
                await asyncio.sleep(0.001)  # a segment of its own
        else:
            here.write(header)
        pipes.update(asyncio.create_task(pipe(*ends)) for ends in ((reader, here), (there, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in pipes:
            task.cancel()
        await asyncio.gather(*pipes, return_exceptions=True)


def plaintext(port: int) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=alone())


@pytest.mark.parametrize("mode", ["permissive", "disabled"])
@pytest.mark.parametrize("in_bytes", [False, True])
@pytest.mark.parametrize(
    ("header", "client"),
    [(V1, "192.0.2.7:5123"), (V1_IPV6, "[2001:db8::7]:5123"), (V2, "192.0.2.8:5123")],
    ids=["v1", "v1 IPv6", "v2"],
)
async def test_the_client_is_the_one_that_a_trusted_balancer_names(
    header: bytes, client: str, in_bytes: bool, mode: str
) -> None:
    async with (
        serving(*LOOPBACK, mode=mode) as server,
        balancer(server.port, header, in_bytes=in_bytes) as port,
        plaintext(port) as channel,
    ):
        await check(channel)
        assert server.handlers.peers == [client]


async def test_tls_begins_after_the_header() -> None:
    async with serving(*LOOPBACK, mode="enforcing") as server, balancer(server.port, V2) as port:
        pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
        async with trusting(pem, port) as channel:
            await check(channel)
        assert server.handlers.peers == ["192.0.2.8:5123"]
        assert server.handlers.over_tls == [True]


async def test_a_balancer_that_speaks_for_itself_keeps_its_address() -> None:
    async with (
        serving(*LOOPBACK) as server,
        balancer(server.port, LOCAL) as port,
        plaintext(port) as channel,
    ):
        await check(channel)
        [peer] = server.handlers.peers
        assert peer.startswith("127.0.0.1:")


@pytest.mark.parametrize(
    ("trusted", "sent"),
    [
        (LOOPBACK, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),  # no header
        (LOOPBACK, b"\x16\x03\x01"),
        (LOOPBACK, b"PROXY TCP4 192.0.2.7 10.0.0.1\r\n"),
        (LOOPBACK, V2[:15] + b"\x02"),
        (LOOPBACK, V1 + V1),  # the client sends one, too
        (("10.0.0.0/8", "::/0"), V1),
        ((), V1),
        ((), V2),
    ],
    ids=str,
)
async def test_other_connections_are_closed_and_counted(
    trusted: tuple[str, ...], sent: bytes
) -> None:
    async with serving(*trusted) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(1)
        writer.close()
        await until(lambda: server.counts.refused_headers == 1, "it is counted")
        assert server.handlers.peers == []


async def test_an_unfinished_header_ends_as_a_silent_connection() -> None:
    async with serving(*LOOPBACK, limits=PortLimits(silent_ms=50)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(V1[:20])
        assert await reader.read() == b""
        writer.close()
        await until(lambda: server.counts.silent == 1, "it is counted")


async def test_limits_are_those_of_the_client_and_not_of_the_balancer() -> None:
    limits = PortLimits(connections_per_address=1)
    async with (
        serving(*LOOPBACK, limits=limits) as server,
        balancer(server.port, V1) as first,
        balancer(server.port, V2) as second,
        plaintext(first) as one,
        plaintext(second) as other,
    ):
        await check(one)
        await check(other)
        reader, writer = await asyncio.open_connection("127.0.0.1", first)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(1)
        writer.close()
        await until(lambda: server.counts.refused == 1, "it is counted")
        await one.close(None)

        async def served() -> bool:
            async with plaintext(first) as again:
                try:
                    await check(again)
                except grpc.aio.AioRpcError:
                    return False
            return True

        await until(served, "its connection has ended")
