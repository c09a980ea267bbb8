"""Delivery of messages that wait for their own time: one delivery loop, over the timer table.

Waiting messages in log files that retention wants to delete are moved to the end of the queue.

The table is filled before the broker serves clients. With `fills_later`, as for a new master, it is
filled in the background, so that other parts need not wait. Delivery starts when it is filled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import structlog

from aerobee_broker.commit.durable_log import DurableLog
from aerobee_broker.delivery.delay.delivery_loop import (
    BATCH_BYTES,
    BATCH_MESSAGES,
    Batch,
    DeliveryLoop,
    DueCopies,
    full_copy,
)
from aerobee_broker.delivery.delay.progress import newest_progress, progress_record
from aerobee_broker.delivery.delay.timer_format import (
    QUEUE_ID,
    TimerQueue,
    recall_marker,
    unit_code,
)
from aerobee_broker.delivery.delay.timer_table import (
    BLOCK_OFFSETS,
    Mark,
    TimerTable,
    due_of,
    key_of,
    offset_of,
)
from aerobee_broker.errors import StoreReadError
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.store.messages import Arrival, NewMessage, Unit
from aerobee_chassis.clock import Clock
from aerobee_chassis.lifecycle import Component
from aerobee_wire import properties as props
from aerobee_wire import topics as names
from aerobee_wire.record import Record

# After this time, the time of day is checked again, because the clock may have been set.
LONGEST_SLEEP_MS = 10_000
READ_UNITS = 16_384  # at a time
READ_AGAIN_S = 1.0  # after a failed read of the queue
OTHERS_SHARE = 3.0  # of the event loop's time, per second of filling the table in the background


class TimerDelivery(Component):
    """The timer queue for its delivery loop (a WaitingQueue), with that loop.

    A message is a key of `table`.
    """

    name = "timers"

    def __init__(
        self,
        *,
        log: DurableLog,
        queue: TimerQueue,
        table: TimerTable,
        due_copies: DueCopies,
        metrics: BrokerMetrics,
        clock: Clock,
        fills_later: bool = False,
    ) -> None:
        self._log = log
        self._store = log.store
        self._queue = queue
        self._table = table
        self._due_copies = due_copies
        self._clock = clock
        self._loop = DeliveryLoop(self, log, metrics, clock)
        self._batch: list[int] | None = None  # keys that were taken and are not durable yet
        self._marks: list[Mark] = []  # the table's marks before the batch was taken
        self._needed_from: int | None = None
        self._fills_later = fills_later
        self._filling: asyncio.Task[None] | None = None
        self._is_full = not fills_later  # the table contains the messages that waited at startup

    @property
    def waiting(self) -> int:
        """Return the number of waiting messages."""
        return len(self._table)

    # ---- startup and shutdown ----

    def restore_slices(self) -> Iterator[None]:
        """Restore the progress and the waiting messages: one second for two million messages."""
        low = self._store.min_offset(names.TIMER_TOPIC, QUEUE_ID)
        self._table.skip_to(low)
        progress = newest_progress(self._store, names.TIMER_PROGRESS_TOPIC)
        high = self._store.max_offset(names.TIMER_TOPIC, QUEUE_ID)
        # Otherwise the queue expired and its files were lost: its offsets start at 0 again.
        if progress is not None and progress["floor"] <= high:
            self._table.restore(progress, low)
        if not self._fills_later:
            yield from self._table.take_stored(self._new_units())

    async def start(self) -> None:
        if self._fills_later:
            self._filling = asyncio.create_task(self._fill(), name="fill the timer table")
        else:
            self._loop.start()

    async def _fill(self) -> None:
        """Fill the table in slices, with pauses.

        A new master takes its role at the same time, in many turns of the event loop. Without the
        pauses, each turn would wait for a slice.
        """
        table, store = self._table, self._store
        now_s = asyncio.get_running_loop().time
        failed = False

        def chunks() -> Iterator[Sequence[Unit]]:
            nonlocal failed
            while table.end < store.max_offset(names.TIMER_TOPIC, QUEUE_ID):
                try:
                    yield from self._new_units()
                except StoreReadError as error:
                    structlog.get_logger().error("timer_queue_unreadable", reason=error.message)
                    failed = True
                    yield ()

        begin_s = now_s()
        for _ in table.take_stored(chunks()):
            pause_s = READ_AGAIN_S if failed else OTHERS_SHARE * (now_s() - begin_s)
            failed = False
            await asyncio.sleep(pause_s)
            begin_s = now_s()
        self._is_full = True
        structlog.get_logger().info("timers_restored", messages=len(table))
        self._loop.start()

    def arrived(self, _: Arrival) -> None:
        """Handle new messages of rmq_sys_wheel_timer."""
        self._queue.arrived()
        self._loop.wake()

    async def stop(self) -> None:
        """Wait for the batch that is being delivered."""
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait([self._filling])
        await self._loop.stop()

    def _new_units(self) -> Iterator[Sequence[Unit]]:
        """Yield the units from the table's end on.

        The caller adds each chunk to the table before the next is read.
        """
        store = self._store
        while self._table.end < store.max_offset(names.TIMER_TOPIC, QUEUE_ID):
            self._table.skip_to(store.min_offset(names.TIMER_TOPIC, QUEUE_ID))
            yield store.units(names.TIMER_TOPIC, QUEUE_ID, self._table.end, READ_UNITS)

    # ---- for the delivery loop ----

    def due_in_ms(self) -> float | None:
        wait_ms = self.head_due_in_ms()
        return None if wait_ms is None else min(wait_ms, LONGEST_SLEEP_MS)

    def head_due_in_ms(self) -> float | None:
        """Return the time until the first message is due, without an upper limit.

        Below 0 until it is delivered, and until the table is filled.
        """
        if self._batch or not self._is_full:
            return -1
        for units in self._new_units():
            self._table.take(units)
        head = self._table.head()
        if head is None or self._table.is_being_recalled(head):
            return None
        return due_of(head) - self._clock.now_ms()

    def take_batch(self) -> Batch:
        if self._needed_from is None:  # retention has not checked since the queue was empty
            self._needed_from = self._first_waiting()
        now = self._clock.now_ms()
        self._marks = list(self._table.marks)
        self._batch = []
        copies = self._take_due(self._batch, now)
        progress = progress_record(names.TIMER_PROGRESS_TOPIC, self._table.progress(), now)
        return Batch(copies, progress, [due_of(key) for key in self._batch])

    def _take_due(self, keys: list[int], now_ms: int) -> list[NewMessage]:
        """Take a batch of due messages out of the table, into `keys`; return the copies."""
        table = self._table
        copies: list[NewMessage] = []
        total = 0
        while len(keys) < BATCH_MESSAGES:
            key = table.head()
            if key is None or due_of(key) > now_ms or table.is_being_recalled(key):
                break
            units = self._store.units(names.TIMER_TOPIC, QUEUE_ID, offset_of(key), 1)
            physical_offset, size, _ = units[0] if units else (0, 0, 0)
            total += size
            if keys and total > BATCH_BYTES:
                break
            keys.append(table.pop())
            if table.is_recalled(key):
                continue
            record = self._due_copies.read(physical_offset, size)
            copy = None if record is None else self._copy(record, now_ms)
            if copy is not None:
                copies.append(copy)
        return copies

    def _copy(self, record: Record, now_ms: int) -> NewMessage | None:
        if unit_code(record.raw_properties, record.store_timestamp_ms) <= now_ms:
            return self._due_copies.copy_for_delivery(record)
        # Its unit is damaged and contains an earlier time. At the end of the queue, the message
        # gets a new unit.
        structlog.get_logger().error("timer_unit_damaged", queue_offset=record.queue_offset)
        return full_copy(record, names.TIMER_TOPIC, QUEUE_ID, record.properties)

    def delivered(self) -> None:
        self._table.forget(self._batch or ())
        self._batch = None

    def put_back(self) -> None:
        self._table.put_back(self._batch or (), self._marks)
        self._batch = None

    # ---- retention ----

    def needed_from(self) -> int | None:
        """Return the physical offset of the first waiting message; None if none waits."""
        if self._batch is None:  # otherwise the batch may be put back, and is still needed
            self._needed_from = self._first_waiting()
        return self._needed_from

    def _first_waiting(self) -> int | None:
        low = max(self._table.floor(), self._store.min_offset(names.TIMER_TOPIC, QUEUE_ID))
        units = self._store.units(names.TIMER_TOPIC, QUEUE_ID, low, BLOCK_OFFSETS)
        for offset, (physical_offset, _, code) in enumerate(units, low):
            if code > 0 and self._table.waits(key_of(code, offset)):
                return physical_offset
        return None

    async def make_room(self) -> bool:
        """Copy messages to the end of the queue, and recall the originals."""
        movable = self._movable()
        if movable:
            await self._move(movable)
        return bool(movable)

    def _movable(self) -> list[tuple[int, Unit]]:
        """Return (key, unit) of a batch of messages in files that retention wants to delete."""
        limit = self._store.cleaning.wanted_below
        if limit <= self._store.min_physical_offset:
            return []
        found: list[tuple[int, Unit]] = []
        low = max(self._table.floor(), self._store.min_offset(names.TIMER_TOPIC, QUEUE_ID))
        units = self._store.units(names.TIMER_TOPIC, QUEUE_ID, low, BLOCK_OFFSETS)
        total = 0
        for offset, unit in enumerate(units, low):
            physical_offset, size, code = unit
            key = key_of(max(code, 0), offset)
            total += size
            full = len(found) >= BATCH_MESSAGES or (found and total > BATCH_BYTES)
            if physical_offset >= limit or full:
                break
            if code > 0 and self._table.waits(key) and not self._table.is_recalled(key):
                found.append((key, unit))
        return found

    async def _move(self, movable: Sequence[tuple[int, Unit]]) -> None:
        """Move messages: append the copies, then the recalls.

        A crash between the two then delivers a message twice instead of losing it.
        """
        now = self._clock.now_ms()
        copies, markers = [], []
        records = [self._due_copies.read(offset, size) for _, (offset, size, _) in movable]
        for (key, _), record in zip(movable, records, strict=True):
            topic = record.properties.get(props.REAL_TOPIC, "") if record else ""
            # A copy would be after the deletion of its topic, and belong to a recreated topic of
            # the same name.
            if record is not None and record.physical_offset >= self._store.deleted_below(topic):
                copies.append(full_copy(record, names.TIMER_TOPIC, QUEUE_ID, record.properties))
            unique_key = record.unique_message_id if record else ""
            self._table.recall(key)
            markers.append(recall_marker(topic, unique_key, offset_of(key), now))
        await self.store_recalls([*copies, *markers], [key for key, _ in movable])
        structlog.get_logger().info("timer_messages_moved", messages=len(copies))

    # ---- recalls ----

    async def store_recalls(self, messages: Sequence[NewMessage], keys: Sequence[int]) -> None:
        """Append `messages` with the markers of recalls that were begun in the table.

        Returns when they are durable. If they are rolled back, the messages wait as before. Raises
        the errors of the store. After FlushTimeout, the recalls may or may not take effect.
        """
        try:
            self._store.append(messages, reserve=True)
        except BaseException:
            self._end_recalls(keys, recalled=False)
            raise
        self._log.when_flushed(lambda error: self._end_recalls(keys, recalled=error is None))
        await self._log.flushed()

    def _end_recalls(self, keys: Sequence[int], *, recalled: bool) -> None:
        for key in keys:
            self._table.end_recall(key, recalled=recalled)
        self._loop.wake()
