"""The leases of lines: a lease table that keeps only positions for idle lines.

A line is in the table while it is in use. It is dropped after two rounds without messages in
flight, when all its journal writes have ended. A late acknowledgement still finds the line's
position.
"""

from __future__ import annotations

from collections.abc import Callable

from aerobee_broker.delivery.lite.lines import line
from aerobee_broker.delivery.lite.positions import LitePositions
from aerobee_broker.delivery.pop.in_flight import InFlightQueue
from aerobee_broker.delivery.pop.lease_journal_format import (
    ExpireRecord,
    JournalRecord,
    SettledQueue,
)
from aerobee_broker.delivery.pop.lease_table import LeaseTable
from aerobee_chassis.clock import Clock

_Key = tuple[str, str]  # group, line


class LineLeases(LeaseTable):
    def __init__(self, clock: Clock, position: Callable[[], int], positions: LitePositions) -> None:
        super().__init__(clock, position)
        self._positions = positions
        self._idle: dict[_Key, int] = {}  # with the sum of its cursors in the last round

    def find(self, consumer_group: str, topic: str, queue_id: int) -> InFlightQueue | None:
        found = super().find(consumer_group, topic, queue_id)
        if found is None:
            position = self._positions.get(consumer_group, topic, queue_id)
            if position is not None:
                return self.group(consumer_group, topic).queue(queue_id, position, fifo=True)
        return found

    def in_use(self, consumer_group: str, topic: str, queue_id: int) -> InFlightQueue | None:
        """Find a line like `find`, but only if it is in the table already."""
        return super().find(consumer_group, topic, queue_id)

    def keys_of(self, *, consumer_group: str = "", topic: str = "") -> list[_Key]:
        """Return the keys of a group or a line. `topic`: a line, or a parent for all its lines."""
        return [
            (its_group, its_line)
            for its_group, its_line in self._groups
            if (consumer_group or topic)
            and consumer_group in ("", its_group)
            and (not topic or topic in {its_line, line(its_line).parent})
        ]

    def forget(self, *, consumer_group: str = "", topic: str = "") -> bool:
        """Forget the leases and positions of a deleted group or parent."""
        before = self._positions.changes
        if consumer_group:
            self._positions.remove_group(consumer_group)
        if topic:
            self._positions.remove_parent(topic)
        had_leases = super().forget(consumer_group=consumer_group, topic=topic)
        return had_leases or self._positions.changes != before

    def knows(self, *, consumer_group: str = "", topic: str = "") -> bool:
        """Return whether `forget` would drop anything."""
        return bool(
            self.keys_of(consumer_group=consumer_group, topic=topic)
            or (topic and topic in self._positions.parents())
            or (consumer_group and self._positions.has_group(consumer_group))
        )

    def apply(self, record: JournalRecord) -> None:
        if isinstance(record, ExpireRecord):
            self._positions.expire(*record)
        else:
            super().apply(record)

    def _apply_settled(self, settled: SettledQueue) -> None:
        """Settle messages, and move the cursor behind them.

        The lease may precede the records that are applied: `liteOffsets` was saved during the
        lease, and the line was idle when leases were saved later. Lines are settled from the front,
        so each message before a settled one is settled unless it is in flight.
        """
        super()._apply_settled(settled)
        queue = self.in_use(settled.consumer_group, settled.topic, settled.queue_id)
        if queue is not None:
            ends = (run.first_offset + run.length for run in settled.settled)
            queue.cursor = max(queue.cursor, *ends, 0)

    def drop_idle(self, *, at_once: bool = False) -> int:
        """Drop the lines that are idle for the second round, and return their number."""
        idle: dict[_Key, int] = {}
        dropped = 0
        for key, group in list(self._groups.items()):
            if any(queue.in_flight for queue in group.queues.values()):
                continue
            cursors = sum(queue.cursor for queue in group.queues.values())
            if at_once or self._idle.get(key) == cursors:
                del self._groups[key]
                dropped += 1
            else:
                idle[key] = cursors
        self._idle = idle
        return dropped
