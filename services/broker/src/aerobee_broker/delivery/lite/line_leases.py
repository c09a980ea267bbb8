"""The lease table of lite topics, which keeps only the positions of idle lite topics.

A lite topic is in the table while it has messages in flight. It is removed when two successive
calls of `drop_idle` find no messages in flight and no progress. By then, all its journal writes
have ended. A late acknowledgement still finds the position of the group.
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

_Key = tuple[str, str]  # group, topic name of a lite topic's leases


class LineLeases(LeaseTable):
    def __init__(self, clock: Clock, position: Callable[[], int], positions: LitePositions) -> None:
        super().__init__(clock, position)
        self._positions = positions
        # Entries that were idle at the last `drop_idle` → sum of their cursors.
        self._idle: dict[_Key, int] = {}

    def find(self, consumer_group: str, topic: str, queue_id: int) -> InFlightQueue | None:
        found = super().find(consumer_group, topic, queue_id)
        if found is None:
            position = self._positions.get(consumer_group, topic, queue_id)
            if position is not None:
                return self.group(consumer_group, topic).queue(queue_id, position, fifo=True)
        return found

    def in_use(self, consumer_group: str, topic: str, queue_id: int) -> InFlightQueue | None:
        """Return the messages in flight of a lite topic in a queue.

        Returns None if the lite topic is not in the table, even if the group has a position in it.
        """
        return super().find(consumer_group, topic, queue_id)

    def keys_of(self, *, consumer_group: str = "", topic: str = "") -> list[_Key]:
        """Return the keys of all entries of a group, of a topic, or of a group in a topic.

        `topic` is the name of a lite topic's leases, or a parent topic for all its lite topics.
        """
        return [
            (its_group, its_line)
            for its_group, its_line in self._groups
            if (consumer_group or topic)
            and consumer_group in ("", its_group)
            and (not topic or topic in {its_line, line(its_line).parent})
        ]

    def forget(self, *, consumer_group: str = "", topic: str = "") -> bool:
        """Remove the leases and positions of a deleted group or parent topic.

        Returns whether there were any.
        """
        before = self._positions.changes
        if consumer_group:
            self._positions.remove_group(consumer_group)
        if topic:
            self._positions.remove_parent(topic)
        had_leases = super().forget(consumer_group=consumer_group, topic=topic)
        return had_leases or self._positions.changes != before

    def knows(self, *, consumer_group: str = "", topic: str = "") -> bool:
        """Return whether `forget` with the same arguments would remove a lease or a position."""
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
        """Settle messages, and move the cursor of the queue above their offsets.

        The record of their lease may be missing: it precedes the records that a start applies if
        the positions were saved during the lease, and the leases after it. Lite topics are settled
        in order, so messages below a settled one are settled unless they are in flight.
        """
        super()._apply_settled(settled)
        queue = self.in_use(settled.consumer_group, settled.topic, settled.queue_id)
        if queue is not None:
            ends = (run.first_offset + run.length for run in settled.settled)
            queue.cursor = max(queue.cursor, *ends, 0)

    def drop_idle(self, *, at_once: bool = False) -> int:
        """Remove the entries that were also idle at the previous call, and return their number.

        With `at_once`, removes all idle entries.
        """
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
