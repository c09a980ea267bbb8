"""The position up to which each queue of delayed messages has been delivered.

A progress record with the positions is appended together with the delivered copies. After a crash,
delivery resumes at the newest readable record. The positions of the queues of SCHEDULE_TOPIC_XXXX
are also stored in `delayOffset.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import structlog

from aerobee_broker.metadata.table import DataVersion, Table
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewMessage
from aerobee_chassis.clock import Clock
from aerobee_wire import topics as names
from aerobee_wire.record import Record
from aerobee_wire.status import MqError

PROGRESS_QUEUE = 0
READ_BACK_RECORDS = 16  # number of records to try to read, because the newest may be damaged
_UPDATES_PER_VERSION = 200


def progress_record(topic: str, progress: Mapping[Any, Any], now_ms: int) -> NewMessage:
    """Return a message that stores `progress`, which must be serializable as JSON."""
    body = json.dumps(progress, separators=(",", ":")).encode()
    return NewMessage(topic, PROGRESS_QUEUE, body, born_timestamp_ms=now_ms)


def newest_progress(store: MessageStore, topic: str) -> dict[str, Any] | None:
    """Return the content of the newest readable record of a progress topic.

    Returns None if no record can be read.
    """
    record = newest_record(store, topic, PROGRESS_QUEUE)
    return None if record is None else json.loads(record.body)


def newest_record(store: MessageStore, topic: str, queue_id: int) -> Record | None:
    """Return the newest readable message of a queue.

    Returns None if none of the last READ_BACK_RECORDS messages can be read.
    """
    high = store.max_offset(topic, queue_id)
    for queue_offset in range(high - 1, max(0, high - READ_BACK_RECORDS) - 1, -1):
        units = store.units(topic, queue_id, queue_offset, 1)
        try:
            for physical_offset, size, _ in units:
                return store.get(physical_offset, size)
        except MqError as error:
            structlog.get_logger().error(
                "delay_record_unreadable",
                topic=topic,
                queue_offset=queue_offset,
                reason=error.message,
            )
    return None


class DelayOffsets(Table):
    """The queue offset of the next message to deliver, for each queue of SCHEDULE_TOPIC_XXXX.

    The keys of the file `delayOffset.json` are delay levels, which are queue id + 1. An offset is
    updated only after the delivered copies are durable. A crash loses the updates since the file
    was last written.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.offsets: dict[int, int] = {}

    def get(self, queue_id: int) -> int:
        return self.offsets.get(queue_id, 0)

    def put(self, queue_id: int, queue_offset: int) -> None:
        if self.offsets.get(queue_id) != queue_offset:
            self.offsets[queue_id] = queue_offset
            self.revision += 1
            if self.revision % _UPDATES_PER_VERSION == 0:
                self.version = self.version.next(self._clock.now_ms())

    def to_json(self) -> dict[str, Any]:
        return {
            "dataVersion": self.version.to_json(),
            "offsetTable": {str(queue + 1): at for queue, at in sorted(self.offsets.items())},
        }

    def load(self, content: dict[str, Any]) -> None:
        table = content.get("offsetTable") or {}
        self.offsets = {int(level) - 1: int(at) for level, at in table.items()}
        self.version = DataVersion.from_json(content.get("dataVersion") or {})


class LevelProgress:
    """The progress of all queues of SCHEDULE_TOPIC_XXXX.

    The progress is stored in two places. The records of SCHEDULE_PROGRESS_TOPIC are appended
    together with the copies. The file delayOffset.json is written every flushDelayOffsetInterval.
    At startup, the last record applies. If it cannot be read, or retention has deleted it, the
    higher offset of the two applies.

    `offsets` has the queue offset of the next message to deliver for each queue id. The copies of
    all messages below that offset are durable.
    """

    def __init__(self, store: MessageStore, offsets: DelayOffsets) -> None:
        self._store = store
        self._offsets = offsets
        self._appended: dict[int, int] = {}  # like the offsets, with copies not durable yet

    def restore(self) -> None:
        topic = names.SCHEDULE_PROGRESS_TOPIC
        record = newest_record(self._store, topic, PROGRESS_QUEUE)
        newest: dict[str, Any] = {} if record is None else json.loads(record.body)
        end = self._store.max_offset(topic, PROGRESS_QUEUE)
        is_last = record is not None and record.queue_offset == end - 1
        for queue_id in {*self._offsets.offsets, *map(int, newest)}:
            delivered, saved = int(newest.get(str(queue_id), 0)), self._offsets.get(queue_id)
            high = self._store.max_offset(names.SCHEDULE_TOPIC, queue_id)
            # The last record is appended with the last copies, so a higher offset in the file
            # belongs to a log that was lost, and so do the copies. The same holds above the end of
            # the queue.
            if saved > delivered and (is_last or saved > high):
                structlog.get_logger().warning(
                    "delay_offset_beyond_log", queue=queue_id, offset=saved, delivered=delivered
                )
                saved = delivered
            self._offsets.put(queue_id, min(max(saved, delivered), high))
        self._appended = dict(self._offsets.offsets)

    def next_offset(self, queue_id: int) -> int:
        """Return the queue offset of the next message to deliver, within the queue's bounds."""
        low = self._store.min_offset(names.SCHEDULE_TOPIC, queue_id)
        high = self._store.max_offset(names.SCHEDULE_TOPIC, queue_id)
        return min(max(self._offsets.get(queue_id), low), high)

    def is_empty(self, queue_id: int) -> bool:
        """Return whether every message of a queue has been delivered.

        Returns False while appends are not confirmed, because the answer is not known.
        """
        unconfirmed = self._store.end_offset > self._store.confirmed_offset
        high = self._store.max_offset(names.SCHEDULE_TOPIC, queue_id)
        return not unconfirmed and self._offsets.get(queue_id) >= high

    def undelivered(self) -> dict[int, int]:
        """Return queue id → number of waiting messages, for queues that have any."""
        counts = {
            queue_id: self._store.max_offset(names.SCHEDULE_TOPIC, queue_id)
            - self.next_offset(queue_id)
            for queue_id in self._store.queues(names.SCHEDULE_TOPIC)
        }
        return {queue_id: count for queue_id, count in counts.items() if count > 0}

    def needed_from(self) -> int | None:
        """Return the physical offset of the first message that waits or has no durable copy.

        Returns None if there is no such message. Retention keeps the log files from this offset on.
        Messages with a delay level are not moved, so their files stay for up to the longest delay.
        """
        heads = [
            self._store.units(names.SCHEDULE_TOPIC, queue_id, self.next_offset(queue_id), 1)
            for queue_id in self._store.queues(names.SCHEDULE_TOPIC)
        ]
        return min(
            (physical_offset for head in heads for physical_offset, _, _ in head), default=None
        )

    # ---- delivery ----

    def record(self, queue_id: int, queue_offset: int, now_ms: int) -> NewMessage:
        """Return the progress record to append with the copies of the messages below an offset.

        The record also contains the progress of the other queues, according to the records appended
        so far.
        """
        self._appended[queue_id] = queue_offset
        return progress_record(names.SCHEDULE_PROGRESS_TOPIC, self._appended, now_ms)

    def roll_back(self, queue_id: int, queue_offset: int) -> None:
        """Undo the last `record` call of a queue, because its record is not in the log.

        `queue_offset` is the offset before that call.
        """
        self._appended[queue_id] = queue_offset

    def advance(self, queue_id: int, queue_offset: int) -> None:
        """Record that the copies of all messages of a queue below an offset are durable."""
        self._offsets.put(queue_id, queue_offset)
