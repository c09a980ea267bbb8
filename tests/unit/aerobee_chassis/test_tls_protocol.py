"""TLS of connections that share a buffer: their bytes, and clients that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ssl

import pytest

from aerobee_chassis.rpc.http2.handshake import TlsProtocol
from aerobee_chassis.tls_port import tls
from aerobee_chassis.tls_port.self_signed import make
from support.chassis.tls_port import trusting_anything

NOW = datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC)
TIMEOUT_S = 10.0


class Application(asyncio.BufferedProtocol):
    """The protocol above TLS, with a buffer of its own or that of TLS."""

    def __init__(self, buffer: memoryview) -> None:
        self.received = b""
        self.changes: list[str] = []
        self._buffer = buffer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]

    def pause_writing(self) -> None:
        self.changes.append("paused")

    def resume_writing(self) -> None:
        self.changes.append("resumed")


class Socket(asyncio.Transport):
    """The transport below TLS: it keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = ssl.MemoryBIO()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.write(data)

    def abort(self) -> None: ...


class Client:
    """A client of one connection, and the server's side of it."""

    def __init__(self, context: ssl.SSLContext, buffer: memoryview) -> None:
        self.application = Application(buffer)
        self.socket = Socket()
        self._buffer = buffer
        loop = asyncio.get_running_loop()
        self.server = TlsProtocol(loop, self.application, context, buffer, TIMEOUT_S)
        self._out = ssl.MemoryBIO()
        self.tls = trusting_anything().wrap_bio(self.socket.written, self._out)

    def shake_hands(self) -> None:
        self.server.connection_made(self.socket)
        while not hasattr(self.application, "transport"):
            with contextlib.suppress(ssl.SSLWantReadError):
                self.tls.do_handshake()
            self.deliver()

    def deliver(self) -> None:
        """Give the server what the client has written."""
        data = self._out.read()
        if data:
            self.server.get_buffer(-1)[: len(data)] = data
            self.server.buffer_updated(len(data))


@pytest.fixture
def context() -> ssl.SSLContext:
    return tls.load_pem(make(["localhost"], NOW))


async def test_connections_with_one_buffer_get_their_own_bytes(context: ssl.SSLContext) -> None:
    buffer = memoryview(bytearray(65_536))
    clients = [Client(context, buffer) for _ in range(2)]
    for client in clients:
        client.shake_hands()
    for turn in range(3):
        for number, client in enumerate(clients):
            client.tls.write(b"%d/%d," % (number, turn))
            client.tls.write(b"x" * 20_000)
        for client in clients:
            client.deliver()
    for number, client in enumerate(clients):
        wanted = b"".join(b"%d/%d," % (number, turn) + b"x" * 20_000 for turn in range(3))
        assert client.application.received == wanted
        client.application.transport.write(b"answer %d" % number)
        assert client.tls.read() == b"answer %d" % number
        client.application.transport.abort()


async def test_a_connection_stops_when_its_socket_takes_no_more(context: ssl.SSLContext) -> None:
    client = Client(context, memoryview(bytearray(65_536)))
    client.shake_hands()
    application = client.application
    application.transport.write(b"taken")
    assert application.changes == [] and client.tls.read() == b"taken"

    client.server.pause_writing()
    application.transport.write(b"kept")
    assert application.changes == ["paused"]
    client.server.resume_writing()
    assert application.changes == ["paused", "resumed"]
    assert client.tls.read() == b"kept"
    application.transport.abort()
