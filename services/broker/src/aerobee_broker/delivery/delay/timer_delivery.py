"""Delivers messages that wait for their own time, with a delivery loop and the timer table.

Waiting messages in log files that retention wants to delete are copied to the end of the queue.

The table of waiting messages is filled before the broker serves clients. With `fills_later`, as for
a new master, it is filled in the background, so that startup does not wait for it. Delivery starts
when the table is filled.
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

# After this time, the loop compares due times with the clock again, because it may have been set.
LONGEST_SLEEP_MS = 10_000
READ_UNITS = 16_384  # consume-queue entries per read
READ_AGAIN_S = 1.0  # after a failed read of the queue
MOST_OVERDUE = 10_000  # due messages that are counted for metrics: 3 ms
SNAPSHOT_SLICE = 4_096  # waiting messages counted before other work runs: 1 ms
OTHERS_SHARE = 3.0  # seconds that the loop is free, per second of filling the table


class TimerDelivery(Component):
    """Delivers the messages of the timer queue when they are due.

    Implements WaitingQueue for its own delivery loop. Each message is represented by its key in
    `table` (see TimerTable).
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
        self._metrics = metrics
        self._loop = DeliveryLoop(self, log, metrics, clock)
        self._batch: list[int] | None = None  # keys that were taken and are not durable yet
        self._batch_topics: list[str] = []  # of the messages that the batch delivers
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
        """Restore the progress and the waiting messages, yielding between slices of the work.

        This takes one second for two million messages.
        """
        low = self._store.min_offset(names.TIMER_TOPIC, QUEUE_ID)
        self._table.skip_to(low)
        progress = newest_progress(self._store, names.TIMER_PROGRESS_TOPIC)
        high = self._store.max_offset(names.TIMER_TOPIC, QUEUE_ID)
        # A progress above the end belongs to an expired queue whose files were lost. The offsets of
        # such a queue start at 0 again.
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
        """Fill the table with the waiting messages, in slices with pauses, and start delivery.

        At the same time, a new master takes over its role in many short steps. Without the pauses,
        each step would wait for a slice.
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
        """Handle new visible messages of rmq_sys_wheel_timer, by waking the delivery loop."""
        self._queue.arrived()
        self._loop.wake()

    async def stop(self) -> None:
        """Stop the delivery, after waiting for the batch that is being delivered."""
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait([self._filling])
        await self._loop.stop()

    def _new_units(self) -> Iterator[Sequence[Unit]]:
        """Yield the consume-queue entries that the table does not contain yet, in chunks.

        The caller must add each chunk to the table before it asks for the next one.
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
        """Return the milliseconds until the first message is due, without an upper limit.

        The result is below 0 while due messages are not delivered, or the table is not filled.
        Returns None if no message waits.
        """
        if self._batch or not self._is_full:
            return -1
        for units in self._new_units():
            self._table.take(units)
        head = self._table.head()
        if head is None or self._table.is_being_recalled(head):
            return None
        return due_of(head) - self._clock.now_ms()

    def first(self, count: int) -> Iterator[tuple[int, Unit]]:
        """Yield (due time, consume-queue entry) of up to `count` messages, the next ones first."""
        for key in self._table.first(count):
            units = self._store.units(names.TIMER_TOPIC, QUEUE_ID, offset_of(key), 1)
            if units:
                yield due_of(key), units[0]

    def take_batch(self) -> Batch:
        if self._needed_from is None:  # retention has not asked since the queue was empty
            self._needed_from = self._first_waiting()
        now = self._clock.now_ms()
        self._marks = list(self._table.marks)
        self._batch = []
        copies = self._take_due(self._batch, now)
        self._batch_topics = [copy.topic for copy in copies if copy.topic != names.TIMER_TOPIC]
        progress = progress_record(names.TIMER_PROGRESS_TOPIC, self._table.progress(), now)
        return Batch(copies, progress, [due_of(key) for key in self._batch])

    def _take_due(self, keys: list[int], now_ms: int) -> list[NewMessage]:
        """Remove a batch of due messages from the table, and return their copies.

        Appends the keys of the removed messages to `keys`.
        """
        table = self._table
        copies: list[NewMessage] = []
        total = 0
        while len(keys) < BATCH_MESSAGES:
            key = table.head()
            if key is None or due_of(key) > now_ms or table.is_being_recalled(key):
                break
            units = self._store.units(names.TIMER_TOPIC, QUEUE_ID, offset_of(key), 1)
            total += units[0][1] if units else 0
            if keys and total > BATCH_BYTES:
                break
            keys.append(table.pop())
            if table.is_recalled(key):
                continue
            for record in self._due_copies.read(names.TIMER_TOPIC, QUEUE_ID, offset_of(key)):
                copy = self._copy(record, now_ms)
                if copy is not None:
                    copies.append(copy)
        return copies

    def _copy(self, record: Record, now_ms: int) -> NewMessage | None:
        if unit_code(record.raw_properties, record.store_timestamp_ms) <= now_ms:
            return self._due_copies.copy_for_delivery(record)
        # The message's entry in the consume queue is damaged and contains an earlier time. The
        # message is copied to the end of the queue, where it gets a new entry.
        structlog.get_logger().error("timer_unit_damaged", queue_offset=record.queue_offset)
        return full_copy(record, names.TIMER_TOPIC, QUEUE_ID, record.properties)

    def delivered(self) -> None:
        self._table.forget(self._batch or ())
        self._batch = None
        self._metrics.timer_delivered(self._batch_topics)

    def put_back(self) -> None:
        self._table.put_back(self._batch or (), self._marks)
        self._batch = None

    # ---- metrics ----

    def not_taken(self) -> tuple[int, int | None]:
        """Return how many messages of the queue the table lacks, and the store time of the first.

        The time is None if there are none, or if it cannot be read.
        """
        low = self._store.min_offset(names.TIMER_TOPIC, QUEUE_ID)
        begin = max(self._table.end, low)
        count = max(0, self._store.max_offset(names.TIMER_TOPIC, QUEUE_ID) - begin)
        if not count:
            return 0, None
        return count, self._store.store_timestamp(names.TIMER_TOPIC, QUEUE_ID, begin) or None

    def overdue(self) -> tuple[int, int]:
        """Return how many messages are due and not delivered, and by how many ms the first is late.

        At most MOST_OVERDUE are counted.
        """
        now_ms, head = self._clock.now_ms(), self._table.head()
        if head is None or due_of(head) > now_ms:
            return 0, 0
        return self._table.count_due(now_ms, MOST_OVERDUE), now_ms - due_of(head)

    def waits_ms(self) -> Iterator[list[int]]:
        """Yield the ms until delivery of the waiting messages, in slices.

        Messages that come or go during the iteration may be missing, or counted twice.
        """
        begin = 0
        while keys := self._table.keys(begin, SNAPSHOT_SLICE):
            now_ms = self._clock.now_ms()
            yield [due_of(key) - now_ms for key in keys]
            begin += len(keys)

    # ---- retention ----

    def needed_from(self) -> int | None:
        """Return the physical offset of the first waiting message, or None if no message waits."""
        if self._batch is None:  # a batch may be put back, so its messages are still needed
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
        """Move messages from files that retention wants to delete to the end of the queue.

        Returns False if there was no message to move.
        """
        movable = self._movable()
        if movable:
            await self._move(movable)
        return bool(movable)

    def _movable(self) -> list[tuple[int, Unit]]:
        """Return a batch of messages in files that retention wants to delete.

        Each message is given as its key and its consume-queue entry.
        """
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
        """Append copies of messages to the queue, and then recalls of the originals.

        In this order, a crash in between may deliver a message twice, but does not lose it.
        """
        now = self._clock.now_ms()
        copies, markers = [], []
        read = self._due_copies.read
        records = [read(names.TIMER_TOPIC, QUEUE_ID, offset_of(key)) for key, _ in movable]
        for (key, _), found in zip(movable, records, strict=True):
            record = found[0] if found else None
            topic = record.properties.get(props.REAL_TOPIC, "") if record else ""
            # If the message's topic was deleted, a copy would be stored after the deletion. It
            # would then belong to a recreated topic of the same name.
            if record is not None and record.physical_offset >= self._store.deleted_below(topic):
                copies.append(full_copy(record, names.TIMER_TOPIC, QUEUE_ID, record.properties))
            unique_key = record.unique_message_id if record else ""
            self._table.recall(key)
            markers.append(recall_marker(topic, unique_key, offset_of(key), now))
        await self.store_recalls([*copies, *markers], [key for key, _ in movable])
        structlog.get_logger().info("timer_messages_moved", messages=len(copies))

    # ---- recalls ----

    async def store_recalls(self, messages: Sequence[NewMessage], keys: Sequence[int]) -> None:
        """Append the markers of begun recalls, and wait until they are durable.

        `messages` contains the markers, and possibly other messages. `keys` are the keys of the
        recalled messages. If the log rolls the markers back, the recalled messages wait as before.
        Raises the errors of the store. After FlushTimeout, the recalls may or may not take effect.
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
