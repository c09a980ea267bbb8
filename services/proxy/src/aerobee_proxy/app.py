"""A proxy, wired: what it is made of, and in which order that starts and stops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import structlog
from apache.rocketmq.v2 import service_pb2

from aerobee_chassis.addresses import join_address
from aerobee_chassis.clock import Clock, SystemClock
from aerobee_chassis.errors import ConfigError
from aerobee_chassis.rpc.call import Failure
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import bind
from aerobee_chassis.tls_port.server import SharedServer
from aerobee_chassis.tls_port.settings import TlsSettings
from aerobee_proxy.cluster.transport import GrpcTransport
from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.metrics import ProxyCollector
from aerobee_proxy.v2.context import assemble
from aerobee_proxy.v2.errors import Refused
from aerobee_proxy.v2.rpc.servicer import Servicer
from aerobee_wire.status import MqError, grpc_status_of, trailers_of

if TYPE_CHECKING:
    from aerobee_chassis.metrics import MetricsEndpoint

DESCRIPTOR = service_pb2.DESCRIPTOR.services_by_name["MessagingService"]

STOP_GRACE_S = 1.0  # streams of clients last for ever: they are cut off
EXPIRY_SCAN_S = 5.0
USERS_SCAN_S = 2.0


class ProxyApp:
    """Starts metrics and the port; stops in reverse. Brokers may come later than it.

    `listeners`: of the port, where several processes share it.
    """

    def __init__(
        self,
        options: ProxyOptions,
        clock: Clock | None = None,
        listeners: Sequence[socket.socket] = (),
    ) -> None:
        if not options.namesrvs:
            raise ConfigError("namesrvAddr is empty: give --namesrv host:port")
        self._options = options
        self._listeners = listeners
        self._clock = clock or SystemClock()
        self._transport = GrpcTransport()
        self._parts = assemble(options, self._transport, self._clock)
        self._server = self._make_server(options)
        self._metrics: MetricsEndpoint | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._serving = False
        self._ready_fields: dict[str, object] = {}

    @property
    def ready_fields(self) -> Mapping[str, object]:
        return self._ready_fields

    @property
    def address(self) -> str:
        """The "host:port" that it serves on, once started."""
        return str(self._ready_fields["address"])

    async def start(self) -> None:
        """Serves when it returns. Raises StartError."""
        options = self._options
        if options.metrics_exporter_type == "PROM":
            self._start_metrics(options)
        self._run("session expiry", self._expire_sessions)
        self._run("lease renewal", self._parts.renewals.run)
        self._run("check-back", self._parts.check_back.run)
        if self._parts.authentication is not None:
            self._run("users", self._refresh_users)
        self._ready_fields["tls"] = options.tls_server_mode
        port = await self._server.start()
        self._parts.listen_port = port
        self._ready_fields["address"] = join_address(options.bind_address, port)
        self._serving = True

    async def stop(self) -> None:
        self._serving = False
        await self._server.stop(STOP_GRACE_S)
        if self._metrics is not None:
            self._metrics.stop()
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._parts.background.close()
        await self._parts.brokers.close()
        await self._transport.close()

    def _make_server(self, options: ProxyOptions) -> Server | SharedServer:
        services = [bind(DESCRIPTOR, Servicer(self._parts))]

        def make(host: str, port: int) -> Server:
            return Server(services, host=host, port=port, failure_of=failure_of)

        if options.tls_server_mode == "disabled":
            return make(options.bind_address, options.grpc_server_port)
        tls = TlsSettings(
            options.tls_server_mode,
            options.tls_cert_path,
            options.tls_key_path,
            options.tls_key_password.get_secret_value(),
            options.tls_cert_watch_interval_ms,
        )
        return SharedServer(
            make,
            host=options.bind_address,
            port=options.grpc_server_port,
            tls=tls,
            listeners=self._listeners,
        )

    def _start_metrics(self, options: ProxyOptions) -> None:
        from prometheus_client import CollectorRegistry  # with what it imports, 4 MB

        from aerobee_chassis.metrics import MetricsEndpoint

        registry = CollectorRegistry()
        connections = self._server.counts if isinstance(self._server, SharedServer) else None
        registry.register(ProxyCollector(self._parts.sessions, self._parts.counts, connections))
        host, port = options.metrics_prom_exporter_host, options.metrics_prom_exporter_port
        self._metrics = MetricsEndpoint(registry, host, port, lambda: self._serving)
        self._ready_fields["metrics"] = join_address(host, self._metrics.start())

    async def _expire_sessions(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_SCAN_S)
            for session in self._parts.sessions.expire(self._clock.monotonic_ms()):
                structlog.get_logger().info("client gone", client_id=session.client_id)

    async def _refresh_users(self) -> None:
        assert self._parts.authentication is not None
        while True:
            await asyncio.sleep(USERS_SCAN_S)
            self._parts.authentication.users.refresh()

    def _run(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(_for_ever(name, work), name=name))


async def _for_ever(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Runs `work`, and again should it fail: a defect in one round must not end all rounds."""
    while True:
        try:
            await work()
        except Exception:
            structlog.get_logger().exception("background work failed", work=name)
            await asyncio.sleep(1)


def failure_of(error: Exception) -> Failure | None:
    """How an error of the domain ends a telemetry stream; other RPCs answer with a status."""
    if isinstance(error, Refused):
        return Failure("INVALID_ARGUMENT", error.message)
    if isinstance(error, MqError):
        return Failure(grpc_status_of(error.code), error.message, trailers_of(error))
    return None
