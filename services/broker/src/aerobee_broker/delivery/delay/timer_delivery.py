"""Delivery of messages that wait for a time of their own, and recalls of them.

One task sleeps until the lowest key of the timer table is due. What is due is stored again in the
topic that it is meant for, many messages in one append, and with them how far delivery was: after
a crash the newest of these records says where to go on. So a message comes twice only when a crash
falls into the write of its batch (of BATCH_MESSAGES at most), never not at all, and never early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress

import structlog

from aerobee_broker.commit.durable_log import DurableLog
from aerobee_broker.delivery.delay.progress import newest_progress, progress_record
from aerobee_broker.delivery.delay.redelivery import due_copy, waiting_record, whole
from aerobee_broker.delivery.delay.timer_format import (
    QUEUE_ID,
    TimerQueue,
    recall_marker,
    unit_code,
)
from aerobee_broker.delivery.delay.timer_table import (
    BLOCK_OFFSETS,
    TimerTable,
    due_of,
    key_of,
    offset_of,
)
from aerobee_broker.errors import NotRecalled
from aerobee_broker.metrics import Meters
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.messages import NewMessage, Unit
from aerobee_chassis.clock import Clock
from aerobee_chassis.lifecycle import Component
from aerobee_wire import properties as props
from aerobee_wire import topics as names
from aerobee_wire.record import Record
from aerobee_wire.status import MqError

BATCH_MESSAGES = 256
BATCH_BYTES = 4 * 1024 * 1024
RETRY_AFTER_FAILURE_S = 10.0  # a full or broken disk is not mended by asking often
LONGEST_SLEEP_S = 10.0  # then the time of day is looked at again: somebody may have set it
TAKEN_UNITS = 16_384  # at a time
SAME_KEY = 64  # messages of one unique key that a recall looks at


class Timers(Component):
    def __init__(
        self,
        *,
        log: DurableLog,
        queue: TimerQueue,
        table: TimerTable,
        topics: TopicRegistry,
        meters: Meters,
        clock: Clock,
    ) -> None:
        self._log = log
        self._store = log.store
        self._queue = queue
        self._topics = topics
        self._meters = meters
        self._clock = clock
        self._table = table
        self._delivering = False
        self._needed: int | None = None
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def waiting(self) -> int:
        """Messages."""
        return len(self._table)

    def needed_from(self) -> int | None:
        """The physical offset from which on the log holds messages that wait; None: none do."""
        if not self._delivering:  # else they may have to be read again
            self._needed = self._first_needed()
        return self._needed

    def _first_needed(self) -> int | None:
        low = max(self._table.floor(), self._store.min_offset(names.TIMER_TOPIC, QUEUE_ID))
        units = self._store.units(names.TIMER_TOPIC, QUEUE_ID, low, BLOCK_OFFSETS)
        for offset, (place, _, code) in enumerate(units, low):
            if code > 0 and self._table.waits(key_of(code, offset)):
                return place
        return None

    # ---- start, stop ----

    def restore(self) -> None:
        """How far delivery was, and what waits. Blocks: a second for two million messages."""
        low = self._store.min_offset(names.TIMER_TOPIC, QUEUE_ID)
        self._table.end = low
        progress = newest_progress(self._store, names.TIMER_PROGRESS_TOPIC)
        high = self._store.max_offset(names.TIMER_TOPIC, QUEUE_ID)
        # Else the queue was lost, and what it held had expired: it counts from 0 again.
        if progress is not None and progress["floor"] <= high:
            self._table.restore(progress, low)
        self._table.take_stored(self._chunks())

    async def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="timers")

    def arrived(self) -> None:
        """The queue has new messages."""
        self._queue.arrived()
        self._news.set()

    async def stop(self) -> None:
        """Lets what is being delivered finish."""
        self._stopping = True
        self._news.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    # ---- delivery ----

    async def _run(self) -> None:
        while not self._stopping:
            try:
                await self._step()
            except MqError as error:
                structlog.get_logger().error("timer_messages_not_delivered", reason=error.message)
                await self._pause(RETRY_AFTER_FAILURE_S)

    async def _step(self) -> None:
        self._news.clear()
        for units in self._chunks():
            self._table.take(units)
        head = self._table.head()
        now = self._clock.now_ms()
        if head is None or self._table.is_being_recalled(head):
            await self._news.wait()
        elif due_of(head) <= now:
            await self._deliver(now)
        elif behind := self._behind():
            await self._move(behind)
        else:
            await self._sleep(due_of(head) - now)

    async def _sleep(self, milliseconds: int) -> None:
        """Or until there is news: a message that is due before the others, for instance."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(milliseconds / 1000, LONGEST_SLEEP_S)):
                await self._news.wait()

    async def _deliver(self, now_ms: int) -> None:
        table = self._table
        marks = list(table.marks)
        keys: list[int] = []
        self._delivering = True
        try:
            copies = self._take_due(keys, now_ms)
            progress = progress_record(names.TIMER_PROGRESS_TOPIC, table.progress(), now_ms)
            await self._log.put_accepted([*copies, progress])
        except MqError:
            table.put_back(keys, marks)
            raise
        finally:
            self._delivering = False
        table.settled(keys)
        now = self._clock.now_ms()
        for key in keys:
            self._meters.delay_latency.observe(max(0, now - due_of(key)) / 1000)

    async def _pause(self, seconds: float) -> None:
        """News does not end it, only `stop`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not self._stopping and (left := end - loop.time()) > 0:
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._news.wait()

    def _take_due(self, keys: list[int], now_ms: int) -> list[NewMessage]:
        """Takes a batch of what is due out of the table, into `keys`; returns what to store."""
        table, store = self._table, self._store
        copies: list[NewMessage] = []
        total = 0
        while len(keys) < BATCH_MESSAGES:
            key = table.head()
            if key is None or due_of(key) > now_ms or table.is_being_recalled(key):
                break
            units = store.units(names.TIMER_TOPIC, QUEUE_ID, offset_of(key), 1)
            place, size, _ = units[0] if units else (0, 0, 0)
            total += size
            if keys and total > BATCH_BYTES:
                break
            keys.append(table.pop())
            if table.is_recalled(key):
                continue
            record = waiting_record(store, place, size)
            copy = None if record is None else self._copy(record, now_ms)
            if copy is not None:
                copies.append(copy)
        return copies

    def _copy(self, record: Record, now_ms: int) -> NewMessage | None:
        if unit_code(record.raw_properties, record.store_timestamp_ms) <= now_ms:
            return due_copy(record, self._topics, self._store)
        # A damaged unit: the message is put at the end of the queue, with a unit that is right.
        structlog.get_logger().error("timer_unit_damaged", queue_offset=record.queue_offset)
        return whole(record, names.TIMER_TOPIC, QUEUE_ID, record.properties)

    # ---- files that are to go ----

    def _behind(self) -> list[tuple[int, Unit]]:
        """(key, unit) of some of the messages that wait in files which retention wants."""
        limit = self._store.cleaning.wanted_below
        if limit <= self._store.min_physical_offset:
            return []
        found: list[tuple[int, Unit]] = []
        low = max(self._table.floor(), self._store.min_offset(names.TIMER_TOPIC, QUEUE_ID))
        units = self._store.units(names.TIMER_TOPIC, QUEUE_ID, low, BLOCK_OFFSETS)
        total = 0
        for offset, unit in enumerate(units, low):
            key = key_of(max(unit[2], 0), offset)
            total += unit[1]
            if unit[0] >= limit or len(found) >= BATCH_MESSAGES or (found and total > BATCH_BYTES):
                break
            if unit[2] > 0 and self._table.waits(key) and not self._table.is_recalled(key):
                found.append((key, unit))
        return found

    async def _move(self, behind: Sequence[tuple[int, Unit]]) -> None:
        """Puts messages at the end of the queue, and takes them back where they were. The copies
        stand first: a crash between the two delivers twice, rather than not at all."""
        now = self._clock.now_ms()
        copies, markers = [], []
        records = [waiting_record(self._store, place, size) for _, (place, size, _) in behind]
        for (key, _), record in zip(behind, records, strict=True):
            topic = record.properties.get(props.REAL_TOPIC, "") if record else ""
            # A copy behind the deletion of its topic would be taken for one of the next topic.
            if record is not None and record.physical_offset >= self._store.deleted_below(topic):
                copies.append(whole(record, names.TIMER_TOPIC, QUEUE_ID, record.properties))
            unique_key = record.unique_message_id if record else ""
            self._table.recall(key)
            markers.append(recall_marker(topic, unique_key, offset_of(key), now))
        await self._store_markers([*copies, *markers], [key for key, _ in behind])
        structlog.get_logger().info("timer_messages_moved", messages=len(copies))

    # ---- recall ----

    async def recall(self, topic: str, deliver_ms: int, unique_key: str) -> None:
        """Takes back the message of a topic with this unique key that is due then; returns when
        that is durable. Raises NotRecalled; what the store raises; FlushTimeout: then it is not
        known whether it will hold."""
        while True:
            # What was acknowledged, or moved, is visible then, whatever the flush type.
            await self._log.flushed()
            keys = self._named(topic, deliver_ms, unique_key)
            # More than one when a producer has sent again what it took for lost.
            taken = [key for key in keys if self._table.recall(key)]
            if taken or not any(map(self._table.is_being_recalled, keys)):
                break
            await asyncio.sleep(0)  # it is being moved, or another recall of it is under way
        if not taken:
            raise NotRecalled(
                "it was delivered or recalled before"
                if keys
                else "no such message waits here (the broker finds it by messageIndexEnable)"
            )
        now = self._clock.now_ms()
        markers = [recall_marker(topic, unique_key, offset_of(key), now) for key in taken]
        await self._store_markers(markers, taken)

    def _named(self, topic: str, deliver_ms: int, unique_key: str) -> list[int]:
        """The keys of the messages that a recall means, whether they wait or not."""
        found = self._store.query(names.TIMER_TOPIC, unique_key, unique=True, max_messages=SAME_KEY)
        return [
            key_of(deliver_ms, record.queue_offset)
            for record in found
            if record.properties.get(props.REAL_TOPIC) == topic
            and record.properties.get(props.TIMER_OUT_MS) == str(deliver_ms)
        ]

    async def _store_markers(self, markers: Sequence[NewMessage], keys: Sequence[int]) -> None:
        """Returns when they are durable."""
        try:
            self._store.append(markers, reserve=True)
        except BaseException:
            self._end_recalls(keys, taken_back=False)
            raise
        self._log.when_flushed(lambda error: self._end_recalls(keys, taken_back=error is None))
        await self._log.flushed()

    def _end_recalls(self, keys: Sequence[int], *, taken_back: bool) -> None:
        """The messages are taken back when the markers are on the disk; when those were rolled
        back the messages wait as before."""
        for key in keys:
            self._table.end_recall(key, taken_back=taken_back)
        self._news.set()

    # ---- the store ----

    def _chunks(self) -> Iterator[Sequence[Unit]]:
        """The units from the table's end on."""
        store = self._store
        while self._table.end < store.max_offset(names.TIMER_TOPIC, QUEUE_ID):
            low = store.min_offset(names.TIMER_TOPIC, QUEUE_ID)
            self._table.end = max(self._table.end, low)
            yield store.units(names.TIMER_TOPIC, QUEUE_ID, self._table.end, TAKEN_UNITS)
