"""Run the process of a name server: background work, and the order of start and stop.

The start order is: files, background work, metrics, port. The stop order is the reverse, except
that the streams of brokers, proxies and clients end before the port closes. Open streams would use
up the grace period, because they last as long as their clients.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import structlog
from aerobee.access.v1 import access_pb2
from aerobee.audit.v1 import audit_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_chassis import logs
from aerobee_chassis.background import BackgroundTask, PeriodicTask, pause
from aerobee_chassis.clock import Clock, SystemClock
from aerobee_chassis.errors import StartError
from aerobee_chassis.lifecycle import App, Step
from aerobee_chassis.metrics.endpoint import MetricsEndpoint
from aerobee_chassis.metrics.process import audit_source, make_registry, port_source, quota_source
from aerobee_chassis.metrics.push import PushExporter
from aerobee_chassis.port_limits import limits_of
from aerobee_chassis.rpc.in_flight import bounds_of, failure_of, in_flight_source
from aerobee_chassis.rpc.peer_tls import watch_expiry
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import Adapt, Service, bind
from aerobee_cluster.access.audit_lines import AuditHandlers
from aerobee_cluster.access.first_user import read_first_user
from aerobee_cluster.access.handlers import AccessHandlers
from aerobee_cluster.access.metering import CallMeter
from aerobee_cluster.access.quota_buckets import QuotaBuckets
from aerobee_cluster.access.store import KEEP_CURRENT_S, AccessStore, save_in
from aerobee_namesrv.config import NamesrvOptions, runtime_config
from aerobee_namesrv.kv_config import KVConfigManager
from aerobee_namesrv.metrics import PREFIX, NamesrvMetrics, RouteCounts
from aerobee_namesrv.routing.broker_live_table import BrokerLiveTable, RemovalQueue
from aerobee_namesrv.routing.log_records import LogRecords
from aerobee_namesrv.routing.proxies import ProxyTable
from aerobee_namesrv.routing.route_info_manager import Conflicts, RouteInfoManager
from aerobee_namesrv.rpc.admin import EditRpcs, KvRpcs, RuntimeRpcs
from aerobee_namesrv.rpc.brokers import BrokerRpcs
from aerobee_namesrv.rpc.proxies import ProxyRpcs
from aerobee_namesrv.rpc.routes import RouteRpcs
from aerobee_wire.access.users import User
from aerobee_wire.permissions import Permissions
from aerobee_wire.status import MqError

FIRST_SCAN_MS = 5_000


async def scan_for_expired(
    table: BrokerLiveTable,
    clock: Clock,
    interval_ms: int,
    sleep: Callable[[float], Awaitable[None]] = pause,
) -> None:
    """Submit expired brokers for removal every `interval_ms`; the first scan is after 5 s or less.

    A scan that is late is skipped, because this process was suspended. The heartbeats that arrived
    during that time have not been read yet.
    """
    pause_ms = min(FIRST_SCAN_MS, interval_ms)
    while True:
        due_ms = clock.monotonic_ms() + pause_ms
        await sleep(pause_ms / 1_000)
        late_ms = clock.monotonic_ms() - due_ms
        if late_ms > max(FIRST_SCAN_MS, interval_ms):
            structlog.get_logger().warning("expiry_scan_skipped", late_ms=late_ms)
        elif expired := table.expire():
            structlog.get_logger().warning("brokers_expired", count=expired)
        pause_ms = interval_ms


async def remove_in_batches(manager: RouteInfoManager, removals: RemovalQueue) -> None:
    """Unregister the brokers in the removal queue as soon as it is not empty."""
    while True:
        manager.unregister(await removals.next_batch())


STOP_GRACE_S = 2.0  # no call takes longer


class NamesrvApp(App):
    """Run a name server. Only tests pass `clock` and `adapt`, which wraps the services."""

    def __init__(
        self, options: NamesrvOptions, clock: Clock | None = None, *, adapt: Adapt = tuple
    ) -> None:
        super().__init__()
        self.options = runtime_config(options)
        self.clock = clock or SystemClock()
        self.kv_config = KVConfigManager(options.kv_config_path)
        self.removals = RemovalQueue(options.un_register_broker_queue_capacity)
        self.broker_live_table = BrokerLiveTable(self.clock, self.removals)
        self.manager = RouteInfoManager(self.options, self.broker_live_table, Conflicts(self.clock))
        self.proxies = ProxyTable(self.clock)
        self._log_records = LogRecords()
        self._proxy_rpcs = ProxyRpcs(self.proxies)
        self._counts = RouteCounts()
        self._in_flight = bounds_of(options)
        limits = limits_of(options)
        self._access_path = options.kv_config_path.with_name("accessTable.json")
        self.access = AccessStore(
            f"namesrv-{secrets.token_hex(4)}", self.clock.now_ms, save_in(self._access_path)
        )
        self._first_user: User | None = None
        self._audit = options.audit(self.clock)
        self._checks = options.access(
            Permissions(options.tls_cluster_name), self.access.table.user, self.clock, self._audit
        )
        quotas = QuotaBuckets(self.access.table, lambda: self.clock.monotonic_ms() / 1_000)
        self._server = Server(
            adapt([self._service(), self._access_service(options), self._audit_service()]),
            host=options.bind_address,
            port=options.listen_port,
            failure_of=failure_of,
            grace_s=STOP_GRACE_S,
            in_flight=self._in_flight,
            limits=limits,
            tls=options.server_tls(),
            access=self._checks,
            meter=CallMeter(quotas),
            audit=self._audit,
        )
        registry = make_registry(options, "", "nameserver", "")
        registry.register(NamesrvMetrics(self.manager, self.removals, self._counts).collect)
        registry.register(in_flight_source(PREFIX, self._in_flight))
        registry.register(port_source(limits.counts))
        registry.register(quota_source(lambda: quotas))
        registry.register(audit_source(lambda: self._audit))
        self._metrics = MetricsEndpoint(
            options, registry, ready=lambda: self.serving, drained=lambda: self.drained
        )
        self._exporter = PushExporter(options, registry, self.clock)

    async def _start_components(self) -> Mapping[str, object]:
        await self.lifecycle.start(
            Step(start=self.kv_config.open, stop=self.kv_config.close),
            Step(start=self.options.load),
            Step(start=self._restore_access),  # after the lock of the key-value file is held
            PeriodicTask("access table", KEEP_CURRENT_S, self.access.keep_current),
            BackgroundTask("first user", self._create_first_user),
            BackgroundTask("expiry scan", self._scan),
            BackgroundTask("certificates", partial(watch_expiry, self.options.now, self.clock)),
            BackgroundTask("removal", partial(remove_in_batches, self.manager, self.removals)),
            self._metrics,
            self._exporter,
            *([] if self._audit is None else [self._audit]),
            self._server,
            Step(stop=self.broker_live_table.close_watches),
            Step(stop=self.manager.close_broker_watches),
            Step(stop=self._proxy_rpcs.close),
            Step(stop=self.access.close),
            BackgroundTask("access recheck", partial(self.access.notify, self._users_changed)),
        )
        return {"address": self._server.address, **self._metrics.ready_fields}

    def _service(self) -> Service:
        return bind(
            namesrv_pb2.DESCRIPTOR.services_by_name["NamesrvService"],
            BrokerRpcs(
                self.manager, self.removals, self.kv_config, self.options, self._log_records
            ),
            RouteRpcs(
                self.manager,
                self.kv_config,
                self.options,
                self.clock,
                self._counts,
                proxies=self.proxies,
            ),
            self._proxy_rpcs,
            EditRpcs(self.manager),
            KvRpcs(self.kv_config),
            RuntimeRpcs(self.options),
        )

    def _access_service(self, options: NamesrvOptions) -> Service:
        log = structlog.get_logger().info
        return bind(
            access_pb2.DESCRIPTOR.services_by_name["NamesrvAccessService"],
            AccessHandlers(self.access, private=options.checks_callers, log=log),
        )

    def _audit_service(self) -> Service:
        return bind(
            audit_pb2.DESCRIPTOR.services_by_name["NamesrvAuditService"],
            AuditHandlers(self._audit.reader if self._audit else None),
        )

    def _restore_access(self) -> None:
        path = self._access_path
        try:
            self._first_user = read_first_user(
                self.options.now.init_authentication_user.get_secret_value()
            )
        except MqError as error:
            raise StartError(error.message, error.about) from None
        if self._first_user is not None:
            logs.SECRETS.hide("first user", self._first_user.secrets)
        try:
            self.access.restore_file(path)
        except (OSError, ValueError) as error:
            raise StartError(
                f"the access table {path} cannot be read: {error}; restore it, or move it away: "
                "brokers and other name servers have the table too",
                str(path),
            ) from None
        logs.hide_users([user.name for user in self.access.table.users()], self.access.user)
        if self.access.is_stale and len(self.access.table):
            structlog.get_logger().warning("access_table_stale", path=str(path))

    def _users_changed(self, names: set[str]) -> None:
        logs.hide_users(names, self.access.user)
        self._checks.recheck(names)

    async def _create_first_user(self) -> None:
        """Create the first user if there is no user, and no broker has one."""
        user = self._first_user
        await self.access.exchanged.wait()
        if user is not None and await self.access.create_first(user):
            structlog.get_logger().info("first_user_created", user=user.name)

    async def _scan(self) -> None:
        interval_ms = self.options.now.scan_not_active_broker_interval
        await scan_for_expired(self.broker_live_table, self.clock, interval_ms)
