"""Delivers the messages with a delay level, with one delivery loop per queue of their topic.

The topic is SCHEDULE_TOPIC_XXXX. The messages of a queue are in the order of their delivery times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from aerobee_broker.commit.durable_log import DurableLog
from aerobee_broker.delivery.delay.delivery_loop import (
    BATCH_BYTES,
    BATCH_MESSAGES,
    Batch,
    DeliveryLoop,
    DueCopies,
)
from aerobee_broker.delivery.delay.levels import FIRST_OWN_QUEUE, DelayQueues, own_delay
from aerobee_broker.delivery.delay.progress import LevelProgress, newest_record
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import Arrival, Unit
from aerobee_chassis.clock import Clock
from aerobee_chassis.lifecycle import Component
from aerobee_wire import topics as names


@dataclass(slots=True, kw_only=True, eq=False)
class LevelDelivery(Component):
    log: DurableLog
    queues: DelayQueues
    progress: LevelProgress
    due_copies: DueCopies
    metrics: BrokerMetrics
    clock: Clock
    _loops: dict[int, DeliveryLoop] = field(default_factory=dict, init=False)
    _stopping: bool = field(default=False, init=False)

    def restore(self) -> None:
        """Restore the delivery progress, and the retry delay of each queue that has one."""
        for queue_id in self.log.store.queues(names.SCHEDULE_TOPIC):
            delay_ms = self._stored_delay(queue_id)
            if delay_ms is not None:
                self.queues.restore(queue_id, delay_ms)
        self.progress.restore()

    def _stored_delay(self, queue_id: int) -> int | None:
        """Return the retry delay of a queue, in milliseconds, or None if it has a delay level.

        If the newest records of the queue are damaged, returns the time until its last message is
        due. The queue then gets no other delay before that time.
        """
        record = newest_record(self.log.store, names.SCHEDULE_TOPIC, queue_id)
        if record is not None:
            return own_delay(record.properties)
        high = self.log.store.max_offset(names.SCHEDULE_TOPIC, queue_id)
        units = self.log.store.units(names.SCHEDULE_TOPIC, queue_id, high - 1, 1)
        left_ms = units[0][2] - self.clock.now_ms() if units else 0
        return left_ms if left_ms > 0 and queue_id >= FIRST_OWN_QUEUE else None

    def undelivered(self) -> dict[str, int]:
        """Return the number of waiting messages in each queue, by the name of the queue."""
        return {
            self.queues.name_of(queue_id): count
            for queue_id, count in self.progress.undelivered().items()
        }

    def first(self, count: int) -> list[Iterator[tuple[int, str, Unit]]]:
        """Return an iterator for each queue over its next messages, up to `count`.

        It yields (due time, name of the queue, consume-queue entry).
        """
        return [self._first(queue_id, count) for queue_id in self.progress.undelivered()]

    def _first(self, queue_id: int, count: int) -> Iterator[tuple[int, str, Unit]]:
        offset, name = self.progress.next_offset(queue_id), self.queues.name_of(queue_id)
        for unit in self.log.store.units(names.SCHEDULE_TOPIC, queue_id, offset, count):
            yield unit[2], name, unit

    def due_in_ms(self) -> float | None:
        """Return the milliseconds until the first message is due.

        The result is below 0 while a due message is not delivered, and None if no message waits.
        """
        waits = (loop.due_in_ms for loop in self._loops.values())
        return min((wait for wait in waits if wait is not None), default=None)

    async def start(self) -> None:
        for queue_id in self.log.store.queues(names.SCHEDULE_TOPIC):
            self._start_loop(queue_id)

    def arrived(self, arrival: Arrival) -> None:
        """Handle new visible messages of SCHEDULE_TOPIC_XXXX, by waking their delivery loop."""
        self.queues.arrived(arrival.queue_id)
        if not self._stopping:
            self._start_loop(arrival.queue_id)
            self._loops[arrival.queue_id].wake()

    async def stop(self) -> None:
        """Stop the delivery, after waiting for the batches that are being delivered."""
        self._stopping = True
        await asyncio.gather(*(loop.stop() for loop in self._loops.values()))

    def _start_loop(self, queue_id: int) -> None:
        if queue_id not in self._loops:
            queue = _LevelQueue(
                queue_id, self.log.store, self.queues, self.progress, self.due_copies, self.clock
            )
            self._loops[queue_id] = DeliveryLoop(queue, self.log, self.metrics, self.clock)
            self._loops[queue_id].start()


@dataclass(slots=True)
class _LevelQueue:
    """One queue of SCHEDULE_TOPIC_XXXX. Implements WaitingQueue for its delivery loop."""

    queue_id: int
    store: MessageStore
    queues: DelayQueues
    progress: LevelProgress
    due_copies: DueCopies
    clock: Clock
    offset: int = 0  # of the first entry in `units`
    units: Sequence[Unit] = ()  # consume-queue entries of the next messages
    # At the monotonic time `latest_ms`, all messages below the queue offset `known_end` are due.
    latest_ms: int = 0
    known_end: int = 0
    batch_end: int = 0  # the offset after the batch that was taken

    @property
    def name(self) -> str:
        return self.queues.name_of(self.queue_id)

    def due_in_ms(self) -> float | None:
        if not self.units:
            self._read_units()
        if not self.units:
            return None
        deliver_time_ms = self.units[0][2]
        return min(
            deliver_time_ms - self.clock.now_ms(), self.latest_ms - self.clock.monotonic_ms()
        )

    def _read_units(self) -> None:
        self.offset = self.progress.next_offset(self.queue_id)
        self.units = self.store.units(
            names.SCHEDULE_TOPIC, self.queue_id, self.offset, BATCH_MESSAGES
        )
        # If the clock was set back, messages seem to be due later than after their delay.
        if self.units and self.offset >= self.known_end:
            self.latest_ms = self.clock.monotonic_ms() + self.queues.delay_of(self.queue_id) + 1
            self.known_end = self.store.max_offset(names.SCHEDULE_TOPIC, self.queue_id)

    def take_batch(self) -> Batch:
        due = self._due()
        records = self.due_copies.read(names.SCHEDULE_TOPIC, self.queue_id, self.offset, len(due))
        copies = [self.due_copies.copy_for_delivery(record) for record in records]
        self.batch_end = self.offset + len(due)
        return Batch(
            [copy for copy in copies if copy],
            self.progress.record(self.queue_id, self.batch_end, self.clock.now_ms()),
            [deliver_time_ms for _, _, deliver_time_ms in due],
        )

    def _due(self) -> list[Unit]:
        """Return the entries of the first message and the next due ones, up to a batch's size."""
        now = self.clock.now_ms()
        is_late = self.clock.monotonic_ms() >= self.latest_ms
        due = [self.units[0]]
        total = self.units[0][1]
        for offset, unit in enumerate(self.units[1:], self.offset + 1):
            total += unit[1]
            is_due = unit[2] <= now or (is_late and offset < self.known_end)
            if not is_due or total > BATCH_BYTES:
                break
            due.append(unit)
        return due

    def delivered(self) -> None:
        self.units = ()
        self.progress.advance(self.queue_id, self.batch_end)

    def put_back(self) -> None:
        self.units = ()
        self.progress.roll_back(self.queue_id, self.offset)

    async def make_room(self) -> bool:
        """Return False, because messages with a delay level are not moved.

        Retention keeps their log files instead (`LevelProgress.needed_from`).
        """
        return False
