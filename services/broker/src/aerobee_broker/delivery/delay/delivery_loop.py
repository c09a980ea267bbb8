"""The loop that delivers one queue of delayed messages to their topics.

The loop sleeps until the first message is due. It then appends a batch of copies with a progress
record, and waits until they are durable. After a failure, it puts the batch back, pauses and
retries.

The copies and the progress record are one append. A message is delivered twice only if a crash
leaves that append incomplete. No message is lost or delivered early. The loop serves two kinds of
queues, which implement WaitingQueue: messages with a delay level (level_delivery.py), and messages
with their own time (timer_delivery.py).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import NamedTuple, Protocol

import structlog

from aerobee_broker.commit.durable_log import DurableLog
from aerobee_broker.delivery.delay.levels import take_destination
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewMessage
from aerobee_chassis.clock import Clock
from aerobee_wire.record import Record, iter_records
from aerobee_wire.status import MqError

BATCH_MESSAGES = 256
BATCH_BYTES = 4 * 1024 * 1024
READ_MESSAGES = 128  # of one read: more need numpy, whose import would block the event loop
RETRY_AFTER_FAILURE_S = 10.0  # frequent retries do not help a full or broken disk
STOP_S = 5.0  # the time limit of a flush, because a replica that is down may never confirm it


class DueCopies:
    """Reads delayed messages that are due, and makes copies of them for their destinations."""

    def __init__(self, store: MessageStore, topics: TopicRegistry) -> None:
        self._store = store
        self._topics = topics

    def read(self, topic: str, queue_id: int, queue_offset: int, count: int = 1) -> list[Record]:
        """Return `count` waiting messages of a queue, from a queue offset on.

        A damaged entry of the consume queue is repaired from the log. If messages are damaged, logs
        an error and omits them. Raises StoreReadError.
        """
        found: list[Record] = []
        end = queue_offset + count
        while queue_offset < end:
            result = self._store.read(
                topic,
                queue_id,
                queue_offset,
                max_messages=min(READ_MESSAGES, end - queue_offset),
                max_bytes=BATCH_BYTES,
            )
            found += iter_records(result.records, check_crc=False)
            if result.corrupted_count:
                structlog.get_logger().error(
                    "delayed_message_lost",
                    topic=topic,
                    queue_id=queue_id,
                    queue_offset=queue_offset,
                    messages=result.corrupted_count,
                )
            if result.next_begin_offset <= queue_offset:
                break
            queue_offset = result.next_begin_offset
        return found

    def copy_for_delivery(self, record: Record) -> NewMessage | None:
        """Return the copy of a waiting message for its destination.

        If the message has no destination, or its topic was deleted, logs a warning and returns
        None.
        """
        properties = dict(record.properties)
        target = take_destination(properties)
        config = self._topics.table.get(target[0]) if target else None
        if target is None or config is None or self._is_of_deleted(record, target[0]):
            structlog.get_logger().warning(
                "delayed_message_dropped",
                topic=target[0] if target else "",
                physical_offset=record.physical_offset,
                reason="its topic was deleted" if target else "it names no topic",
            )
            return None
        return full_copy(record, config.topic, config.readable_queue(target[1]), properties)

    def _is_of_deleted(self, record: Record, topic: str) -> bool:
        """Return whether the topic was deleted after the message was stored.

        The result is also True if a topic with the same name was created later.
        """
        return record.physical_offset < self._store.deleted_below(topic)


def full_copy(record: Record, topic: str, queue_id: int, properties: dict[str, str]) -> NewMessage:
    """Return a copy of a record that also keeps its `prepared_transaction_offset`."""
    message = NewMessage.copy_of(record, topic, queue_id, properties)
    message.prepared_transaction_offset = record.prepared_transaction_offset
    return message


class Batch(NamedTuple):
    """A batch of due messages to deliver.

    `copies` are the messages for their destinations. `progress` is the record of their delivery.
    `due_ms` has the due time of each message, including messages without a copy, which are dropped.
    """

    copies: list[NewMessage]
    progress: NewMessage
    due_ms: list[int]


class WaitingQueue(Protocol):
    """The delayed messages of one queue, in the order of their due times.

    Implementations are a queue of SCHEDULE_TOPIC_XXXX, and the timer queue. Every method except
    `delivered` and `put_back` may raise MqError. The loop then retries after a pause.
    """

    @property
    def name(self) -> str:
        """Return the name of the queue for logs."""

    def due_in_ms(self) -> float | None:
        """Return the milliseconds until the first message is due or must be checked again.

        Returns None if the queue has no message to deliver.
        """

    def take_batch(self) -> Batch:
        """Remove and return the first due messages, up to the maximum size of a batch."""

    def delivered(self) -> None:
        """Record that the copies of the last batch are durable."""

    def put_back(self) -> None:
        """Put the messages of the last batch back, because taking or appending them failed."""

    async def make_room(self) -> bool:
        """Move messages out of log files that retention wants to delete.

        Returns False if there was no message to move.
        """


class DeliveryLoop:
    def __init__(
        self, queue: WaitingQueue, log: DurableLog, metrics: BrokerMetrics, clock: Clock
    ) -> None:
        self._queue = queue
        self._log = log
        self._metrics = metrics
        self._clock = clock
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def start(self) -> None:
        name = f"delivery of {self._queue.name}"
        self._task = asyncio.get_running_loop().create_task(self._run(), name=name)

    @property
    def due_in_ms(self) -> float | None:
        """Return the milliseconds until the first message is due, or None if there is none."""
        return self._queue.due_in_ms()

    def wake(self) -> None:
        """Wake the loop, because the queue may have a new first message."""
        self._woken.set()

    async def stop(self) -> None:
        """Stop the loop, after waiting up to STOP_S for the current batch.

        The batch may be cut off safely, because its copies and its progress record are one append.
        """
        self._stopping = True
        self.wake()
        if self._task is None:
            return
        done, _ = await asyncio.wait([self._task], timeout=STOP_S)
        if not done:
            self._task.cancel()
            await asyncio.wait([self._task])
        elif not self._task.cancelled():
            self._task.result()

    async def _run(self) -> None:
        while not self._stopping:
            try:
                await self._step()
            except MqError as error:
                structlog.get_logger().error(
                    "delayed_messages_not_delivered",
                    queue=self._queue.name,
                    reason=error.message,
                )
                await self._pause(RETRY_AFTER_FAILURE_S)

    async def _step(self) -> None:
        self._woken.clear()
        due_in_ms = self._queue.due_in_ms()
        if due_in_ms is None:
            await self._woken.wait()
        elif due_in_ms <= 0:
            await self._deliver()
        elif not await self._queue.make_room():
            await self._sleep(due_in_ms / 1000)

    async def _deliver(self) -> None:
        try:
            batch = self._queue.take_batch()
            await self._log.put_accepted([*batch.copies, batch.progress])
        except MqError:
            self._queue.put_back()
            raise
        self._queue.delivered()
        now = self._clock.now_ms()
        for due_ms in batch.due_ms:
            self._metrics.delivered_late(max(0, now - due_ms) / 1000)

    async def _sleep(self, seconds: float) -> None:
        """Sleep until the timeout, or until `wake` is called."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    async def _pause(self, seconds: float) -> None:
        """Sleep until the timeout, or until `stop` is called."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not self._stopping and (left := end - loop.time()) > 0:
            self._woken.clear()
            await self._sleep(left)
