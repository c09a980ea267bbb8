"""How far each queue of SCHEDULE_TOPIC_XXXX has been delivered. No loop.

It is kept twice: in the progress records of SCHEDULE_PROGRESS_TOPIC, appended with the copies; and
in delayOffset.json, RocketMQ's form, written every flushDelayOffsetInterval. A start takes the
higher offset of the two.
"""

from __future__ import annotations

from aerobee_broker.delivery.delay.progress import newest_progress, progress_record
from aerobee_broker.metadata.delay_offsets import DelayOffsets
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewMessage
from aerobee_wire import topics as names


class LevelProgress:
    """`offsets`: queue id → queue offset of the next message to deliver; what is below is durable
    as a copy."""

    def __init__(self, store: MessageStore, offsets: DelayOffsets) -> None:
        self._store = store
        self._offsets = offsets
        self._appended: dict[int, int] = {}  # the same as the log has it, durable or not

    def restore(self) -> None:
        newest = newest_progress(self._store, names.SCHEDULE_PROGRESS_TOPIC) or {}
        for number, delivered in newest.items():
            queue_id = int(number)
            self._offsets.put(queue_id, max(self._offsets.get(queue_id), int(delivered)))
        for queue_id, offset in list(self._offsets.offsets.items()):
            # Above the maximum offset the file is of a log that was lost: what the queue holds now
            # was not delivered.
            high = self._store.max_offset(names.SCHEDULE_TOPIC, queue_id)
            self._offsets.put(queue_id, min(offset, high))
        self._appended = dict(self._offsets.offsets)

    def next_offset(self, queue_id: int) -> int:
        """The queue offset of the next message to deliver, within what the queue holds."""
        low = self._store.min_offset(names.SCHEDULE_TOPIC, queue_id)
        high = self._store.max_offset(names.SCHEDULE_TOPIC, queue_id)
        return min(max(self._offsets.get(queue_id), low), high)

    def is_empty(self, queue_id: int) -> bool:
        """Whether every message of a queue has been delivered. Not known, so False, while appends
        are not confirmed."""
        unconfirmed = self._store.end_offset > self._store.confirmed_offset
        high = self._store.max_offset(names.SCHEDULE_TOPIC, queue_id)
        return not unconfirmed and self._offsets.get(queue_id) >= high

    def undelivered(self) -> dict[int, int]:
        """Queue id → messages that wait in it, where any do."""
        counts = {
            queue_id: self._store.max_offset(names.SCHEDULE_TOPIC, queue_id)
            - self.next_offset(queue_id)
            for queue_id in self._store.queues(names.SCHEDULE_TOPIC)
        }
        return {queue_id: count for queue_id, count in counts.items() if count > 0}

    def needed_from(self) -> int | None:
        """The physical offset of the first message that waits, or whose copy is not known to be
        durable; None when there is none. The messages are not moved out of the log files that
        retention wants: they keep them, for the longest delay at most."""
        heads = [
            self._store.units(names.SCHEDULE_TOPIC, queue_id, self.next_offset(queue_id), 1)
            for queue_id in self._store.queues(names.SCHEDULE_TOPIC)
        ]
        return min(
            (physical_offset for head in heads for physical_offset, _, _ in head), default=None
        )

    # ---- delivery ----

    def record(self, queue_id: int, queue_offset: int, now_ms: int) -> NewMessage:
        """The progress record that says: delivered up to here. It names all queues, as the log has
        them: what the other queues appended before stands before it in the log."""
        self._appended[queue_id] = queue_offset
        return progress_record(names.SCHEDULE_PROGRESS_TOPIC, self._appended, now_ms)

    def roll_back(self, queue_id: int, queue_offset: int) -> None:
        """The last record of a queue was not stored."""
        self._appended[queue_id] = queue_offset

    def advance(self, queue_id: int, queue_offset: int) -> None:
        """The copies of everything below are durable."""
        self._offsets.put(queue_id, queue_offset)
