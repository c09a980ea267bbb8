"""Read the part of one queue that a search has not examined yet, in slices, from either end."""

from __future__ import annotations

from typing import NamedTuple

from aerobee_broker.errors import RepairPending
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import LOST_SIZE, ReadStatus, Unit
from aerobee_wire.record import Record, iter_records

SLICE_MESSAGES = 256  # decoded in about 2 ms
SLICE_BYTES = 256 * 1024


class Slice(NamedTuple):
    """The messages of a slice, without those that the tags exclude.

    `scanned` counts all messages of the slice. `unreadable` counts those that are damaged.
    """

    records: list[Record]
    scanned: int
    unreadable: int


_NOTHING = Slice([], 0, 0)


class QueueScan:
    """The queue offsets of a queue that are not examined yet: from `low` up to below `high`.

    `frontier` is a physical offset. Messages that are not examined yet are stored at or after it,
    or before it if the newest messages are examined first.
    """

    def __init__(
        self,
        store: MessageStore,
        topic: str,
        queue_id: int,
        *,
        low: int,
        high: int,
        newest_first: bool,
        tags: frozenset[int] | None,
        slice_bytes: int = SLICE_BYTES,
    ) -> None:
        self.queue_id, self.low, self.high = queue_id, low, high
        self._store, self._topic, self._tags = store, topic, tags
        self._newest_first, self._slice_bytes = newest_first, slice_bytes
        self.frontier = store.end_offset if newest_first else 0

    @property
    def left(self) -> int:
        """Return the number of messages that are not examined yet."""
        return self.high - self.low

    def extend(self) -> None:
        """Include the messages that were stored since the scan began."""
        self.high = max(self.high, self._store.max_offset(self._topic, self.queue_id))

    def next_slice(self, max_messages: int = SLICE_MESSAGES) -> Slice:
        """Examine the next messages, at most `max_messages`.

        Raises StoreReadError, TransientReadError.
        """
        # Retention may have deleted messages since the last slice.
        self.low = max(self.low, self._store.min_offset(self._topic, self.queue_id))
        if self.low >= self.high:
            self.low = self.high
            return _NOTHING
        count = min(max_messages, SLICE_MESSAGES, self.left)
        begin = self.high - count if self._newest_first else self.low
        units = self._store.units(self._topic, self.queue_id, begin, count)
        units = units[: self.high - begin]
        if not units:  # the queue was truncated
            self.low = self.high
            return _NOTHING
        fitting = self._fitting(units)
        if self._newest_first:
            begin += len(units) - fitting
            units = units[len(units) - fitting :]
        else:
            units = units[:fitting]
        end = begin + len(units)
        result = self._read(begin, end, sum(_size(unit) for unit in units))
        self._advance(begin, end, units)
        return result

    def _fitting(self, units: list[Unit]) -> int:
        """Return the number of units that fit into a slice; at least one."""
        left, count = self._slice_bytes, 0
        for unit in reversed(units) if self._newest_first else units:
            left -= _size(unit)
            if left < 0 and count:
                break
            count += 1
        return count

    def _read(self, begin: int, end: int, size: int) -> Slice:
        records: list[Record] = []
        unreadable, at = 0, begin
        while at < end:
            try:
                found = self._store.read(
                    self._topic,
                    self.queue_id,
                    at,
                    max_messages=end - at,
                    max_bytes=max(size, 1),
                    tags=self._tags,
                )
            except RepairPending:  # of the message at this offset
                unreadable, at = unreadable + 1, at + 1
                continue
            if found.status not in (ReadStatus.FOUND, ReadStatus.NO_MATCHED):
                break
            unreadable += found.corrupted_count
            read = iter_records(found.records, check_crc=False)  # the store has checked them
            records += [record for record in read if record.queue_offset < end]
            at = found.next_begin_offset
        return Slice(records, end - begin, unreadable)

    def _advance(self, begin: int, end: int, units: list[Unit]) -> None:
        known = [unit for unit in units if unit[1] != LOST_SIZE]
        if self._newest_first:
            self.high = begin
            if known:
                self.frontier = known[0][0]
        else:
            self.low = end
            if known:
                self.frontier = known[-1][0] + known[-1][1]


def _size(unit: Unit) -> int:
    return 0 if unit[1] == LOST_SIZE else unit[1]
