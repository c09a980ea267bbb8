"""Servers on a TLS port, and clients of them, for the tests of the chassis."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeAlias

import grpc
from grpc_health.v1 import health_pb2

from aerobee_chassis.lifecycle import Component
from aerobee_chassis.port_limits import PortCounts, PortLimits
from aerobee_chassis.rpc.call import Call
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import bind
from aerobee_chassis.tls_port.certificates import PortCertificate
from aerobee_chassis.tls_port.settings import TlsSettings

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
        self.name = ""  # in the last request

    async def check(self, request: Request, call: Call) -> Response:
        self.name = request.service
        self.peers.append(call.peer)
        self.over_tls.append(call.is_encrypted)
        return Response(status=Response.SERVING)

    async def list(self, request: object, call: Call) -> health_pb2.HealthListResponse:
        """The name of the last request, with which the answer is as large as that."""
        serving = Response(status=Response.SERVING)
        return health_pb2.HealthListResponse(statuses={self.name: serving})

    async def watch(self, request: object, call: Call) -> None:
        """One message; the stream stays open."""
        await call.write(Response(status=Response.SERVING))
        await asyncio.Event().wait()


class TlsTestServer(Component):
    """A server on a TLS port, with its certificate; without one if `tls` is None."""

    def __init__(
        self,
        tls: TlsSettings | None,
        host: str = "127.0.0.1",
        port: int = 0,
        grace_s: float = 0.0,
        limits: PortLimits | None = None,
        *,
        trusted: Sequence[str] = (),
    ) -> None:
        self.handlers = Handlers()
        self.limits = limits or PortLimits()
        self.certificate = None if tls is None else PortCertificate(tls)
        self._server = Server(
            [dataclasses.replace(bind(DESCRIPTOR, self.handlers), name=SERVICE)],
            host=host,
            port=port,
            failure_of=lambda _: None,
            grace_s=grace_s,
            limits=self.limits,
            tls=self.certificate,
            trusted=trusted,
        )

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def counts(self) -> PortCounts:
        return self.limits.counts

    async def start(self) -> None:
        if self.certificate is not None:
            await self.certificate.start()
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()
        if self.certificate is not None:
            await self.certificate.stop()

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


async def check(channel: grpc.aio.Channel, name: str = "") -> Response:
    call = channel.unary_unary(f"/{SERVICE}/Check", Request.SerializeToString, Response.FromString)
    answer: Response = await call(Request(service=name), timeout=20)
    return answer


async def last_name(channel: grpc.aio.Channel) -> str:
    """The name in the last request of `check`."""
    call = channel.unary_unary(
        f"/{SERVICE}/List",
        health_pb2.HealthListRequest.SerializeToString,
        health_pb2.HealthListResponse.FromString,
    )
    answer: health_pb2.HealthListResponse = await call(health_pb2.HealthListRequest(), timeout=20)
    (name,) = answer.statuses
    return str(name)


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
        await made.start()
        yield made
    finally:
        await made.stop()


def trusting_anything() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


async def dial(port: int, *, tls: bool) -> Stream:
    """Connect, and complete the handshake of TLS."""
    context = trusting_anything() if tls else None
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)
