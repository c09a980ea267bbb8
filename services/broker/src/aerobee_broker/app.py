"""Run the process of a broker, and start and stop its components in order.

Start: store (locked, recovered), tables, delayed messages, port, metrics, name servers. Stop is the
reverse. The name servers are first, so that clients find other brokers. The store is last, after
everything is flushed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import structlog
from aerobee.broker.v1 import config_pb2

from aerobee_broker import declared_metrics as declared
from aerobee_broker.broker import Broker
from aerobee_broker.cluster.identity import Identity, free_port
from aerobee_broker.cluster.peers import Peers, broker_caller
from aerobee_broker.commit.worker_thread import Worker, WorkerThread
from aerobee_broker.config import BrokerOptions
from aerobee_broker.disk import Disk, RealDisk
from aerobee_broker.metadata.runtime_config import RuntimeConfig
from aerobee_broker.metrics import NODE_TYPE, BrokerMetrics
from aerobee_broker.replication.wiring import ReplicaProcess, refuse_replica
from aerobee_broker.rpc.config import ConfigRpcs
from aerobee_broker.scrubbing import Scrubbing
from aerobee_broker.shard_stores import check_stores
from aerobee_broker.store.format import THIS_BUILD, FormatFile
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.retention.retention import deletion_hint
from aerobee_broker.upkeep import periodic_work
from aerobee_broker.wiring.access import BrokerAccess
from aerobee_broker.wiring.environment import Environment
from aerobee_broker.wiring.name_server_registration import NameServerRegistration
from aerobee_broker.wiring.store import open_store, store_options
from aerobee_broker.wiring.tables import Tables
from aerobee_chassis.addresses import advertised_host, ip_of, join_address
from aerobee_chassis.background import BackgroundTask, PeriodicTask
from aerobee_chassis.clock import Clock, SystemClock, real_time
from aerobee_chassis.errors import PortInUse, StartError
from aerobee_chassis.lifecycle import App, Step
from aerobee_chassis.metrics.endpoint import MetricsEndpoint
from aerobee_chassis.metrics.process import (
    AuditCounts,
    QuotaCounts,
    audit_source,
    make_registry,
    port_source,
    quota_source,
)
from aerobee_chassis.metrics.push import PushExporter
from aerobee_chassis.metrics.series import Series
from aerobee_chassis.port_limits import limits_of
from aerobee_chassis.rpc.call import Failure
from aerobee_chassis.rpc.call_times import CallTimes
from aerobee_chassis.rpc.in_flight import bounds_of, failure_of, in_flight_source
from aerobee_chassis.rpc.peer_tls import watch_expiry
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import Adapt, Service, bind
from aerobee_cluster.name_servers import NameServers, resolve_host
from aerobee_wire.status import CODE_KEY, MqError

if TYPE_CHECKING:
    from aerobee_chassis.traces.exporter import SpanExporter

STOP_GRACE_S = 5.0  # seconds, the limit of a flush; long polls and streams are ended before that
PORT_ATTEMPTS = 5  # another process may take the free port first


class BrokerApp(App):
    """Run a broker.

    Tests replace `clock` and `disk`, and wrap the services with `adapt`. With `is_shard`, the
    broker is one of several shards, and the caller has checked their stores.
    """

    def __init__(
        self,
        options: BrokerOptions,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        adapt: Adapt = tuple,
        is_shard: bool = False,
    ) -> None:
        super().__init__()
        self.options = options  # the current ones
        self._is_shard = is_shard
        self._given = options
        self.broker: Broker | None = None  # set when it has started
        self.upkeep: list[PeriodicTask] = []
        self._adapt = adapt
        self._server: Server | None = None
        self._clock = clock or SystemClock()
        self._disk = disk or RealDisk()
        self._rng = random.Random()
        registry = make_registry(
            options, options.broker_cluster_name, NODE_TYPE, options.broker_name
        )
        self._metrics = BrokerMetrics(registry)
        self._in_flight = bounds_of(options)
        self._limits = limits_of(options)
        self._access: BrokerAccess | None = None  # set when it has started
        registry.register(port_source(self._limits.counts))
        registry.register(quota_source(self._quotas))
        registry.register(audit_source(self._audit))
        registry.register(in_flight_source("aerobee_", self._in_flight))
        registry.register(self._calls_waiting)
        self._span_exporter: SpanExporter | None = None
        if options.otlp_endpoint:
            from aerobee_chassis.traces.exporter import exporter_of

            self._span_exporter = exporter_of(options, NODE_TYPE)
            registry.register(self._span_exporter.collect)
        self._call_times: CallTimes | None = None
        if options.exports_metrics:
            times = self._call_times = CallTimes(declared.RPC_LATENCY, outcome_of)
            registry.register(lambda: (times.series,))

    def _quotas(self) -> QuotaCounts | None:
        return None if self._access is None else self._access.meter.buckets

    def _audit(self) -> AuditCounts | None:
        return None if self._access is None else self._access.audit

    def _calls_waiting(self) -> Iterator[Series]:
        waiting = self._in_flight
        yield Series(
            declared.PROCESSOR_WATERMARK,
            {("small",): waiting.small_waiting, ("large",): waiting.large_waiting},
        )

    async def _start_components(self) -> Mapping[str, object]:
        if self.options.shards > 1:
            problem = f"shards = {self.options.shards} needs a process for each: use aerobee broker"
            raise StartError(problem, "shards")
        if not self._is_shard:
            check_stores(self._disk, self.options.store_path_root_dir.expanduser(), shards=1)
        try:
            for attempt in range(1, PORT_ATTEMPTS + 1):
                try:
                    ready = await self._try_start()
                    self._warn_of_full_disk()
                    return ready
                except PortInUse:
                    if self.options.listen_port or attempt == PORT_ATTEMPTS:
                        raise
                    await self.lifecycle.stop()
        except MqError as error:
            raise StartError(error.message, error.about) from error
        raise AssertionError("not reached: the last attempt returns or raises")

    async def _try_start(self) -> Mapping[str, object]:
        environment = await self._environment()
        options = environment.options
        port = options.listen_port or free_port(options.bind_address)
        host = await asyncio.to_thread(
            advertised_host, options.broker_ip1, options.bind_address, options.namesrvs
        )
        store_host = join_address(await asyncio.to_thread(ip_of, host), port)
        identity = self._identity(join_address(host, port), store_host)
        access = self._access = BrokerAccess(options, environment.namesrvs, self._clock)
        if options.is_replicated:
            return await self._start_replica(environment, identity, port, access)
        refuse_replica(environment)
        store = await asyncio.to_thread(open_store, environment, store_host)
        await self.lifecycle.start(Step(stop=lambda: close_store(store, environment.flusher)))
        await self.lifecycle.start(Step(restore=access.restore))  # after the store is locked

        tables = Tables(environment)
        name_servers = NameServerRegistration(environment, identity, self._fail)
        registration = name_servers.make(identity.broker_id, tables)
        broker = Broker(
            environment,
            store,
            tables,
            identity,
            announce=registration.announce,
            spread=Peers(registration, identity, partial(broker_caller, options)).create,
        )
        server = self._make_server(environment, broker.services(), broker.use, access, port)
        self.upkeep = periodic_work(broker, tables, environment, server)
        reader = WorkerThread("scrub")
        scrubbing = Scrubbing(
            lambda: store, options, environment.clock.real, reader, environment.metrics
        )
        metrics = MetricsEndpoint(
            options,
            self._metrics.registry,
            ready=lambda: self.serving and not store.flush.read_only_reason,
            drained=lambda: self.drained,
        )
        await self.lifecycle.start(
            *broker.components(),
            *([] if access.audit is None else [access.audit]),
            server,
            Step(stop=broker.end_long_calls),
            *self.upkeep,
            Step(stop=reader.close),
            BackgroundTask("scrub", scrubbing.run),
            self._certificate_watch(),
            metrics,
            PushExporter(options, self._metrics.registry, self._clock.real),
            Step(stop=name_servers.close),
        )
        with real_time():  # liveness runs on real time, also in tests with a simulated clock
            await self.lifecycle.start(*access.components(), registration)
        self.broker = broker
        return {
            "address": server.address,
            "broker": options.broker_name,
            "advertised": identity.address,
            **metrics.ready_fields,
        }

    async def _start_replica(
        self, environment: Environment, identity: Identity, port: int, access: BrokerAccess
    ) -> Mapping[str, object]:
        """Start a replica. Its port opens before the replica has a role."""
        options, reader = self.options, WorkerThread("log reader")
        # Its server starts before the store is locked, and serves the table at once.
        await self.lifecycle.start(Step(restore=access.restore), Step(stop=reader.close))
        replica = ReplicaProcess(environment, identity, reader, self._fail)
        server = self._make_server(environment, replica.services, replica.use, access, port)
        metrics = MetricsEndpoint(
            options,
            self._metrics.registry,
            ready=lambda: self.serving and replica.serves,
            drained=lambda: self.drained,
        )
        await self.lifecycle.start(
            *([] if access.audit is None else [access.audit]),
            server,
            *replica.components(server),
            self._certificate_watch(),
            metrics,
            PushExporter(options, self._metrics.registry, self._clock.real),
        )
        with real_time():
            await self.lifecycle.start(*access.components())
        return {
            "address": server.address,
            "broker": options.broker_name,
            "advertised": identity.address,
            **metrics.ready_fields,
        }

    def _make_server(
        self,
        environment: Environment,
        services: Iterable[Service],
        use: Callable[[BrokerOptions], Awaitable[None]],
        access: BrokerAccess,
        port: int,
    ) -> Server:
        """Create the server of the port. `use` puts options that change at run time into effect."""

        async def use_here(options: BrokerOptions) -> None:
            self.options = options
            await use(options)

        config = bind(
            config_pb2.DESCRIPTOR.services_by_name["ConfigService"],
            ConfigRpcs(environment.config, use_here),
        )
        options = environment.options
        self._server = Server(
            self._adapt([*services, *access.services, config]),
            host=options.bind_address,
            port=port,
            failure_of=failure_of,
            grace_s=STOP_GRACE_S,
            in_flight=environment.in_flight,
            limits=self._limits,
            tls=options.server_tls(),
            access=access.checks,
            meter=access.meter,
            audit=access.audit,
            call_times=self._call_times,
        )
        return self._server

    def _certificate_watch(self) -> BackgroundTask:
        return BackgroundTask("certificates", partial(watch_expiry, self.options, self._clock))

    def _warn_of_full_disk(self) -> None:
        with suppress(OSError):
            usage = self._disk.usage(self.options.store_path_root_dir.expanduser())
            if hint := deletion_hint(usage, store_options(self.options)):
                structlog.get_logger().warning("disk_nearly_full", hint=hint)

    def _fail(self, error: MqError) -> None:
        self.fail(StartError(error.message, error.about))

    async def drain(self) -> None:
        """Wait until producers send to other brokers. A replica hands over when it stops."""
        self.serving = False
        if self.broker is not None:
            await self.broker.draining.move_producers()
        await super().drain()

    async def sever(self) -> None:
        """Close every connection at once, as if the process was killed."""
        if self._server is not None:
            await self._server.sever()

    async def _environment(self) -> Environment:
        flusher, writer = WorkerThread("flusher"), WorkerThread("config writer")
        await self.lifecycle.start(Step(stop=flusher.close), Step(stop=writer.close))
        path = self.options.store_path_root_dir.expanduser()
        config = RuntimeConfig(self._given, self._disk, path, writer)
        config.load()
        self.options = config.now
        traces = None
        if self._span_exporter is not None:
            from aerobee_broker.traces import BrokerTraces

            await self.lifecycle.start(self._span_exporter)
            traces = BrokerTraces(self._span_exporter)
        return Environment(
            traces=traces,
            config=config,
            clock=self._clock,
            disk=self._disk,
            path=path,
            flusher=flusher,
            writer=writer,
            rng=self._rng,
            metrics=self._metrics,
            format=FormatFile(self._disk, path),
            in_flight=self._in_flight,
            namesrvs=NameServers(
                self.options.namesrvs, None if self.options.verifies_hosts else resolve_host
            ),
        )

    def _identity(self, address: str, store_host: str) -> Identity:
        return Identity(
            cluster=self.options.broker_cluster_name,
            broker_name=self.options.broker_name,
            broker_id=self.options.broker_id,
            address=address,
            store_host=store_host,
            version=THIS_BUILD.version,
            start_timestamp_ms=self._clock.now_ms(),
            number=self.options.broker_id,
            process_id=f"{self._rng.getrandbits(64):016x}",
        )


async def close_store(store: MessageStore, flusher: Worker) -> None:
    """Close the store. Log a failure; the next start then recovers as after a crash."""
    try:
        await flusher(store.close)  # on the thread where upkeep may still be running
    except MqError as error:
        structlog.get_logger().error("store_not_closed", reason=error.message)


def outcome_of(failure: Failure) -> str:
    """Return the name of a failure for metrics: the code of the error, or gRPC's status."""
    return dict(failure.trailers).get(CODE_KEY, failure.status).lower()
