"""A broker of a simulated group: a machine with a disk and a clock, and the process on it.

Real: everything from the port's services down to the store's files. Made up: disk, threads, time,
network, etcd, the name server's sockets.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aerobee_broker.cluster.identity import Identity
from aerobee_broker.config import BrokerOptions
from aerobee_broker.disk import read_file
from aerobee_broker.metadata.runtime_config import RuntimeConfig
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.replication.role.role_runner import RoleRunner
from aerobee_broker.replication.wiring import ReplicaProcess
from aerobee_broker.store.format import THIS_BUILD, FormatFile
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.wiring.environment import Environment
from aerobee_chassis.lifecycle import Lifecycle
from aerobee_chassis.metrics.series import Registry
from aerobee_chassis.rpc.in_flight import failure_of
from aerobee_chassis.rpc.server import Server
from aerobee_wire.status import MqError
from support.clock.virtual_loop import LoopClock
from support.disk.simulated_disk import SimulatedDisk, never
from support.disk.stores import LOG, PATH, visible
from support.replication.worker import SimulatedWorker
from support.simulation.process_loop import Process

if TYPE_CHECKING:
    from support.simulation.cluster import SimulatedCluster

PORT = 10_911
LOG_FILE_BYTES = 64 << 10
SMALL_FILES = (
    "consumerOffset.json",
    "delayOffset.json",
    "deletedTopics.json",
    "enrollment.json",
    "epochs.json",
    "popLeases.json",
    "subscriptionGroup.json",
    "topics.json",
)
SMALL: Mapping[str, Any] = {
    "brokerName": "broker-a",
    "brokerClusterName": "c",
    "storePathRootDir": PATH,
    "mappedFileSizeCommitLog": LOG_FILE_BYTES,
    "mappedFileSizeConsumeQueue": 20 * 64,
    "maxMessageSize": 8_192,
    "maxHashSlotNum": 64,
    "maxIndexNum": 400,
    "autoCreateTopicEnable": False,
}
RESTART_S = 2.0  # of a process whose start has failed, as a supervisor does


class DriftingClock(LoopClock):
    """Of one machine. It gains `drift` ms a second, and is `ahead_ms` of the loop."""

    def __init__(self, drift: float) -> None:
        super().__init__()
        self._drift = drift
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + round(self.monotonic_ms() * self._drift / 1000) + self.ahead_ms


class BrokerNode:
    """`number`: of its machine, and its brokerId unless `broker_id` is given. `options`: keys of
    its broker.conf. `starts`: of its process. `build`: what it runs from its next start on."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        number: int,
        options: Mapping[str, Any],
        broker_id: int | None = None,
    ) -> None:
        self.number = number
        self.broker_id = number if broker_id is None else broker_id
        self.host = f"10.0.0.{number + 1}"
        self.address = f"{self.host}:{PORT}"
        self.options = options
        self.build = THIS_BUILD
        self.disk = SimulatedDisk(cluster.rng.randrange(1 << 30))
        self.clock = DriftingClock(cluster.rng.uniform(-0.5, 0.5))
        self.slowest_job_ms = 8.0  # of its flusher's thread
        self.process: Process | None = None
        self.failed: Exception | None = None  # its last start
        self.stopped_by: MqError | None = None  # it found that another process has its brokerId
        self.starts = 0
        self.was_damaged = False  # its log
        self.has_torn_log = False  # perhaps: its power was cut, and no start has read it since
        self._cluster = cluster
        self._replica: ReplicaProcess | None = None

    # ---- life ----

    @property
    def is_up(self) -> bool:
        return self.process is not None

    @property
    def disk_fails(self) -> bool:
        return self.disk.fail_syncs is not never

    def start(self) -> None:
        assert self.process is None, "it does not run"
        self.starts += 1
        process = self.process = self._cluster.loop.process(self.number)
        self._cluster.transport.off.discard(self.number)
        process.spawn(self._run(process))

    async def _run(self, process: Process) -> None:
        lifecycle = Lifecycle()
        try:
            await self._start(lifecycle)
        except (MqError, OSError) as error:
            self.failed = error
            self._cluster.loop.call_soon(self._stopped, process, context=self._cluster.outside)
            return
        await asyncio.Event().wait()

    def _stopped(self, process: Process) -> None:
        """Its start has failed: it is started again later."""
        if self.process is process:
            self.kill()
            self._cluster.loop.call_later(
                RESTART_S, self._start_again, context=self._cluster.outside
            )

    def _start_again(self) -> None:
        if self.process is None:
            self.start()

    async def _start(self, lifecycle: Lifecycle) -> None:
        cluster = self._cluster
        rng = random.Random(cluster.rng.randrange(1 << 30))
        options = BrokerOptions.from_values(
            {
                **SMALL,
                "bindAddress": self.host,
                "insecure": True,
                "brokerId": self.broker_id,
                **self.options,
            }
        )
        writer = SimulatedWorker(rng, most_ms=4.0)
        environment = Environment(
            config=RuntimeConfig(options, self.disk, PATH, writer),
            clock=self.clock,
            disk=self.disk,
            path=PATH,
            flusher=SimulatedWorker(rng, most_ms=self.slowest_job_ms),
            writer=writer,
            rng=rng,
            metrics=BrokerMetrics(Registry()),
            format=FormatFile(self.disk, PATH, self.build),
            namesrvs=options.namesrvs,
        )
        identity = Identity(
            cluster="c",
            broker_name=options.broker_name,
            broker_id=self.broker_id,
            address=self.address,
            store_host=self.address,
            version="0",
            start_timestamp_ms=self.clock.now_ms(),
            number=self.broker_id,
            process_id=f"{self.number}-{self.starts}",
        )
        reader = SimulatedWorker(rng, most_ms=2.0)
        replica = self._replica = ReplicaProcess(environment, identity, reader, self._fail)
        server = Server(replica.services, host=self.host, port=PORT, failure_of=failure_of)
        await lifecycle.start(server, *replica.components(server))
        self.has_torn_log = False

    def _fail(self, error: MqError) -> None:
        """It has found that it must not run."""
        cluster, process = self._cluster, self.process
        if not cluster.has_twin(self):
            raise AssertionError(f"replica {self.number} stops itself: {error.message}")
        self.stopped_by = error

        def stop() -> None:
            if self.process is process:
                self.kill()

        cluster.loop.call_soon(stop, context=cluster.outside)

    def kill(self) -> None:
        """The process ends; what it wrote stays in the page cache."""
        self._end()
        self.disk = self.disk.after_kill()
        self._cluster.network.break_streams(self.number)

    def lose_power(self) -> None:
        """The machine is gone: its peers are not told."""
        self._end()
        self._cluster.transport.off.add(self.number)
        self.disk = self.disk.after_power_cut(self._cluster.rng.randrange(1 << 30))
        self.has_torn_log = True

    def lose_power_at(self, changes: int) -> None:
        """In the midst of the change of its disk so many changes from now."""
        self.disk.crash_at = self.disk.steps + changes
        self.disk.on_cut = self._power_goes

    def _power_goes(self) -> None:
        assert self.process is not None, "it writes"
        process = self.process
        process.kill()

        def off() -> None:
            if self.process is process:
                self.lose_power()

        self._cluster.loop.call_soon(off, context=self._cluster.outside)

    def _end(self) -> None:
        assert self.process is not None, "it runs"
        self.process.kill()
        self.process = self._replica = None

    def configure(self, options: Mapping[str, Any]) -> None:
        """From its next start on."""
        self.options = {**self.options, **options}

    def lose_disk(self) -> None:
        """It is off, and comes back with an empty disk."""
        assert self.process is None
        self.disk = SimulatedDisk(self._cluster.rng.randrange(1 << 30))

    def put_disk_back(self, copy: SimulatedDisk) -> None:
        """Replace its disk by an earlier copy of it, as an operator does. It is off."""
        assert self.process is None
        self.disk = copy.copy()
        self.has_torn_log = False

    def put_log_back(self, copy: SimulatedDisk) -> None:
        """Replace only its log by an earlier one: recovery finds that the end is missing."""
        assert self.process is None
        self.was_damaged = True
        for path, data in copy.files().items():
            if path.parent == LOG:
                self.disk.put(path, data)

    def put_file_back(self, copy: SimulatedDisk, rng: random.Random) -> str:
        """Replace only one small file by an earlier one. It is off. Returns what was done."""
        assert self.process is None
        name = rng.choice(SMALL_FILES)
        path = PATH / "config" / name
        data = copy.files().get(path)
        if data is None or not self.disk.exists(path):
            return f"no {name}"
        self.disk.put(path, data)
        return f"older {name}"

    def damage_log(self, rng: random.Random) -> str:
        """Flip, zero or truncate a part of its log, as storage or an operator does. It is off.

        Returns what was done. The part is below what it was known to have confirmed.
        """
        assert self.process is None
        files = {path: data for path, data in self.disk.files().items() if path.parent == LOG}
        used = {path: len(data.rstrip(b"\0")) for path, data in files.items()}
        path = max((path for path in files if used[path]), default=None, key=lambda each: each.name)
        if path is None:
            return "nothing"
        self.was_damaged = True
        data, end = bytearray(files[path]), used[path]
        begin = rng.randrange(end)
        kind = rng.choice(("flip", "zero", "truncate"))
        if kind == "flip":
            for at in range(begin, min(begin + 3, end)):
                data[at] ^= 0xFF
        elif kind == "zero":
            data[begin:] = bytes(len(data) - begin)
        else:
            del data[begin:]
        self.disk.put(path, bytes(data))
        return f"{kind} at {begin} of {end}"

    def fail_syncs(self) -> None:
        """From now on fdatasync of the log fails, until the process ends."""
        self.disk.fail_syncs = lambda path: path.parent == LOG

    def fill_disk(self, room: int) -> None:
        """So many bytes are left, until it is started again."""
        self.disk.capacity = self.disk.used_bytes() + room

    # ---- what it is ----

    @property
    def roles(self) -> RoleRunner | None:
        return None if self._replica is None else self._replica.roles

    @property
    def store(self) -> MessageStore | None:
        """While it is open."""
        roles = self.roles
        return roles.own.store if roles is not None and roles.own.is_open else None

    @property
    def epoch_as_master(self) -> int:
        """0: it is none."""
        roles = self.roles
        return 0 if roles is None or roles.master is None else roles.epoch

    @property
    def in_sync(self) -> set[int]:
        """The numbers of the in-sync set of a master; none: it is no master."""
        roles = self.roles
        if roles is None or roles.master is None:
            return set()
        return {each.replica_id for each in roles.master.status().in_sync}

    @property
    def follows(self) -> bool:
        return self.roles is not None and self.roles.is_following

    def shown(self, topic: str) -> set[bytes]:
        """The bodies that its queues of a topic show."""
        assert self.store is not None
        queues = visible(self.store).items()
        return {body for (name, _), found in queues if name == topic for body in found.values()}

    def log_bytes(self, begin: int, end: int) -> bytes:
        """Of the log's files, as a process sees them."""
        first = begin // LOG_FILE_BYTES * LOG_FILE_BYTES
        data = b"".join(
            read_file(self.disk, LOG / f"{start:020d}")
            for start in range(first, end, LOG_FILE_BYTES)
        )
        return data[begin - first : end - first]
