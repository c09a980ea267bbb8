"""A replica in one virtual loop: its store on a simulated disk, its leader or follower as they are.

Made up: network, disk, the thread that flushes, and the coordinator, whose answers may be lost.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from aerobee_broker.commit.durable_log import DurableLog
from aerobee_broker.commit.group_commit import GroupCommit
from aerobee_broker.delivery.delay.progress import DelayOffsets
from aerobee_broker.delivery.pop.lease_table import LeaseTable
from aerobee_broker.delivery.standby import WarmLeases
from aerobee_broker.disk import read_file
from aerobee_broker.errors import ReplicaRefused, StreamBroken
from aerobee_broker.metadata.persistent_table import JsonFile, PersistentTable
from aerobee_broker.metadata.table import Table
from aerobee_broker.replication.identity import IdentityFile, Replica
from aerobee_broker.replication.in_sync.counts import ReplicaCounts
from aerobee_broker.replication.in_sync.in_sync_set import InSyncSet, Members
from aerobee_broker.replication.log.diverged import DivergedFiles
from aerobee_broker.replication.log.epochs import EpochFile
from aerobee_broker.replication.log.handshake import LogDescription
from aerobee_broker.replication.log.receiver import ReplicationReceiver
from aerobee_broker.replication.log.sender import ReplicationSender
from aerobee_broker.replication.log.snapshot import Snapshot
from aerobee_broker.replication.log.stream import Hello, Report, StreamTiming
from aerobee_broker.replication.role.enrollment import EnrollmentFile
from aerobee_broker.replication.role.preparation import Preparation, ReopenStore
from aerobee_broker.replication.role.snapshot_source import SnapshotSource
from aerobee_broker.replication.role.unfinished import UnfinishedFile
from aerobee_broker.replication.role.warm_lite import WarmLite
from aerobee_broker.store.format import FormatFile
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import Appended, Arrival, NewMessage
from aerobee_wire.status import MqError
from support.disk.replicated import REPLICATED, open_replica
from support.disk.simulated_disk import SimulatedDisk, never
from support.disk.stores import LOG, PATH, visible
from support.replication.journalled_tables import ReplicaTables
from support.replication.worker import SimulatedWorker

if TYPE_CHECKING:
    from support.replication.group import SimulatedGroup


# ---- replica parts ----
#
# What the preparation of a slave, and the snapshot of a master, ask of the rest of a broker: for a
# simulated replica.


CONFIG = PATH / "config"


@dataclass
class _Environment:
    flusher: Any
    writer: Any
    disk: Any
    clock: Any
    options: Any
    format: FormatFile
    path: Any = PATH


class _Tables:
    """Those that are not journalled."""

    def __init__(self, replica: SimulatedReplica, writer: Any) -> None:
        self._replica = replica
        self._writer = writer
        self.delay_offsets = DelayOffsets(replica.group.clock)
        self.saved_delay_offsets = self.file_of(self.delay_offsets, "delayOffset.json")

    def file_of(self, table: Table, name: str) -> PersistentTable:
        return PersistentTable(table, JsonFile(self._replica.disk, CONFIG / name), self._writer)


class ReplicaParts:
    """A ReplicaStore over the store that the replica has open."""

    def __init__(self, replica: SimulatedReplica, worker: Any) -> None:
        self.store = replica.opened()
        self.epochs = replica.epochs
        self.replica = replica.identity
        self.in_use = asyncio.Lock()
        options = SimpleNamespace(broker_cluster_name="c")
        clock = replica.group.clock
        store_format = FormatFile(replica.disk, PATH)
        store_format.load()
        self.environment = _Environment(worker, worker, replica.disk, clock, options, store_format)
        self.unfinished = UnfinishedFile(replica.disk, CONFIG / "unfinished.json")
        self.unfinished.load()
        self.enrollment = EnrollmentFile(replica.disk, CONFIG / "enrollment.json")
        self.enrollment.load()
        self._worker = worker
        self.diverged = DivergedFiles(replica.disk, PATH / "diverged")
        self.counts = ReplicaCounts()
        tables: Any = _Tables(replica, worker)
        environment: Any = self.environment
        self.tables = tables
        self.lite = WarmLite(environment, self.store, tables)
        self.own_tables = ReplicaTables(
            replica.disk, self.store, replica.group.clock, worker, parents=self.lite.lines
        )
        self.saved = self.own_tables.saved
        self.replay = self.own_tables.replay
        tables.topics = self.saved.tables.topics
        self.own_tables.restore()
        self.lite.load(self.replay.parents())
        self.leases = _leases(replica, self.store, worker)

    @property
    def is_unfinished(self) -> bool:
        return self.unfinished.is_due(self.store.end_offset)

    async def raise_generation(self, known: int) -> None:
        generation = max(self.enrollment.generation, known) + 1
        await self._worker(partial(self.enrollment.start, generation))

    def preparation(self, fetch: Callable[[int, int], Awaitable[Snapshot]]) -> Preparation:
        own: Any = self
        return Preparation(own, fetch)

    def snapshots(self, log: Any, epoch: int) -> SnapshotSource:
        """As master."""
        own: Any = self
        broker: Any = _Broker(log)
        return SnapshotSource(own, broker, epoch)


def _leases(replica: SimulatedReplica, store: MessageStore, writer: Any) -> WarmLeases:
    table = LeaseTable(replica.group.clock, lambda: leases.position)
    file = PersistentTable(table, JsonFile(replica.disk, CONFIG / "popLeases.json"), writer)
    leases = WarmLeases(store, table, file, "rmq_sys_REVIVE_LOG_c")
    return leases


class _Broker:
    def __init__(self, log: Any) -> None:
        self.log = log
        self.consuming = self.leases = self
        self.table = LeaseTable(log.store._clock, lambda: 0)


__all__ = ["ReopenStore", "ReplicaParts"]


T = TypeVar("T")

TOPIC = "orders"
RECONNECT_S = 0.1
FLUSH_TIMEOUT_MS = 5_000
TIMING = StreamTiming(batch_bytes=600)


# The process that a task belongs to: it is that of whoever made the task.
PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Process:
    """All tasks that began in it, to be killed as one."""

    def __init__(self, failures: list[BaseException]) -> None:
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)
        self._failures = failures
        self._is_over = False
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return asyncio.get_running_loop().create_task(work, context=self.context)

    def kill(self) -> None:
        self._is_over = True
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    def add(self, task: asyncio.Task[Any]) -> None:
        if self._is_over:  # begun by a timer of it, which nobody ends
            task.cancel()
            return
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, MqError):
            self._failures.append(error)


def make_task(loop: asyncio.AbstractEventLoop, work: Any, **named: Any) -> asyncio.Task[Any]:
    """The task factory of a loop with processes."""
    task = asyncio.Task(work, loop=loop, **named)
    context: contextvars.Context | None = named.get("context")
    process = PROCESS.get() if context is None else context.get(PROCESS)
    if process is not None:
        process.add(task)
    return task


class Coordinator:
    """The state of the group. `loses_answers`: how likely an answer to a write is lost; of such
    writes half take effect."""

    def __init__(self, rng: random.Random) -> None:
        self.epoch = 0
        self.master: Replica | None = None
        self.in_sync: Members = frozenset()
        self.loses_answers = 0.0
        self.away = False
        self.away_from: set[int] = set()  # the replicas that do not reach it
        self._rng = rng

    def elect(self, replica: Replica) -> int:
        self.epoch, self.master, self.in_sync = self.epoch + 1, replica, frozenset({replica})
        return self.epoch


class SetOfEpoch:
    """CoordinatedSet of one master."""

    def __init__(self, coordinator: Coordinator, replica: SimulatedReplica, epoch: int) -> None:
        self._coordinator = coordinator
        self._replica = replica
        self._epoch = epoch
        self._rng = random.Random(epoch)

    async def write(self, members: Members, confirmed: int) -> Members | None:
        await asyncio.sleep(0.003)
        if not self._answers():
            return None
        lost = self._rng.random() < self._coordinator.loses_answers
        if not lost or self._rng.random() < 0.5:
            self._coordinator.in_sync = members
        await asyncio.sleep(
            0.003
        )  # another may be elected meanwhile: this is the answer all the same
        return None if lost else members

    async def read(self) -> Members | None:
        await asyncio.sleep(0.003)
        if not self._answers():
            return None
        return self._coordinator.in_sync

    def _answers(self) -> bool:
        """Whether it does, and has no other master, of which this one then hears."""
        coordinator = self._coordinator
        if coordinator.away or self._replica.number in coordinator.away_from:
            return False
        if coordinator.epoch != self._epoch:
            self._replica.resign()
        return coordinator.epoch == self._epoch


class SimulatedReplica:
    """One replica: off, a slave that looks for the master, or a master."""

    def __init__(self, group: SimulatedGroup, number: int) -> None:
        self.number = number
        self.group = group
        self.disk = SimulatedDisk(group.rng.randrange(1 << 30))
        self.store: MessageStore | None = None
        self.leader: ReplicationSender | None = None
        self.commit: GroupCommit | None = None
        self.refused: MqError | None = None
        self.slowest_job_ms = 8.0  # of its flusher's thread
        self.identity = Replica(number, "")
        self.epochs = EpochFile(self.disk, CONFIG / "epochs.json")
        self.parts: ReplicaParts | None = None
        self.snapshots: SnapshotSource | None = None
        self.reports_too_much = 0  # bytes
        self.process = Process(group.failures)
        self._worker = SimulatedWorker(group.rng, most_ms=self.slowest_job_ms)

    # ---- life ----

    @property
    def is_up(self) -> bool:
        return self.store is not None

    @property
    def disk_fails(self) -> bool:
        return self.disk.fail_syncs is not never

    def opened(self) -> MessageStore:
        assert self.store is not None, f"replica {self.number} is off"
        return self.store

    def start(self) -> None:
        """As a slave; whoever is elected leads."""
        self._begin_process()
        store_id = IdentityFile(self.disk, CONFIG / "brokerIdentity.json", self.group.rng).load()
        self.identity = Replica(self.number, store_id)
        self.epochs = EpochFile(self.disk, CONFIG / "epochs.json")
        self.epochs.load()
        self._follow_with(open_replica(self.disk, REPLICATED, self.group.clock))

    def _follow_with(self, store: MessageStore) -> None:
        self.store = store
        self.parts = ReplicaParts(self, self._worker)
        self.process.spawn(self._look_for_master())
        self.process.spawn(self._keep())

    async def _keep(self) -> None:
        """Its tables are saved, what is derived is flushed."""
        store, parts = self.opened(), self.parts
        assert parts is not None
        while store is self.store:
            await asyncio.sleep(self.group.rng.uniform(0.2, 2))
            if not parts.in_use.locked() and store is self.store:
                store.maintain(self.group.clock.now_ms())
                while store.maintain_files():
                    pass
            await parts.saved.save()

    def stop_at_once(self, *, power: bool = False, silent: bool = False) -> None:
        """The process is killed, or the power goes. `silent`: its peers are not told."""
        self._end_process()
        self.store = None
        if power:
            self.disk = self.disk.after_power_cut(self.group.rng.randrange(1 << 30))
        else:
            self.disk = self.disk.after_kill()
        if not silent:
            self.group.network.break_streams(self.number)

    def fail_syncs(self) -> None:
        """From now on fdatasync of the log fails, until the process ends."""
        self.disk.fail_syncs = lambda path: path.parent == LOG

    def lose_disk(self) -> None:
        """It is off, and comes back with an empty disk under its old number."""
        assert not self.is_up
        self.disk = SimulatedDisk(self.group.rng.randrange(1 << 30))

    def report_too_much(self, count: int) -> None:
        """So many bytes, on each stream from the next one on."""
        self.reports_too_much = count

    def resign(self) -> None:
        """A master that has heard of another one: it begins again as a slave."""
        if self.leader is not None:
            asyncio.get_running_loop().call_soon(self._restart)

    def _restart(self) -> None:
        if self.leader is None or not self.is_up:
            return
        if self.disk_fails:
            self.stop_at_once()  # its store would not open
        else:
            self._end_process()
            self.opened().abandon()
            self.group.network.break_streams(self.number)
            self.start()

    def _begin_process(self) -> None:
        self.process = Process(self.group.failures)
        self._worker = SimulatedWorker(self.group.rng, most_ms=self.slowest_job_ms)

    def _end_process(self) -> None:
        self._worker.stop()
        self.process.kill()
        self.leader = self.commit = self.snapshots = None

    # ---- roles ----

    def describe(self) -> LogDescription:
        store, history = self.opened(), self.epochs.history
        return LogDescription(
            cluster="c",
            broker_name="b",
            replica=self.identity,
            history=history,
            epoch=history.highest,
            lowest=store.min_physical_offset,
            end=store.written_offset,
            confirmed=store.confirmed_offset,
            file_size=REPLICATED.commit_log_file_size,
        )

    async def lead(self, epoch: int) -> None:
        """Elected: whoever this replica followed is followed no more."""
        self._end_process()
        self.opened().abandon()
        self.group.network.break_streams(self.number)
        self._begin_process()
        store = self.store = open_replica(self.disk, REPLICATED, self.group.clock)
        end = store.end_offset
        self.epochs.save(self.epochs.history.begin(epoch, self.identity.store_id, end))
        parts = self.parts = ReplicaParts(self, self._worker)
        assert not parts.unfinished.is_due(end), f"{self.number} leads without its tables"
        parts.own_tables.derive_all()
        store.flush.open_to_appends()
        self.leader = ReplicationSender(
            store,
            self.describe,
            InSyncSet(self.identity, end, self.group.rules),
            SetOfEpoch(self.group.coordinator, self, epoch),
            timing=TIMING,
            reader=self._worker,
            clock=self.group.clock,
            on_outdated=lambda _: self.resign(),
        )
        self.commit = GroupCommit(
            store, self._worker, self._arrived, FLUSH_TIMEOUT_MS, replicas=self.leader
        )
        self.leader.serves()
        self.leader.on_progress(self.commit.advance)
        self.commit.advance()
        log = DurableLog(store, self.commit)
        self.snapshots = parts.snapshots(log, epoch)
        self.process.spawn(self.leader.run())
        await self.process.spawn(parts.own_tables.lead(log))
        self.process.spawn(self._keep())

    def _arrived(self, _arrivals: object) -> None:
        self.group.look_at(self)

    def _derived(self, arrivals: list[Arrival]) -> None:
        assert self.parts is not None
        self.parts.replay.arrived(arrivals)
        self._arrived(arrivals)

    async def _look_for_master(self) -> None:
        receiver = ReplicationReceiver(
            self.opened(),
            lambda: Hello(self.describe()),
            self.epochs,
            self._parts().preparation(self._fetch),
            timing=TIMING,
            flusher=self._worker,
            clock=self.group.clock,
            on_arrivals=self._derived,
        )
        while True:
            try:
                await self._follow(receiver)
            except ReopenStore:
                self.opened().abandon()
                self._follow_with(open_replica(self.disk, REPLICATED, self.group.clock))
                return
            except ReplicaRefused as error:
                self.refused = error
                return
            except (MqError, OSError):
                pass
            if self.store is not receiver._store:  # wiped
                return
            await asyncio.sleep(RECONNECT_S)

    def _parts(self) -> ReplicaParts:
        assert self.parts is not None
        return self.parts

    async def _fetch(self, epoch: int, log_begin: int) -> Snapshot:
        """From whoever is master of that epoch, if the network lets it."""
        for other in self.group.replicas:
            source = other.snapshots
            if other is not self and source is not None and other.epochs.history.highest == epoch:
                await asyncio.sleep(0.002)
                taking = other.process.spawn(source.take(epoch, log_begin))
                await asyncio.wait([taking], timeout=20)
                await asyncio.sleep(0.002)
                if not taking.done() or taking.cancelled():
                    break
                return taking.result()
        raise StreamBroken("no master answers")

    async def _follow(self, receiver: ReplicationReceiver) -> None:
        hello = await receiver.hello()
        master = self.group.master_for(self)
        if master is None:
            return
        stream = self.group.network.connect(self.number, master.number)
        leader = master.leader
        serving = master.process.spawn(_serve(leader, hello, stream.far))
        try:
            await receiver.follow(_Opened(stream.near, serving, self.reports_too_much), hello)
        finally:
            self.group.network.forget(stream)
            stream.break_off()

    # ---- what a client does ----

    async def send(self, number: int) -> Appended:
        """Returns when it is acknowledged."""
        assert self.leader is not None and self.commit is not None
        self.leader.check_sends()
        message = NewMessage(TOPIC, number % 2, b"%d|" % number * 20)
        appended = self.opened().append([message])[0]
        await self.commit.sent(self.opened().end_offset)
        return appended

    def visible(self) -> dict[tuple[int, int], bytes]:
        """Queue and offset → body, of all that may be read here now."""
        return {
            (queue_id, offset): body
            for (topic, queue_id), messages in visible(self.opened()).items()
            for offset, body in messages.items()
            if topic == TOPIC
        }

    def log_bytes(self, begin: int, end: int) -> bytes:
        """Of the log's files, as a process sees them."""
        size = REPLICATED.commit_log_file_size
        first = begin // size * size
        data = b"".join(
            read_file(self.disk, LOG / f"{start:020d}") for start in range(first, end, size)
        )
        return data[begin - first : end - first]


async def _serve(leader: ReplicationSender | None, hello: Hello, link: Any) -> None:
    """A handler of the master's process."""
    if leader is not None:
        await leader.serve(hello, link)


class _Opened:
    """MasterLink, which tells what the master's handler raised."""

    def __init__(self, end: Any, serving: asyncio.Task[None], too_much: int) -> None:
        """`too_much`: bytes by which reports go beyond the slave's log, but for the first one."""
        self._end = end
        self._serving = serving
        self._too_much = 0
        self._later = too_much

    async def receive(self) -> Any:
        receiving = asyncio.create_task(self._end.receive())
        try:
            await asyncio.wait((receiving, self._serving), return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                # Ended in order, with an error that is told, or by the end of its process.
                return None if self._serving.cancelled() else self._serving.result()
            return receiving.result()
        finally:
            receiving.cancel()

    async def send(self, report: Report) -> None:
        synced = report.synced + self._too_much
        written = max(report.written, synced)
        self._too_much = self._later
        await self._end.send(replace(report, written=written, synced=synced))
