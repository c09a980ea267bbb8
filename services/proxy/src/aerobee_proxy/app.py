"""Start and stop the components of a proxy process in order.

Background work starts first, then metrics, then the port. They stop in reverse order. The
connections to brokers close last, because handlers and background work use them until they have
ended. Brokers may start later than a proxy.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from aerobee.broker.v1 import config_pb2
from aerobee_foreign.apache.rocketmq.v2 import service_pb2
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code
from google.protobuf import message_factory
from google.protobuf.message import Message

from aerobee_chassis.background import BackgroundTask, PeriodicTask
from aerobee_chassis.clock import Clock, SystemClock
from aerobee_chassis.errors import ConfigError
from aerobee_chassis.lifecycle import App, Component, Step
from aerobee_chassis.metrics.endpoint import MetricsEndpoint
from aerobee_chassis.metrics.process import (
    audit_source,
    make_registry,
    port_source,
    quota_source,
)
from aerobee_chassis.metrics.push import PushExporter
from aerobee_chassis.port_limits import limits_of
from aerobee_chassis.rpc.access import Access
from aerobee_chassis.rpc.call import Failure
from aerobee_chassis.rpc.caller import Caller
from aerobee_chassis.rpc.in_flight import TooMuchInFlight, in_flight_source
from aerobee_chassis.rpc.peer_tls import watch_expiry
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import Method, bind
from aerobee_chassis.tls_port.certificates import PortCertificate
from aerobee_chassis.tls_port.settings import TlsSettings
from aerobee_cluster.name_servers import NameServers, resolve_host
from aerobee_proxy.access.table_users import TableUsers
from aerobee_proxy.cluster.broker_calls import error_of
from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.metrics import PREFIX, ProxyMetrics
from aerobee_proxy.options_rpcs import OptionsRpcs
from aerobee_proxy.proxy import Proxy
from aerobee_proxy.v2.admin import service as admin
from aerobee_proxy.v2.status import Refused, named, status
from aerobee_wire.access.signature import Signatures
from aerobee_wire.permissions import TABLE, Permissions, Row
from aerobee_wire.status import MqError, grpc_status_of, trailers_of

DESCRIPTOR = service_pb2.DESCRIPTOR.services_by_name["MessagingService"]
OPTIONS = config_pb2.DESCRIPTOR.services_by_name["ProxyConfigService"]
# The handlers of Admin check their callers by themselves, because tools sign calls like SDKs.
_CHECKS_ITSELF = Row(is_open=True)

# The gRPC status with which a refused telemetry stream ends. Codes that are missing here map to
# INVALID_ARGUMENT.
REFUSALS = {
    Code.UNAUTHORIZED: "PERMISSION_DENIED",
    Code.TOO_MANY_REQUESTS: "RESOURCE_EXHAUSTED",
}
GOODBYE_S = 0.05  # time for clients to read that the server does not accept new calls
# A Service of Kubernetes sends no new connections here by then. Until then, they are served.
FORGOTTEN_S = 5.0
DRAIN_GRACE_S = 10.0  # for calls that run when the proxy has drained
STOP_GRACE_S = 1.0  # short, because streams and long polls have ended by then
EXPIRY_SCAN_S = 5.0
USERS_SCAN_S = 2.0
RATES_S = 1.0
USERS_WAIT_S = 3.0  # at the start


class ProxyApp(App):
    """The proxy as a process that can be started and stopped.

    `listeners` are the listening sockets to use if several processes share the port. `clock`
    replaces the system clock in tests.
    """

    def __init__(
        self,
        options: ProxyOptions,
        clock: Clock | None = None,
        listeners: Sequence[socket.socket] = (),
    ) -> None:
        super().__init__()
        if not options.namesrvs:
            raise ConfigError("namesrvAddr is empty: give --namesrv host:port", "namesrvAddr")
        self._options = options
        self._limits = limits_of(options)
        self._clock = clock or SystemClock()
        self._transport = Caller(error_of, options.peer_tls())
        self.proxy = Proxy(
            options,
            self._transport,
            self._clock,
            listen_port=lambda: self._server.port,
            admin_address=lambda: "" if self._admin is None else self._admin.address,
            namesrvs=NameServers(
                options.namesrvs, None if options.verifies_hosts else resolve_host
            ),
        )
        self._draining = False
        self._certificate = _certificate_of(options)
        self._server = self._make_server(listeners)
        self._admin: Server | None = None
        if options.enable_proxy_admin_grpc_server:
            self._admin = self._make_admin_server()
        users = self.proxy.users
        registry = make_registry(options, "", "proxy", "")
        metrics = ProxyMetrics(
            self.proxy.sessions, self.proxy.counts, self._limits.counts, self._certificate
        )
        registry.register(metrics.collect)
        registry.register(in_flight_source(PREFIX, self.proxy.in_flight))
        registry.register(port_source(self._limits.counts))
        registry.register(quota_source(lambda: self.proxy.quotas))
        registry.register(audit_source(lambda: self.proxy.audit))
        self._span_exporter = Component()
        if options.otlp_endpoint:
            from aerobee_chassis.traces.exporter import exporter_of
            from aerobee_proxy.traces import ProxyTraces

            spans = self._span_exporter = exporter_of(options, "proxy")
            registry.register(spans.collect)
            self.proxy.sender.traces = ProxyTraces(spans)
        self._exporter = PushExporter(options, registry, self._clock)
        self._metrics = MetricsEndpoint(
            options,
            registry,
            ready=lambda: (
                self.serving and (users is None or users.complete or options.access_observe_only)
            ),
            drained=lambda: self.drained,
        )

    async def _start_components(self) -> Mapping[str, object]:
        await self.lifecycle.start(
            Step(start=self.proxy.config.load),
            self._span_exporter,
            Step(stop=self._transport.close),
            Step(stop=self.proxy.close),
            *self._background_work(),
            self._metrics,
            self._exporter,
            *([] if self.proxy.audit is None else [self.proxy.audit]),
            *self._wait_for_users(),
            *([] if self._certificate is None else [self._certificate]),
            self._server,
            *self._administration(),
            self._watch_readiness(),
            BackgroundTask("registration", self.proxy.registration.run),
            Step(stop=self.proxy.registration.leave),
            Step(stop=self._end_long_calls_soon),
        )
        admin = {} if self._admin is None else {"admin": self._admin.address}
        return {
            "address": self._server.address,
            **admin,
            "tls": self._options.tls_server_mode,
            **self._metrics.ready_fields,
        }

    async def drain(self) -> None:
        """Serve until load balancers have forgotten this proxy, then end its connections.

        Clients connect again, and so reach another proxy.
        """
        self.serving, self._draining = False, True
        self._server.set_serving(False)
        await asyncio.sleep(FORGOTTEN_S)
        self._end_long_calls_soon()
        await self._server.stop(DRAIN_GRACE_S)
        await super().drain()

    def _end_long_calls_soon(self) -> None:
        """Schedule the end of streams and long polls, GOODBYE_S after the server began to stop.

        By then, clients know that this proxy stops, and send their next requests to another proxy.
        """
        asyncio.get_running_loop().call_later(GOODBYE_S, self.proxy.end_long_calls)

    def _background_work(self) -> list[Component]:
        proxy = self.proxy

        async def expire_sessions() -> None:
            proxy.expire_clients()

        work: list[Component] = [
            PeriodicTask("session expiry", EXPIRY_SCAN_S, expire_sessions),
            BackgroundTask("broker watch", proxy.broker_watch.run),
            BackgroundTask("certificates", partial(watch_expiry, self._options, self._clock)),
            BackgroundTask("lease renewal", proxy.lease_renewal.run),
            BackgroundTask("transaction checks", proxy.transaction_checks.run),
        ]
        if isinstance(proxy.users, TableUsers):
            work.append(BackgroundTask("users", proxy.users.run))
            work.append(BackgroundTask("rights of running calls", proxy.recheck_calls))
        elif proxy.users is not None:
            work.append(PeriodicTask("users", USERS_SCAN_S, proxy.refresh_users))
        return work

    def _wait_for_users(self) -> list[Component]:
        """Return a component whose start waits for the users, but not for long.

        A load balancer that does not ask for the health sends clients as soon as the port is open.
        """
        users = self.proxy.users
        return [_UsersWait(users)] if isinstance(users, TableUsers) else []

    def _watch_readiness(self) -> Component:
        """Return a component that reports NOT_SERVING until the users are known."""
        users = self.proxy.users
        if not isinstance(users, TableUsers) or self._options.access_observe_only:
            return Component()

        async def report() -> None:
            self._server.set_serving(users.complete)
            await users.wait_until_complete()
            if not self._draining:
                self._server.set_serving(True)

        return BackgroundTask("readiness", report)

    def _administration(self) -> list[Component]:
        """Return the administration port, and what it needs; nothing if it is closed."""

        async def sample() -> None:
            self.proxy.rates.sample()

        if self._admin is None:
            return []
        return [PeriodicTask("rates", RATES_S, sample), self._admin]

    def _make_server(self, listeners: Sequence[socket.socket]) -> Server:
        options = self._options
        return Server(
            [bind(DESCRIPTOR, self.proxy.rpcs)],
            host=options.bind_address,
            port=options.grpc_server_port,
            failure_of=failure_of,
            grace_s=STOP_GRACE_S,
            in_flight=self.proxy.in_flight,
            limits=self._limits,
            busy_answer=busy_answer,
            tls=self._certificate,
            listeners=listeners,
            trusted=options.trusted_networks,
        )

    def _make_admin_server(self) -> Server:
        options = self._options
        return Server(
            [
                bind(admin.DESCRIPTOR, self.proxy.admin_rpcs),
                bind(OPTIONS, OptionsRpcs(self.proxy.config)),
            ],
            host=options.bind_address,
            port=options.proxy_admin_grpc_server_port,
            failure_of=failure_of,
            grace_s=STOP_GRACE_S,
            in_flight=self.proxy.in_flight,
            limits=self._limits,
            tls=self._certificate,
            trusted=options.trusted_networks,
            access=self._admin_access(),
            audit=self.proxy.audit,
        )

    def _admin_access(self) -> Access:
        """Return the check of callers that sign as callers of brokers do: the command."""
        options, clock, authentication = self._options, self._clock, self.proxy.authentication
        name = admin.DESCRIPTOR.full_name
        paths = [f"/{name}/{method.name}" for method in admin.DESCRIPTOR.methods]
        signatures = None
        if authentication is not None:
            signatures = Signatures(
                authentication.users.get, clock.real.now_ms, clock.real.monotonic_ms
            )
        return Access(
            Permissions(
                options.tls_cluster_name, table={**TABLE, **dict.fromkeys(paths, _CHECKS_ITSELF)}
            ),
            enforced=options.authentication_enabled,
            signatures=signatures,
            guesses=None if authentication is None else authentication.guesses,
            audit=self.proxy.audit,
        )


def _certificate_of(options: ProxyOptions) -> PortCertificate | None:
    """Return the certificate of the ports of a proxy, or None if they use plaintext."""
    if options.tls_server_mode == "disabled":
        return None
    return PortCertificate(
        TlsSettings(
            options.tls_server_mode,
            options.tls_cert_path,
            options.tls_key_path,
            options.tls_key_password.get_secret_value(),
            options.tls_cert_watch_interval_ms,
            options.tls_key_password_file,
        )
    )


class _UsersWait(Component):
    """Wait up to USERS_WAIT_S until a name server has sent the users."""

    def __init__(self, users: TableUsers) -> None:
        self._users = users

    async def start(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._users.wait_until_complete(), USERS_WAIT_S)


def failure_of(error: Exception) -> Failure | None:
    """Return the gRPC failure with which a telemetry stream ends; None for an unexpected error.

    Only telemetry streams need it. All other RPCs answer with a status inside the response.
    """
    if isinstance(error, Refused):
        return Failure(REFUSALS.get(error.code, "INVALID_ARGUMENT"), error.message)
    if isinstance(error, TooMuchInFlight):
        return Failure("RESOURCE_EXHAUSTED", str(error))
    if isinstance(error, MqError):
        return Failure(grpc_status_of(error.code), error.message, trailers_of(error))
    return None


def busy_answer(method: Method, error: TooMuchInFlight) -> Message | None:
    """Return the response that refuses a call because too many bytes are in flight.

    Return None for a method that does not belong to MessagingService.
    """
    rpc = DESCRIPTOR.methods_by_name.get(method.name)
    if rpc is None:  # a method of grpc.health.v1
        return None
    response: Message = message_factory.GetMessageClass(rpc.output_type)(
        status=named(status(Code.TOO_MANY_REQUESTS, str(error)))
    )
    return response
