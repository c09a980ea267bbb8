"""Delivery of delayed messages: each queue of SCHEDULE_TOPIC_XXXX sleeps until its head is due.

Due messages are stored again in the topic that they are meant for, and with them, in the same
append, how far each queue is delivered: after a crash the newest of these records says where to go
on. So a message comes twice only when a power cut falls between the two, never not at all, and
never early. `delayOffset.json` is RocketMQ's form of the same, written by time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import structlog

from aerobee_broker.commit.durable_log import DurableLog
from aerobee_broker.delivery.delay.level_progress import LevelProgress
from aerobee_broker.delivery.delay.levels import (
    FIRST_OWN_QUEUE,
    DelayQueues,
    own_delay,
)
from aerobee_broker.delivery.delay.progress import newest_record
from aerobee_broker.delivery.delay.redelivery import due_copy, waiting_record
from aerobee_broker.metrics import Meters
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.messages import Arrival
from aerobee_chassis.clock import Clock
from aerobee_chassis.lifecycle import Component
from aerobee_wire import topics as names
from aerobee_wire.status import MqError

BATCH_MESSAGES = 256
BATCH_BYTES = 4 * 1024 * 1024
RETRY_AFTER_FAILURE_S = 10.0  # a full or broken disk is not mended by asking often


class Schedule(Component):
    def __init__(
        self,
        *,
        log: DurableLog,
        queues: DelayQueues,
        progress: LevelProgress,
        topics: TopicRegistry,
        meters: Meters,
        clock: Clock,
    ) -> None:
        self._log = log
        self._store = log.store
        self._queues = queues
        self._progress = progress
        self._topics = topics
        self._meters = meters
        self._clock = clock
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._news: dict[int, asyncio.Event] = {}
        self._stopping = False

    def restore(self) -> None:
        """What a start finds in the log: the delays of the groups' own queues, each in its newest
        message, and how far delivery was."""
        self._restore_delays()
        self._progress.restore()

    def _restore_delays(self) -> None:
        for queue_id in self._store.queues(names.SCHEDULE_TOPIC):
            delay = self._stored_delay(queue_id)
            if delay is not None:
                self._queues.restore(queue_id, delay)

    def _stored_delay(self, queue_id: int) -> int | None:
        """The own delay of a queue; None for a level's. When its newest records are damaged, as
        long as the last of its messages has to wait: no other may take the queue until then."""
        record = newest_record(self._store, names.SCHEDULE_TOPIC, queue_id)
        if record is not None:
            return own_delay(record.properties)
        high = self._store.max_offset(names.SCHEDULE_TOPIC, queue_id)
        units = self._store.units(names.SCHEDULE_TOPIC, queue_id, high - 1, 1)
        left = units[0][2] - self._clock.now_ms() if units else 0
        return left if left > 0 and queue_id >= FIRST_OWN_QUEUE else None

    def undelivered(self) -> dict[str, int]:
        """Name of a queue → messages that wait in it."""
        return {
            self._queues.name_of(queue_id): count
            for queue_id, count in self._progress.undelivered().items()
        }

    async def start(self) -> None:
        for queue_id in self._store.queues(names.SCHEDULE_TOPIC):
            self._attend(queue_id)

    def arrived(self, arrival: Arrival) -> None:
        """New messages of SCHEDULE_TOPIC_XXXX."""
        self._queues.arrived(arrival.queue_id)
        if not self._stopping:
            self._attend(arrival.queue_id)
            self._news[arrival.queue_id].set()

    async def stop(self) -> None:
        """Lets what is being delivered finish."""
        self._stopping = True
        for news in self._news.values():
            news.set()
        await asyncio.gather(*self._tasks.values())

    def _attend(self, queue_id: int) -> None:
        if queue_id not in self._tasks:
            self._news[queue_id] = asyncio.Event()
            self._tasks[queue_id] = asyncio.get_running_loop().create_task(
                self._run(queue_id), name=f"schedule {queue_id}"
            )

    # ---- one queue ----

    async def _run(self, queue_id: int) -> None:
        news = self._news[queue_id]
        offset = self._progress.next_offset(queue_id)
        while not self._stopping:
            try:
                # Retention may have taken what stood at the offset.
                offset = max(offset, self._store.min_offset(names.SCHEDULE_TOPIC, queue_id))
                units = self._store.units(names.SCHEDULE_TOPIC, queue_id, offset, BATCH_MESSAGES)
            except MqError as error:
                await self._failed(queue_id, error)
                continue
            if not units:
                news.clear()
                await news.wait()
            elif await self._until_due(queue_id, units[0][2]):
                offset = await self._deliver(queue_id, offset, units)

    async def _until_due(self, queue_id: int, deliver_time_ms: int) -> bool:
        """Sleeps until the head of the queue is due; False when told to stop.

        When the clock was set back, so that the head lies further ahead than its whole delay, it
        waits one whole delay from now by the clock that only goes forward.
        """
        delay = self._queues.delay_of(queue_id)
        limit = self._clock.monotonic_ms() + delay + 1
        while not self._stopping:
            wait_ms = min(
                deliver_time_ms - self._clock.now_ms(), limit - self._clock.monotonic_ms()
            )
            if wait_ms <= 0:
                return True
            await self._sleep(queue_id, wait_ms / 1000)
        return False

    async def _sleep(self, queue_id: int, seconds: float) -> None:
        """New messages do not matter here, they come after the head: only `stop` cuts it short."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        news = self._news[queue_id]
        while not self._stopping and (left := end - loop.time()) > 0:
            news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await news.wait()

    async def _deliver(
        self, queue_id: int, offset: int, units: Sequence[tuple[int, int, int]]
    ) -> int:
        """Stores the copies of the messages that are due; returns the offset to go on from."""
        due = self._due(units)
        following = offset + len(due)
        records = (waiting_record(self._store, place, size) for place, size, _ in due)
        copies = (
            due_copy(record, self._topics, self._store) for record in records if record is not None
        )
        try:
            messages = [copy for copy in copies if copy is not None]
            progress = self._progress.record(queue_id, following, self._clock.now_ms())
            await self._log.put_accepted([*messages, progress])
        except MqError as error:
            self._progress.roll_back(queue_id, offset)
            await self._failed(queue_id, error)
            return offset
        now = self._clock.now_ms()
        for unit in due:
            self._meters.delay_latency.observe(max(0, now - unit[2]) / 1000)
        self._progress.advance(queue_id, following)
        return following

    async def _failed(self, queue_id: int, error: MqError) -> None:
        structlog.get_logger().error(
            "delayed_messages_not_delivered",
            queue=self._queues.name_of(queue_id),
            reason=error.message,
        )
        await self._sleep(queue_id, RETRY_AFTER_FAILURE_S)

    def _due(self, units: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """The head, and what follows it in time and within the size of a batch."""
        now = self._clock.now_ms()
        due = [units[0]]
        size = units[0][1]
        for unit in units[1:]:
            size += unit[1]
            if unit[2] > now or size > BATCH_BYTES:
                break
            due.append(unit)
        return due
