"""A name server, wired: what it is made of, and in which order that starts and stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import structlog
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_chassis.addresses import join_address
from aerobee_chassis.clock import Clock, SystemClock
from aerobee_chassis.rpc.call import Failure
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import bind
from aerobee_namesrv.config import NamesrvOptions, RuntimeOptions
from aerobee_namesrv.kv_config import KVConfigManager
from aerobee_namesrv.liveness import remove_in_batches, scan_for_expired
from aerobee_namesrv.metrics import NamesrvCollector, RouteCounts
from aerobee_namesrv.routing.broker_live_table import BrokerLiveTable
from aerobee_namesrv.routing.removals import RemovalQueue
from aerobee_namesrv.routing.route_info_manager import RouteInfoManager
from aerobee_namesrv.rpc.brokers import BrokerRpcs
from aerobee_namesrv.rpc.edits import EditRpcs
from aerobee_namesrv.rpc.kv import KvRpcs
from aerobee_namesrv.rpc.routes import RouteRpcs
from aerobee_namesrv.rpc.runtime import RuntimeRpcs
from aerobee_namesrv.rpc.servicer import Servicer
from aerobee_wire.status import MqError, grpc_status_of, trailers_of

if TYPE_CHECKING:
    from aerobee_chassis.metrics import MetricsEndpoint

DESCRIPTOR = namesrv_pb2.DESCRIPTOR.services_by_name["NamesrvService"]

STOP_GRACE_S = 2.0  # no call takes longer; streams are ended before


class NamesrvApp:
    """Starts the key-value file, background tasks, metrics, and last the port; stops in reverse."""

    def __init__(self, options: NamesrvOptions, clock: Clock | None = None) -> None:
        self.options = RuntimeOptions(options)
        self.clock = clock or SystemClock()
        self.kv_config = KVConfigManager(options.kv_config_path)
        self.removals = RemovalQueue(options.un_register_broker_queue_capacity)
        self.broker_live_table = BrokerLiveTable(self.clock, self.removals)
        self.manager = RouteInfoManager(self.options, self.broker_live_table)
        self._counts = RouteCounts()
        self._tasks: list[asyncio.Task[None]] = []
        self._server = Server(
            [bind(DESCRIPTOR, self._servicer())],
            host=options.bind_address,
            port=options.listen_port,
            failure_of=failure_of,
        )
        self._metrics: MetricsEndpoint | None = None
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
        options = self.options.now
        self.kv_config.open()
        self._run("expiry scan", self._scan)
        self._run("removal", lambda: remove_in_batches(self.manager, self.removals))
        if options.metrics_exporter_type == "PROM":
            self._start_metrics(options)
        port = await self._server.start()
        self._ready_fields["address"] = join_address(options.bind_address, port)
        self._serving = True

    async def stop(self) -> None:
        self._serving = False
        # Streams last as long as their brokers: end them, or the grace would run out on each stop.
        self.broker_live_table.close_watches()
        await self._server.stop(STOP_GRACE_S)
        if self._metrics is not None:
            self._metrics.stop()
        for task in reversed(self._tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self.kv_config.close()

    def _servicer(self) -> Servicer:
        return Servicer(
            BrokerRpcs(self.manager, self.removals, self.kv_config, self.options),
            RouteRpcs(self.manager, self.kv_config, self.options, self.clock, self._counts),
            EditRpcs(self.manager),
            KvRpcs(self.kv_config),
            RuntimeRpcs(self.options),
        )

    def _start_metrics(self, options: NamesrvOptions) -> None:
        from prometheus_client import CollectorRegistry  # with what it imports, 4 MB

        from aerobee_chassis.metrics import MetricsEndpoint

        registry = CollectorRegistry()
        registry.register(NamesrvCollector(self.manager, self.removals, self._counts))
        host, port = options.metrics_prom_exporter_host, options.metrics_prom_exporter_port
        self._metrics = MetricsEndpoint(registry, host, port, lambda: self._serving)
        self._ready_fields["metrics"] = join_address(host, self._metrics.start())

    async def _scan(self) -> None:
        interval_ms = self.options.now.scan_not_active_broker_interval
        await scan_for_expired(self.broker_live_table, self.clock, interval_ms)

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
    """How an error of the domain is told to the caller."""
    if isinstance(error, MqError):
        return Failure(grpc_status_of(error.code), error.message, trailers_of(error))
    return None
