"""The progress of the delivery of each queue of SCHEDULE_TOPIC_XXXX. Runs no loop.

It is stored twice: in the progress records of SCHEDULE_PROGRESS_TOPIC, appended with the copies;
and in delayOffset.json, in RocketMQ's format, written every flushDelayOffsetInterval. A start uses
the higher offset of the two.
"""

from __future__ import annotations

from aerobee_broker.delivery.delay.progress import newest_progress, progress_record
from aerobee_broker.metadata.delay_offsets import DelayOffsets
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewMessage
from aerobee_wire import topics as names


class LevelProgress:
    """The progress of all queues.

    `offsets`: queue id → queue offset of the next message to deliver. All messages below it are
    durable as copies.
    """

    def __init__(self, store: MessageStore, offsets: DelayOffsets) -> None:
        self._store = store
        self._offsets = offsets
        self._appended: dict[int, int] = {}  # the same in the log, durable or not

    def restore(self) -> None:
        newest = newest_progress(self._store, names.SCHEDULE_PROGRESS_TOPIC) or {}
        for number, delivered in newest.items():
            queue_id = int(number)
            self._offsets.put(queue_id, max(self._offsets.get(queue_id), int(delivered)))
        for queue_id, offset in list(self._offsets.offsets.items()):
            # An offset above the maximum is from a lost log: the queue's current messages were not
            # delivered.
            high = self._store.max_offset(names.SCHEDULE_TOPIC, queue_id)
            self._offsets.put(queue_id, min(offset, high))
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
        """Return the physical offset of the first message that still needs the log.

        Such a message waits, or its copy is not durable yet. None if there is none. Retention keeps
        the log files of these messages, for the longest delay at most, because the messages are not
        moved.
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
        """Return the progress record for delivery up to this offset.

        It contains all queues as in the log: the earlier appends of other queues precede it.
        """
        self._appended[queue_id] = queue_offset
        return progress_record(names.SCHEDULE_PROGRESS_TOPIC, self._appended, now_ms)

    def roll_back(self, queue_id: int, queue_offset: int) -> None:
        """Undo the last record of a queue, which was not stored."""
        self._appended[queue_id] = queue_offset

    def advance(self, queue_id: int, queue_offset: int) -> None:
        """Advance the progress: the copies of all messages below the offset are durable."""
        self._offsets.put(queue_id, queue_offset)
