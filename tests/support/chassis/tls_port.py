"""Servers behind a TLS port, and clients of them, for the tests of the chassis."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import grpc
from grpc_health.v1 import health_pb2

from aerobee_chassis.lifecycle import Component
from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.rpc.call import Call
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import bind
from aerobee_chassis.tls_port.settings import TlsSettings
from aerobee_chassis.tls_port.supervisor import TlsServer

# grpc's own health service, under another name, is the service that is called.
DESCRIPTOR = health_pb2.DESCRIPTOR.services_by_name["Health"]
SERVICE = "test.Service"
Request: TypeAlias = health_pb2.HealthCheckRequest
Response: TypeAlias = health_pb2.HealthCheckResponse


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Handlers:
    """Of grpc.health.v1.Health. `peers`, `over_tls`: address and security of each caller."""

    def __init__(self) -> None:
        self.peers: list[str] = []
        self.over_tls: list[bool] = []

    async def check(self, request: Request, call: Call) -> Response:
        self.peers.append(call.peer)
        self.over_tls.append(call.is_encrypted)
        return Response(status=Response.SERVING)

    async def list(self, request: object, call: Call) -> health_pb2.HealthListResponse:
        return health_pb2.HealthListResponse()

    async def watch(self, request: object, call: Call) -> None:
        """One message; the stream stays open."""
        await call.write(Response(status=Response.SERVING))
        await asyncio.Event().wait()


class TlsTestServer:
    """A gRPC server behind a TLS port."""

    def __init__(
        self,
        tls: TlsSettings,
        host: str = "127.0.0.1",
        port: int = 0,
        grace_s: float = 0.0,
        limits: PortLimits | None = None,
        *,
        trusted: Sequence[str] = (),
    ) -> None:
        self.handlers = Handlers()
        self.server = TlsServer(
            self._make, host=host, port=port, tls=tls, limits=limits, trusted=trusted
        )
        self._grace_s = grace_s

    @property
    def port(self) -> int:
        return self.server.port

    def _make(self, host: str, port: int) -> Server:
        services = [dataclasses.replace(bind(DESCRIPTOR, self.handlers), name=SERVICE)]
        return Server(
            services, host=host, port=port, failure_of=lambda _: None, grace_s=self._grace_s
        )

    def plaintext(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=alone())

    async def tls(self) -> grpc.aio.Channel:
        """Trusts the certificate that the port shows now."""
        pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", self.port))
        return trusting(pem, self.port)


def alone() -> list[tuple[str, object]]:
    """A channel with connections of its own."""
    return [("grpc.use_local_subchannel_pool", 1)]


def trusting(pem: str, port: int) -> grpc.aio.Channel:
    credentials = grpc.ssl_channel_credentials(pem.encode())
    return grpc.aio.secure_channel(f"localhost:{port}", credentials, options=alone())


async def check(channel: grpc.aio.Channel) -> Response:
    call = channel.unary_unary(f"/{SERVICE}/Check", Request.SerializeToString, Response.FromString)
    answer: Response = await call(Request(), timeout=20)
    return answer


async def watch(channel: grpc.aio.Channel) -> grpc.aio.UnaryStreamCall[Request, Response]:
    """A stream that has sent its first message."""
    call = channel.unary_stream(f"/{SERVICE}/Watch", Request.SerializeToString, Response.FromString)
    watching = call(Request())
    first: Response = await watching.read()
    assert first.status == Response.SERVING
    return watching


@contextlib.asynccontextmanager
async def running(
    grace_s: float = 0.0, limits: PortLimits | None = None, **tls: Any
) -> AsyncIterator[TlsTestServer]:
    made = TlsTestServer(TlsSettings(**tls), grace_s=grace_s, limits=limits)
    try:
        await made.server.start()
        yield made
    finally:
        await made.server.stop()


@contextlib.asynccontextmanager
async def relaying(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    files: tuple[Path, Path],
    hello_timeout_ms: int = 10_000,
) -> AsyncIterator[tuple[TlsServer, int]]:
    """A TLS port in front of `serve`, which gets the bytes of each connection."""

    class Backend(Component):
        def __init__(self, host: str, _port: int) -> None:
            self._path = host.removeprefix("unix:")

        async def start(self) -> None:
            self._server = await asyncio.start_unix_server(serve, self._path)

        async def stop(self, grace_s: float | None = None) -> None:
            self._server.close()

    settings = TlsSettings(cert_path=str(files[0]), key_path=str(files[1]))
    server = TlsServer(
        Backend,
        host="127.0.0.1",
        port=0,
        tls=settings,
        limits=PortLimits(silent_ms=hello_timeout_ms),
    )
    try:
        await server.start()
        yield server, server.port
    finally:
        await server.stop()


def trusting_anything() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


async def dial(port: int, *, tls: bool) -> Stream:
    context = trusting_anything() if tls else None
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)
