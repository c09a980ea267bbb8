"""Run the master's side of replication: send the log, collect reports, confirm offsets.

    write (operating system) → chunks to all slaves ┐
              └ sync (this disk)                    ├→ in-sync set → confirm → answered, visible
                                       reports ─────┘

The master sends a chunk when its bytes are written, while its own disk syncs them. Bytes that are
written while a chunk is being sent form the next chunk. Bytes are sent only after they are written,
because a failed write is rolled back and must not have reached any replica.

An instance serves one epoch. This module does not depend on a transport. The event loop owns its
objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

import structlog
from isal.isal_zlib import crc32

from aerobee_broker.commit.commit import Replicas, Watermarks
from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.errors import MasterOutdated, MessageCorrupted, StreamBroken, TooFewReplicas
from aerobee_broker.replication.errors import (
    ChangeNotKnown,
    LogDamaged,
    NumberInUse,
    ReplicaNotRemoved,
)
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.in_sync.counts import ReplicaWaits
from aerobee_broker.replication.in_sync.in_sync_set import InSyncSet, Members
from aerobee_broker.replication.log.handshake import Agreement, LogDescription, agree, checked_range
from aerobee_broker.replication.log.stream import (
    ClockOffset,
    CopyPace,
    Hello,
    LogChunk,
    Report,
    ReportCheck,
    StreamTiming,
    Welcome,
)
from aerobee_broker.store.log.recent_writes import Part
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.ship import LogShipper
from aerobee_chassis.background import until_one_ends
from aerobee_chassis.clock import Clock
from aerobee_wire.route import FORMER_MASTER_ID

HOT_BYTES = 4 << 20  # end of the log: it is in the page cache, and read on the event loop
COPY_BYTES = 256 << 10  # limit of a chunk of a copy, because each chunk delays senders briefly
LARGE_BYTES = 64 << 10  # a chunk of this size means that whole batches are written
GATHER_MS = 10  # after a large chunk that no send waits for, the next one is gathered for this time
CLOCKS_DIFFER_MS = 500  # above this, a failover moves delivery times by more than that
ROUND_MS = 100  # between two checks of joining and leaving replicas, when nothing happens


class SlaveLink(Protocol):
    """A stream that a slave has opened."""

    async def receive(self) -> Report | None:
        """Return the next report, or None if the slave has ended the stream."""

    async def send(self, message: Welcome | LogChunk) -> None: ...


class CoordinatedSet(Protocol):
    """The in-sync set of this master's epoch, as the coordinator stores it. No method raises."""

    async def write(self, members: Members, confirmed: int) -> Members | None:
        """Write the set, and return the stored set, or None if the outcome is unknown."""

    async def read(self) -> Members | None: ...


class ReplicationSender(Replicas):
    """Replicate the log of a master. Implements `Replicas` of the commit.

    `describe` returns the description of this broker as master. `reader` reads parts of the log
    that are not at its end. `on_outdated` is called with a higher epoch that a slave knows.
    """

    def __init__(
        self,
        store: MessageStore,
        describe: Callable[[], LogDescription],
        in_sync: InSyncSet,
        members: CoordinatedSet,
        *,
        timing: StreamTiming,
        reader: Worker,
        clock: Clock,
        on_outdated: Callable[[int], None],
    ) -> None:
        self.in_sync = in_sync
        self._store = store
        self._describe = describe
        self._members = members
        self._timing = timing
        self._reader = reader
        self._clock = clock
        self._on_outdated = on_outdated
        self._on_progress: list[Callable[[], None]] = []
        self._streams: dict[int, _Stream] = {}  # by replica id
        self._flushed = self._visible = 0
        # Until this time, sends are stored and wait for the first slaves instead of being refused.
        # It is None before this master serves slaves.
        self._patient_until_ms: int | None = None
        self._changed = asyncio.Event()
        self.waits = ReplicaWaits()
        self._clocks: dict[Replica, ClockOffset] = {}

    def on_progress(self, advance: Callable[[], None]) -> None:
        """Register `advance`; it is called when a replica progressed or the set has changed."""
        self._on_progress.append(advance)

    # ---- Replicas of the commit ----

    @property
    def ship_at_once(self) -> bool:
        return not all(stream.gathers for stream in self._streams.values())

    def written(self, end_offset: int) -> None:
        for stream in self._streams.values():
            stream.wake.set()

    def watermarks(self, own: int, flushed: int) -> Watermarks:
        in_sync, now_ms = self.in_sync, self._clock.monotonic_ms()
        in_sync.stored(self._store.min_physical_offset, self._store.written_offset, own, now_ms)
        if len(in_sync.waited_for) > 1:
            self.waits.flushed(own, now_ms)
        self.waits.confirmed(in_sync.confirmed, now_ms)
        self._flushed = max(self._flushed, min(in_sync.confirmed, flushed))
        self._visible = max(self._visible, min(in_sync.shown, flushed))
        whole_set = in_sync.is_synchronous or in_sync.unmet is not None
        settled = in_sync.confirmed if whole_set else in_sync.acknowledged
        return Watermarks(in_sync.acknowledged, settled, self._flushed, self._visible)

    def check_sends(self) -> None:
        in_sync = self.in_sync
        if not in_sync.suffices and not self._is_patient():
            missing = [
                str(state.replica.replica_id)
                for state in in_sync.followers()
                if state.replica not in in_sync.members
            ]
            names = f"replica {', '.join(missing)}" if missing else "any other replica"
            if in_sync.unmet is not None:
                raise ChangeNotKnown(len(in_sync.members), in_sync.unmet.required, names)
            raise TooFewReplicas(len(in_sync.members), in_sync.required, names)
        if in_sync.is_unresolved and not in_sync.is_synchronous:
            late = in_sync.late(self._clock.monotonic_ms())
            if late:
                raise ReplicaNotRemoved(sorted(replica.replica_id for replica in late))

    def serves(self) -> None:
        """Record that slaves can follow from now on."""
        self._patient_until_ms = self._clock.monotonic_ms() + self.in_sync.max_not_caught_up_ms

    def _is_patient(self) -> bool:
        until_ms = self._patient_until_ms
        return until_ms is None or self._clock.monotonic_ms() < until_ms

    def slaves_at(self, physical_offset: int) -> list[int]:
        return [
            state.replica.replica_id or FORMER_MASTER_ID
            for state in self.in_sync.followers()
            if state.connected and state.lowest < physical_offset <= state.synced
        ]

    # ---- the in-sync set ----

    async def run(self) -> None:
        """Maintain the in-sync set until the task is cancelled."""
        while True:
            self._changed.clear()
            await self._keep_set()
            try:
                async with asyncio.timeout(ROUND_MS / 1000):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _keep_set(self) -> None:
        if self.in_sync.is_unresolved:
            members = await self._members.read()
        else:
            wanted = self.in_sync.next_change(self._clock.monotonic_ms())
            if wanted is None:
                return
            before = self.in_sync.members
            members = await self._members.write(wanted, self.in_sync.confirmed)
            structlog.get_logger().info(
                "in_sync_set_changed",
                joined=sorted(str(replica) for replica in wanted - before),
                members=sorted(str(replica) for replica in wanted),
                outcome="unknown" if members is None else "written",
            )
        self.in_sync.change_ended(members)
        self._progress()

    def _progress(self) -> None:
        for advance in self._on_progress:
            advance()

    # ---- streams ----

    async def serve(self, hello: Hello, link: SlaveLink) -> None:
        """Serve a slave until it disconnects.

        Raises the errors of `agree`, StreamBroken, NumberInUse. Raises LogDamaged, MessageNotFound
        or TransientReadError if the log cannot be read where the slave begins.
        """
        master = self._describe()
        try:
            agreement = agree(hello.slave, master)
        except MasterOutdated as error:  # a slave of this group; other slaves were refused before
            self._on_outdated(error.highest)
            raise
        shipper = self._store.shipper()
        try:
            checked = checked_range(hello.slave, master, agreement.agreed)
            await self._reader(partial(shipper.check, *checked))
            crc = await self._reader(partial(shipper.crc, *checked))
            await link.send(Welcome(master, crc))
            check = ReportCheck(master.epoch, agreement.begin)
            first = await link.receive()  # the slave may first take a snapshot and cut its log
            if first is None:
                return
            check.check(first)
            if first.written != agreement.begin:
                raise StreamBroken(f"the slave begins at {first.written}, not {agreement.begin}")
            stream = _Stream(hello.slave.replica, hello.process_id, link, shipper, check)
            await self._serve(hello, agreement, stream, first.synced)
        except MessageCorrupted as error:
            raise LogDamaged(str(master.replica), error.physical_offset) from None
        finally:
            self._reader(shipper.close)  # runs after a read that was cancelled

    async def _serve(
        self, hello: Hello, agreement: Agreement, stream: _Stream, synced: int
    ) -> None:
        replica, epoch = hello.slave.replica, stream.check.epoch
        # Several streams may wait for the same one to end: the first takes its place. The stream of
        # another process is not replaced: both may have copies of one disk, and what one of them
        # confirms is missing on the other.
        while (before := self._streams.get(replica.replica_id)) is not None:
            if before.replica != replica or before.process_id != hello.process_id:
                raise NumberInUse(str(before.replica), str(replica))
            await before.replace()
        lowest = agreement.begin if agreement.starts_anew else hello.slave.lowest
        self._streams[replica.replica_id] = stream
        self.in_sync.began(replica, lowest, agreement.begin, learner=hello.learner)
        # The slave may join with its first report, so that the group need not wait for the second.
        self.in_sync.reported(replica, synced, self._clock.monotonic_ms())
        self._changed.set()
        log = structlog.get_logger().bind(replica=str(replica))
        log.info("slave_follows", begin=agreement.begin, action=agreement.action.value)
        try:
            await until_one_ends(
                self._ship(stream, agreement.begin, epoch),
                self._receive(stream, replica),
                stream.until_replaced(),
            )
        finally:
            del self._streams[replica.replica_id]
            self.in_sync.ended(replica)
            self._changed.set()
            stream.ended.set()
            log.info("slave_gone")

    async def _ship(self, stream: _Stream, begin: int, epoch: int) -> None:
        position = begin
        pace = CopyPace(self._timing.copy_bytes_s, self._store.end_offset)
        data: Part
        while True:
            stream.wake.clear()
            copies = self._copies(stream, position)
            if copies and await self._paced(pace):
                data, following = b"", position  # a chunk without data
            else:
                data, following = await self._read(stream.shipper, position, copies=copies)
            if copies:
                pace.left(len(data), self._store.end_offset, self._clock.monotonic_ms())
            elif not data:
                try:
                    async with asyncio.timeout(self._timing.heartbeat_ms / 1000):
                        await stream.wake.wait()
                    continue
                except TimeoutError:
                    pass  # nothing was written: send a chunk without data
            chunk = LogChunk(
                epoch,
                position,
                data,
                crc32(data),
                self._visible,
                self._store.written_offset,
                self._store.min_physical_offset,
            )
            stream.check.sent(following)
            await stream.link.send(chunk)
            position = following
            if not copies and self._gathers(len(data), position):
                await stream.gather()

    def _gathers(self, sent: int, position: int) -> bool:
        """Return whether the next chunk may wait until it is large.

        Fewer chunks need less processor time on both sides.
        """
        if self.in_sync.is_synchronous or sent < LARGE_BYTES:
            return False
        return self._store.written_offset - position < LARGE_BYTES

    def _copies(self, stream: _Stream, position: int) -> bool:
        """Return whether the slave is far behind and the master does not wait for it."""
        behind = self._store.written_offset - position
        return behind > HOT_BYTES and stream.replica not in self.in_sync.waited_for

    async def _paced(self, pace: CopyPace) -> bool:
        """Wait until more of a copy may be sent, for at most a heartbeat.

        Return True if the copy must still wait.
        """
        wait_ms = pace.wait_ms(self._clock.monotonic_ms())
        if wait_ms > 0:
            await asyncio.sleep(min(wait_ms, self._timing.heartbeat_ms) / 1000)
        return wait_ms > self._timing.heartbeat_ms

    async def _read(self, shipper: LogShipper, position: int, *, copies: bool) -> tuple[Part, int]:
        most = self._timing.batch_bytes
        read = partial(shipper.read, position, min(most, COPY_BYTES) if copies else most)
        behind = self._store.written_offset - position
        chunk = read() if behind <= HOT_BYTES else await self._reader(read)
        return (b"", position) if chunk is None else (chunk.data, chunk.end)

    async def _receive(self, stream: _Stream, replica: Replica) -> None:
        while True:
            try:
                async with asyncio.timeout(self._timing.silence_ms / 1000):
                    report = await stream.link.receive()
            except TimeoutError:
                raise StreamBroken(f"no report for {self._timing.silence_ms} ms") from None
            if report is None:
                return
            stream.check.check(report)
            self._compare_clocks(replica, report)
            self.in_sync.reported(replica, report.synced, self._clock.monotonic_ms())
            self._progress()

    # ---- clocks ----

    def clock_offsets(self) -> dict[Replica, int]:
        """Return how far the wall clocks of slaves are ahead of this master's clock, in ms.

        Slaves that have followed for less than 5 seconds are left out.
        """
        return {
            replica: clock.ahead_ms
            for replica, clock in self._clocks.items()
            if clock.ahead_ms is not None
        }

    def _compare_clocks(self, replica: Replica, report: Report) -> None:
        """Log when the clock of a slave begins or ceases to differ from the master's clock.

        A difference matters because delivery times depend on the clock of the present master.
        """
        if not report.time_ms:
            return
        clock = self._clocks.setdefault(replica, ClockOffset())
        before_ms, now_ms = clock.ahead_ms or 0, self._clock.monotonic_ms()
        if clock.note(report.time_ms, self._clock.now_ms(), now_ms):
            ahead_ms = clock.ahead_ms or 0
            log = structlog.get_logger().bind(replica=str(replica), ahead_ms=ahead_ms)
            if abs(ahead_ms) > CLOCKS_DIFFER_MS >= abs(before_ms):
                log.warning("clocks_differ")
            elif abs(before_ms) > CLOCKS_DIFFER_MS >= abs(ahead_ms):
                log.info("clocks_agree")


class _Stream:
    """The stream of one slave."""

    def __init__(
        self,
        replica: Replica,
        process_id: str,
        link: SlaveLink,
        shipper: LogShipper,
        check: ReportCheck,
    ) -> None:
        self.replica = replica
        self.process_id = process_id
        self.link = link
        self.shipper = shipper
        self.check = check
        self.wake = asyncio.Event()  # set when something was written
        self.ended = asyncio.Event()
        self.gathers = False  # True while no chunk is sent, even if many bytes are written
        self._replaced = asyncio.Event()

    async def gather(self) -> None:
        self.gathers = True
        try:
            await asyncio.sleep(GATHER_MS / 1000)
        finally:
            self.gathers = False

    async def replace(self) -> None:
        """End this stream because the slave has opened another one. Return after it has ended."""
        self._replaced.set()
        await self.ended.wait()

    async def until_replaced(self) -> None:
        await self._replaced.wait()
        raise StreamBroken("the slave has opened another one")
