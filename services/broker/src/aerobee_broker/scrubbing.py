"""Check the whole log in the background (scrub), slowly enough not to delay sends.

The scrub reads the log in pieces. A piece takes a fraction of a millisecond of processor time, and
a pause follows. The pause limits the scrub to `scrubRate`, and to at most 1 % of one processor.

The next scrub of the log begins `scrubInterval` after the previous one. If the store was not closed
in order, a scrub begins at once. If a reader finds a missing or damaged record, the scrub checks
that place within a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.config import BrokerOptions
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.store.integrity.scrub import Scrub
from aerobee_broker.store.message_store import MessageStore
from aerobee_chassis.background import pause
from aerobee_chassis.clock import Clock

LOOK_S = 1.0  # between two checks for suspects, and whether a round is due
SMALLEST_PIECE, LARGEST_PIECE = 64 << 10, 512 << 10  # bytes
PIECE_RECORDS = 500  # 0.7 ms of the processor, which is the longest wait of the loop
RECORD_S = 130e-6  # seconds of pause for each record, which takes 1.3 µs of the processor
# Speed-up after damage was found, because finding the rest of it is more important than sends.
HURRY = 8


class Scrubbing:
    """Scrub the open store.

    `find_store` returns the open store, or None if no store is open. It may return another store
    later.
    """

    def __init__(
        self,
        find_store: Callable[[], MessageStore | None],
        options: BrokerOptions,
        clock: Clock,
        worker: Worker,
        metrics: BrokerMetrics,
    ) -> None:
        """Create the object. `worker` is a thread that only the scrub uses."""
        self._find_store = find_store
        self._interval_ms = options.scrub_interval
        self._rate = options.scrub_rate
        self._clock = clock
        self._worker = worker
        self._metrics = metrics
        self._store: MessageStore | None = None
        self._scrub: Scrub | None = None
        self._last_ms = clock.monotonic_ms()
        self._repaired = 0  # repaired records of this store at the last measurement

    async def run(self) -> None:
        """Scrub until the task is cancelled."""
        try:
            while True:
                await pause(LOOK_S)
                store = self._find_store()
                if store is not None:
                    await self._look(store)
        finally:
            self._close()

    async def _look(self, store: MessageStore) -> None:
        if store is not self._store:
            self._close()
            self._store, self._scrub, self._repaired = store, store.scrub(), 0
            if not store.ended_in_order:
                self._last_ms = self._clock.monotonic_ms() - self._interval_ms
        assert self._scrub is not None
        await self._look_at_suspects(store, self._scrub)
        is_due = self._clock.monotonic_ms() - self._last_ms >= self._interval_ms
        if self._interval_ms and is_due:
            await self._round(store, self._scrub)
        self._measure(store)

    def _close(self) -> None:
        if self._scrub is not None:
            self._worker(self._scrub.close)
            self._scrub = self._store = None

    def _measure(self, store: MessageStore) -> None:
        before, self._repaired = self._repaired, store.repair.records
        damage = store.damage
        self._metrics.damage(len(damage.ranges), damage.damaged_bytes, self._repaired - before)

    async def _look_at_suspects(self, store: MessageStore, scrub: Scrub) -> None:
        suspects = store.damage.suspects
        while suspects:
            suspect = suspects[0]  # readers wait at a suspect: it stays until it has been read
            try:
                scrub.note(await self._worker(partial(scrub.read_near, suspect, SMALLEST_PIECE)))
            except OSError as error:
                structlog.get_logger().warning("scrub_put_off", reason=str(error))
                suspects.rotate(-1)  # it must not keep the scrub from the others
                return
            store.damage.checked(suspect)

    async def _round(self, store: MessageStore, scrub: Scrub) -> None:
        began_ms, known = self._clock.monotonic_ms(), store.damage.damaged_bytes
        scrub.begin()
        piece_bytes = SMALLEST_PIECE
        while not scrub.is_done:
            try:
                read = await self._worker(partial(scrub.read, piece_bytes))
            except OSError as error:  # a shortage of the process: the next round starts again
                structlog.get_logger().warning("scrub_put_off", reason=str(error))
                self._last_ms = self._clock.monotonic_ms()
                return
            if self._find_store() is not store:
                return  # it starts again with the other store
            scrub.take(read)
            size = max(0, read.piece.end - read.begin)
            self._metrics.scrubbed(size)
            self._measure(store)
            if store.damage.suspects:
                await self._look_at_suspects(store, scrub)
            wanted = size * PIECE_RECORDS // max(1, read.piece.records)
            piece_bytes = max(SMALLEST_PIECE, min(LARGEST_PIECE, wanted))
            pause_s = max(size / self._rate, read.piece.records * RECORD_S)
            await asyncio.sleep(pause_s / HURRY if scrub.found else pause_s)
        now_ms = self._last_ms = self._clock.monotonic_ms()
        self._metrics.scrub_completed(self._clock.now_ms())
        structlog.get_logger().info(
            "scrub_completed",
            bytes=scrub.bytes,
            records=scrub.records,
            duration_ms=now_ms - began_ms,
            damaged_bytes=store.damage.damaged_bytes,
            damaged_bytes_before=known,
        )
