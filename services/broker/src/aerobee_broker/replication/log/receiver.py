"""Run the slave's side of replication: agree with the master, receive the log, report progress.

    hello → welcome → cut or copy, synced → epochs, synced → report
    chunk → checked → appended (memory) → written and synced (flusher's thread) → report → derived

The slave writes all chunks that arrive during a disk write together in the next write. So one
report may cover many chunks. The slave derives only data that the master has confirmed, so a cut
affects only the log.

This module does not depend on a transport. The event loop owns its objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

import structlog

from aerobee_broker.commit.commit import OnArrivals
from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.errors import (
    MasterOutdated,
    MessageCorrupted,
    ReplicaRefused,
    StoreReadError,
    StoreWriteError,
    StreamBroken,
)
from aerobee_broker.replication.errors import LogDamaged
from aerobee_broker.replication.log.epochs import EpochFile
from aerobee_broker.replication.log.handshake import Action, Agreement, agree, checked_range
from aerobee_broker.replication.log.stream import (
    ChunkCheck,
    Hello,
    LogChunk,
    Report,
    StreamTiming,
    Welcome,
)
from aerobee_broker.store.follow import PIECE_BYTES, PIECE_MS
from aerobee_broker.store.message_store import MessageStore
from aerobee_chassis.background import until_one_ends
from aerobee_chassis.clock import Clock

# Limit of bytes that are received but not written. At this limit the slave stops reading.
MAX_UNWRITTEN_BYTES = 16 << 20
COPIED_BYTES = 4 << 20  # if the slave is further behind, chunks come from the master's disk
READ_AGAIN_S = 1.0  # seconds after a read of the log has failed


class MasterLink(Protocol):
    """A stream to the master that was opened with a `Hello`."""

    async def receive(self) -> Welcome | LogChunk | None:
        """Return the next message, or None if the master has ended the stream. Raises MqError."""

    async def send(self, report: Report) -> None:
        """Send a report. Raises MqError."""


class Preparation(Protocol):
    """Prepare the store for the agreement, before the slave follows. The result is durable."""

    def require(self, features: frozenset[str]) -> None:
        """Record that the master's log uses these features. Raises MqError."""

    async def prepare(self, agreement: Agreement, welcome: Welcome) -> None:
        """Cut or wipe the log, and take the snapshot, so that the log ends at `agreement.begin`.

        Raises MqError, OSError.
        """

    @property
    def is_due(self) -> bool:
        """Return whether an earlier preparation is unfinished.

        In this case a preparation is needed for every agreement.
        """


class ReplicationReceiver:
    """Follow a master, one stream at a time.

    `describe` returns the hello of this slave. `on_arrivals` is called with the derived messages.
    While the store is halted, it is called repeatedly until it has resumed the store.
    """

    def __init__(
        self,
        store: MessageStore,
        describe: Callable[[], Hello],
        epochs: EpochFile,
        preparation: Preparation,
        *,
        timing: StreamTiming,
        flusher: Worker,
        clock: Clock,
        on_arrivals: OnArrivals,
        on_current: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Create the receiver.

        `on_current` is called with the epoch when the disk has all data that this master, according
        to its last message, and earlier ones have confirmed.
        """
        self.lowest_of_master = 0  # physical offset; log files that reach beyond it are kept
        self.end_of_master = 0  # as last reported
        self._received = 0  # bytes since the last `take_received`
        # The end of the master's log when its epoch began: earlier masters may have confirmed all
        # of it. This master reports 0 as confirmed before it has enough replicas.
        self._current_from = 0
        self._store = store
        self._describe = describe
        self._epochs = epochs
        self._preparation = preparation
        self._timing = timing
        self._flusher = flusher
        self._clock = clock
        self._on_arrivals = on_arrivals
        self._on_current = on_current
        self._reported_confirmed: int | None = None  # by the master of this stream
        self._is_settled = False  # the epoch of this stream
        self._unwritten = asyncio.Event()  # set when something was appended
        self._written = asyncio.Event()  # set when something was written since the last wait
        self._confirmed = asyncio.Event()  # set when the master has reported a confirm offset

    def take_received(self) -> int:
        """Return the bytes of the log received since the last call."""
        received, self._received = self._received, 0
        return received

    async def hello(self) -> Hello:
        """Return the message that opens the stream. Raises the errors of a flush."""
        await self._flush_rest()
        return self._describe()

    async def follow(self, link: MasterLink, hello: Hello) -> None:
        """Follow the master until the stream ends.

        Raises ReplicaRefused, MasterOutdated, StreamBroken, OSError, and the errors of the store
        and the link.
        """
        self._reported_confirmed, self._is_settled = None, False
        welcome = await self._receive(link)
        if not isinstance(welcome, Welcome):
            raise StreamBroken("the master's first message is not a welcome")
        epoch = welcome.master.epoch
        agreement = agree(hello.slave, welcome.master)
        await self._compare(hello, welcome, agreement)
        structlog.get_logger().info(
            "agreed_with_master",
            master=str(welcome.master.replica),
            epoch=epoch,
            action=agreement.action.value,
            begin=agreement.begin,
        )
        self._preparation.require(welcome.master.required)
        if agreement.action is not Action.FOLLOW or self._preparation.is_due:
            await self._preparation.prepare(agreement, welcome)
        # After the cut, because the entries are not valid for the tail that is cut off.
        entries = welcome.master.history.entries
        await self._flusher(
            partial(self._epochs.change, lambda history: history.adopt(entries).note(epoch))
        )
        self._current_from = entries[-1].start if entries else 0
        await self._report(link, epoch)
        await until_one_ends(self._take_in(link, epoch), self._flush(link, epoch), self._derive())

    async def _compare(self, hello: Hello, welcome: Welcome, agreement: Agreement) -> None:
        checked = checked_range(hello.slave, welcome.master, agreement.agreed)
        slave, master = hello.slave.replica, welcome.master.replica
        shipper = self._store.shipper()
        try:
            if await self._flusher(partial(shipper.crc, *checked)) == welcome.crc:
                return
            # The master has checked its own records there.
            await self._flusher(partial(shipper.check, *checked))
        except MessageCorrupted as error:
            raise LogDamaged(str(slave), error.physical_offset) from None
        finally:
            self._flusher(shipper.close)  # runs after the read, also if that was cancelled
        raise ReplicaRefused(
            f"the log of replica {slave} differs from that of the master, {master}, before "
            f"physical offset {checked[1]}: both have the same epochs, and every record there "
            "passes its check. Keep both disks, and compare their messages (aerobee store dump); "
            "starting a replica with an empty storePathRootDir loses what it alone has",
            about="storePathRootDir",
        )

    async def _receive(self, link: MasterLink) -> Welcome | LogChunk | None:
        try:
            async with asyncio.timeout(self._timing.silence_ms / 1000):
                return await link.receive()
        except TimeoutError:
            raise StreamBroken(f"no chunk for {self._timing.silence_ms} ms") from None

    async def _take_in(self, link: MasterLink, epoch: int) -> None:
        store, check = self._store, ChunkCheck(epoch)
        while True:
            chunk = await self._receive(link)
            if chunk is None:
                return
            if not isinstance(chunk, LogChunk):
                raise StreamBroken("a second welcome")
            check.check(chunk, store.end_offset)
            if chunk.data:
                # A copy is read from the master's disk; an older master may not have checked it.
                copies = chunk.end - chunk.offset > COPIED_BYTES
                store.follower.append(chunk.offset, chunk.data, check_crc=copies)
                self._received += len(chunk.data)
                self._unwritten.set()
                while store.end_offset - store.flushed_offset > MAX_UNWRITTEN_BYTES:
                    self._written.clear()
                    await self._written.wait()
            self.lowest_of_master, self.end_of_master = chunk.lowest, chunk.end
            store.follower.confirm(chunk.confirmed, self._clock.monotonic_ms())
            self._reported_confirmed = chunk.confirmed
            await self._look_whether_settled(epoch)
            self._look_whether_current(epoch)
            self._confirmed.set()

    async def _flush(self, link: MasterLink, epoch: int) -> None:
        """Write and sync received data, and report it. Send a report at least every heartbeat."""
        while True:
            try:
                async with asyncio.timeout(self._timing.heartbeat_ms / 1000):
                    await self._unwritten.wait()
            except TimeoutError:
                pass
            self._unwritten.clear()
            await self._flush_rest()
            self._written.set()
            await self._report(link, epoch)

    async def _flush_rest(self) -> None:
        store = self._store
        if store.end_offset == store.flushed_offset:
            return
        store.flush.seal()
        # Wait for the write also when the stream ends: the next stream must not write meanwhile.
        flushing = asyncio.ensure_future(self._flusher(store.flush.write_and_sync))
        try:
            await asyncio.shield(flushing)
        finally:
            if not flushing.done():
                await asyncio.wait([flushing])
            if flushing.exception() is not None:
                store.flush.roll_back()

    async def _report(self, link: MasterLink, epoch: int) -> None:
        highest = self._epochs.history.highest
        if highest > epoch:  # no data may be confirmed in a lower epoch
            raise MasterOutdated("the master", epoch, highest)
        self._look_whether_current(epoch)
        store, time_ms = self._store, self._clock.now_ms()
        await link.send(Report(epoch, store.end_offset, store.flushed_offset, time_ms))

    async def _look_whether_settled(self, epoch: int) -> None:
        """Note once that the master of `epoch` has confirmed something of this epoch.

        Its set then meets the quorums of all masters before it.
        """
        history, confirmed = self._epochs.history, self._reported_confirmed or 0
        if self._is_settled or history.settled >= epoch or not history.can_settle(epoch, confirmed):
            return
        self._is_settled = True
        try:
            await self._flusher(partial(self._epochs.change, lambda history: history.settle(epoch)))
        except OSError as error:  # promotions then need more replicas than necessary
            structlog.get_logger().warning("epoch_not_settled", epoch=epoch, reason=str(error))

    def _look_whether_current(self, epoch: int) -> None:
        confirmed, flushed = self._reported_confirmed, self._store.flushed_offset
        if confirmed is not None and flushed >= max(confirmed, self._current_from):
            self._on_current(epoch)

    async def _derive(self) -> None:
        """Derive consume queues and index from confirmed data: large pieces at once, others later.

        A smaller piece waits for PIECE_MS, so that more data can join it.
        """
        follower = self._store.follower
        while True:
            self._confirmed.clear()
            while follower.underived or follower.halted:
                pause_s = PIECE_MS / 1000
                try:
                    arrivals = follower.derive(self._clock.monotonic_ms())
                    if arrivals or follower.halted:
                        self._on_arrivals(arrivals)
                except (StoreReadError, StoreWriteError) as error:
                    structlog.get_logger().warning("derive_put_off", reason=error.message)
                    pause_s = READ_AGAIN_S
                if follower.underived or follower.halted:
                    at_once = follower.underived >= PIECE_BYTES and pause_s < READ_AGAIN_S
                    await asyncio.sleep(0 if at_once else pause_s)
            await self._confirmed.wait()
