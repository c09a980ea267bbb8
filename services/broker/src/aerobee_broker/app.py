"""A broker's life: in which order its parts start and stop.

Start: store (locked, recovered), tables, delayed messages, port, name servers. Stop is the reverse:
name servers first, so that clients look elsewhere, and the store last, with everything flushed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from importlib import metadata

import structlog
from prometheus_client import CollectorRegistry

from aerobee_broker.broker import Broker, Surroundings, Tables, open_store
from aerobee_broker.cluster.addresses import advertised_host, free_port, store_ip
from aerobee_broker.cluster.grpc_clients import GrpcBrokerClient, GrpcNamesrvClient
from aerobee_broker.cluster.peers import Peers
from aerobee_broker.cluster.registration import Link, Registration, Timing
from aerobee_broker.commit.worker_thread import Worker, WorkerThread
from aerobee_broker.config import BrokerOptions
from aerobee_broker.disk import Disk, RealDisk
from aerobee_broker.identity import Identity
from aerobee_broker.metrics import Meters
from aerobee_broker.store.message_store import MessageStore
from aerobee_chassis.addresses import join_address
from aerobee_chassis.clock import Clock, SystemClock
from aerobee_chassis.errors import PortInUse, StartError
from aerobee_chassis.metrics import MetricsEndpoint
from aerobee_chassis.rpc.call import Failure
from aerobee_chassis.rpc.server import Server
from aerobee_wire.status import MqError, grpc_status_of, trailers_of

STOP_GRACE_S = 5.0  # as long as a flush may take; long polls and streams are ended before
PORT_ATTEMPTS = 5  # of a free port that somebody else takes first
STORE_UPKEEP_MS = 1_000
CLIENT_SCAN_MS = 10_000
LEASE_SNAPSHOT_MS = 30_000  # as much of the log is read at a start, a second or two
TRANSACTION_ROUND_MS = 1_000
MEASURE_MS = 10_000


class BrokerApp:
    """`clock`, `disk` and `rng` are for tests."""

    def __init__(
        self,
        options: BrokerOptions,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.options = options
        self._clock = clock or SystemClock()
        self._disk = disk or RealDisk()
        self._rng = rng or random.Random()
        self._registry = CollectorRegistry()
        self._meters = Meters(
            self._registry, cluster=options.broker_cluster_name, node_id=options.broker_name
        )
        self._cleanup = AsyncExitStack()
        self._ready_fields: dict[str, object] = {}
        self._serving = False

    @property
    def ready_fields(self) -> Mapping[str, object]:
        return self._ready_fields

    @property
    def address(self) -> str:
        """The "host:port" that it serves on, once started."""
        return str(self._ready_fields["address"])

    async def start(self) -> None:
        """Serves when it returns. Raises StartError."""
        try:
            for attempt in range(1, PORT_ATTEMPTS + 1):
                try:
                    return await self._start()
                except PortInUse:
                    if self.options.listen_port or attempt == PORT_ATTEMPTS:
                        raise
                    await self._cleanup.aclose()
        except MqError as error:
            raise StartError(error.message) from error

    async def stop(self) -> None:
        await self._cleanup.aclose()

    # ---- the steps ----

    async def _start(self) -> None:
        options = self.options
        around = self._surroundings()
        port = options.listen_port or free_port(options.bind_address)
        host = await asyncio.to_thread(
            advertised_host, options.broker_ip1, options.bind_address, options.namesrvs
        )
        store_host = join_address(await asyncio.to_thread(store_ip, host), port)
        store = await asyncio.to_thread(open_store, around, self._meters, store_host)
        self._cleanup.push_async_callback(self._close_store, store, around.flusher)

        tables = Tables(around)
        tables.load()
        identity = Identity(
            cluster=options.broker_cluster_name,
            broker_name=options.broker_name,
            broker_id=options.broker_id,
            address=join_address(host, port),
            version=metadata.version("aerobee-broker"),
            start_timestamp_ms=self._clock.now_ms(),
        )
        registration = Registration(
            options.namesrvs, lambda namesrv: self._link(namesrv, identity, tables)
        )
        broker = Broker(
            around,
            store,
            tables,
            self._meters,
            identity=identity,
            store_host=store_host,
            announce=registration.announce,
            spread=Peers(registration, identity, GrpcBrokerClient).create,
        )
        await self._restore(broker, tables)
        self._cleanup.push_async_callback(tables.save)
        self._cleanup.push_async_callback(broker.transactions.stop)
        self._cleanup.push_async_callback(broker.commit.drain)

        broker.schedule.start()
        self._cleanup.push_async_callback(broker.schedule.stop)
        broker.timers.start()
        self._cleanup.push_async_callback(broker.timers.stop)
        broker.pop.start()
        self._cleanup.push_async_callback(broker.pop.stop)
        server = await self._serve(broker, port)
        self._start_background_work(broker, tables, around, server)
        self._start_metrics()
        self._cleanup.push_async_callback(registration.stop)
        await registration.start()
        self._serving = True
        self._ready_fields |= {
            "address": join_address(options.bind_address, port),
            "broker": options.broker_name,
            "advertised": identity.address,
        }

    def _surroundings(self) -> Surroundings:
        flusher, writer = WorkerThread("flusher"), WorkerThread("config writer")
        self._cleanup.callback(flusher.close)
        self._cleanup.callback(writer.close)
        return Surroundings(
            options=self.options,
            clock=self._clock,
            disk=self._disk,
            path=self.options.store_path_root_dir.expanduser(),
            flusher=flusher,
            writer=writer,
            rng=self._rng,
        )

    @staticmethod
    async def _restore(broker: Broker, tables: Tables) -> None:
        """What the tables must hold besides their files, and what only the log knows."""
        broker.topics.create_system_topics()
        broker.groups.create_predefined()
        stored = [(topic, broker.store.queues(topic)) for topic in broker.store.topics()]
        adopted = broker.topics.adopt(stored)
        if adopted:
            structlog.get_logger().warning(
                "topics_adopted", topics=adopted, reason="in the commit log and not in topics.json"
            )
        broker.schedule.restore()
        broker.timers.restore()
        broker.pop.restore()
        broker.transactions.restore()
        broker.store.restored()
        for saved in tables.all_saved:
            await saved.try_save()  # on a full disk too: retention may make room

    async def _serve(self, broker: Broker, port: int) -> Server:
        server = Server(
            broker.services(), host=self.options.bind_address, port=port, failure_of=failure_of
        )
        await server.start()
        self._cleanup.push_async_callback(server.stop, STOP_GRACE_S)
        # Long polls and streams would use up the grace.
        self._cleanup.callback(broker.polls.close)
        self._cleanup.callback(broker.clients.close)
        return server

    def _start_background_work(
        self, broker: Broker, tables: Tables, around: Surroundings, server: Server
    ) -> None:
        options = self.options

        async def scan_clients() -> None:
            silent = broker.clients.scan()
            if silent:
                structlog.get_logger().info("clients_expired", clients=silent)

        async def upkeep() -> None:
            broker.store.maintain(self._clock.now_ms())
            more = True
            while more:
                more = await around.flusher(broker.store.upkeep)

        async def tell_health() -> None:
            serving = not broker.store.read_only_reason
            if serving != self._serving:
                self._serving = serving
                await server.set_serving(serving)

        async def save_leases() -> None:
            # What the snapshot has must not be rolled back later.
            await broker.log.durable()
            await tables.saved_leases.try_save()

        async def ask_about_transactions() -> None:
            if not broker.store.read_only_reason:
                await broker.checks.round()
                await broker.transactions.keep()

        async def measure() -> None:
            broker.administration.measure(options.broker_permission)

        for name, interval_ms, work in (
            ("offsets", options.flush_consumer_offset_interval, tables.saved_offsets.try_save),
            ("delays", options.flush_delay_offset_interval, tables.saved_delay_offsets.try_save),
            ("leases", LEASE_SNAPSHOT_MS, save_leases),
            ("store", STORE_UPKEEP_MS, upkeep),
            ("health", STORE_UPKEEP_MS, tell_health),
            ("clients", CLIENT_SCAN_MS, scan_clients),
            ("transactions", TRANSACTION_ROUND_MS, ask_about_transactions),
            ("measures", MEASURE_MS, measure),
        ):
            task = asyncio.get_running_loop().create_task(every(interval_ms, name, work), name=name)
            self._cleanup.push_async_callback(cancelled, task)

    def _start_metrics(self) -> None:
        options = self.options
        if options.metrics_exporter_type == "PROM":
            host, port = options.metrics_prom_exporter_host, options.metrics_prom_exporter_port
            endpoint = MetricsEndpoint(self._registry, host, port, lambda: self._serving)
            self._ready_fields["metrics"] = join_address(host, endpoint.start())
            self._cleanup.callback(endpoint.stop)

    def _link(self, namesrv: str, identity: Identity, tables: Tables) -> Link:
        options = self.options
        return Link(
            namesrv,
            GrpcNamesrvClient(namesrv),
            identity,
            tables.topics,
            broker_permission=options.broker_permission,
            timing=Timing.of(
                period_ms=options.register_name_server_period,
                timeout_ms=options.register_broker_timeout_mills,
            ),
        )

    @staticmethod
    async def _close_store(store: MessageStore, flusher: Worker) -> None:
        try:
            await flusher(store.close)  # where upkeep may still be under way
        except MqError as error:
            # The next start finds the directory as after a crash, and recovers.
            structlog.get_logger().error("store_not_closed", reason=error.message)


async def every(interval_ms: int, name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Does `work` again and again; a defect in one round does not end all rounds."""
    while True:
        await asyncio.sleep(interval_ms / 1000)
        try:
            await work()
        except Exception:
            structlog.get_logger().exception("background work failed", work=name)


async def cancelled(task: asyncio.Task[None]) -> None:
    """Ends a task and waits until it has ended."""
    task.cancel()
    await asyncio.wait([task])


def failure_of(error: Exception) -> Failure | None:
    """How an error of the domain is told to the caller."""
    if isinstance(error, MqError):
        return Failure(grpc_status_of(error.code), error.message, trailers_of(error))
    return None
