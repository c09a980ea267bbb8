"""Handles many records of a queue at once, with arrays.

It finds the records that are close enough to be read with one call, and checks them. The calls of
numpy take 0.1 ms, and each record 0.3 µs. Without arrays, a record takes 1 µs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from aerobee_broker.store.derived.consume_queue import ConsumeQueue
from aerobee_broker.store.derived.record_columns import Ints, RecordColumns, items, joined, rows
from aerobee_broker.store.messages import UNIT, UNIT_LAYOUT
from aerobee_broker.store.options import MAX_RECORD
from aerobee_broker.store.reading.record_check import Run
from aerobee_wire import record

_UNIT = np.dtype(UNIT_LAYOUT.array_fields())
assert _UNIT.itemsize == UNIT.size
_SIZE = np.dtype(">i4")
assert record.HEADER_LAYOUT.offset_of("total_size") == 0


@dataclass(frozen=True, slots=True)
class RunColumns:
    """The positions of consecutive messages of a queue, from the queue offset `first_offset` on."""

    first_offset: int
    units: bytes
    physical_offsets: Ints
    sizes: Ints

    @classmethod
    def of(cls, first_offset: int, units: bytes, low: int, high: int) -> RunColumns | None:
        """Return the columns of consecutive units, or None if the units are not plausible.

        Each unit must name a record after the previous one. The first record must begin at or after
        the physical offset `low`, the last one below `high`.
        """
        columns = np.frombuffer(units, dtype=_UNIT)
        at = columns["physical_offset"].astype(np.int64)
        sizes = columns["size"].astype(np.int64)
        if at[0] < low or at[-1] >= high or sizes.min() <= 0 or sizes.max() > MAX_RECORD:
            return None
        rises = (at[1:] >= at[:-1] + sizes[:-1]).all()
        return cls(first_offset, units, at, sizes) if rises else None

    def __len__(self) -> int:
        return len(self.sizes)

    def part(self, start: int, stop: int) -> RunColumns:
        return RunColumns(
            self.first_offset + start,
            self.units[start * UNIT.size : stop * UNIT.size],
            self.physical_offsets[start:stop],
            self.sizes[start:stop],
        )

    def first(self, max_bytes: int) -> RunColumns:
        """Return as many of the first records as fit into `max_bytes`, but at least one."""
        fit = np.searchsorted(np.cumsum(self.sizes), max_bytes, side="right")
        return self.part(0, max(1, int(fit)))

    def runs(self, gap: int, limit_of: Callable[[int], int]) -> Iterator[RunColumns]:
        """Split the records into runs, with at most `gap` bytes between the records of a run.

        A run ends at or before the physical offset that `limit_of` returns for its first record.
        """
        at, ends = self.physical_offsets, self.physical_offsets + self.sizes
        start = 0
        for bound in [*(np.flatnonzero(at[1:] > ends[:-1] + gap) + 1).tolist(), len(at)]:
            while start < bound:
                limit = limit_of(int(at[start]))
                fit = int(np.searchsorted(ends[start:bound], limit, side="right"))
                stop = start + max(1, fit)
                yield self.part(start, stop)
                start = stop

    @property
    def span(self) -> tuple[int, int]:
        """The (physical offset, size in bytes) of the log range that contains all these records."""
        begin = int(self.physical_offsets[0])
        return begin, int(self.physical_offsets[-1] + self.sizes[-1]) - begin

    def records(self, data: bytes) -> bytes:
        """Return the records without the bytes between them. `data` is the log range `span`."""
        begin, span = self.span
        if int(self.sizes.sum()) == span:
            return data
        starts = self.physical_offsets - begin
        return joined(data, starts, starts + self.sizes)

    def one_by_one(self) -> Run:
        return list(enumerate(UNIT.iter_unpack(self.units), self.first_offset))

    def all_whole(self, data: bytes, queue: ConsumeQueue) -> bool:
        """Return whether `record_check.check` would accept every record.

        `data` is the log range `span`. Also return False if the quick check cannot decide.
        """
        begin, span = self.span
        if len(data) != span:
            return False
        starts = self.physical_offsets - begin
        if self.sizes.min() < record.FIXED_V1 or (items(data, starts, _SIZE) != self.sizes).any():
            return False
        columns = RecordColumns(data, starts, begin)
        are_those = columns.good.all() and self._are_of(queue, data, columns)
        return are_those and bool(columns.matching_crc(data, len(self)).all())

    def _are_of(self, queue: ConsumeQueue, data: bytes, columns: RecordColumns) -> bool:
        """Return whether each record contains the topic, queue id and queue offset of its unit."""
        head, field = columns.head, queue.topic.field
        offsets = np.arange(self.first_offset, self.first_offset + len(self))
        same = (
            (head["magic_code"] == queue.topic.magic)
            & (head["queue_id"] == queue.queue_id)
            & (head["queue_offset"] == offsets)
            & (columns.topic_end - columns.body_end == len(field))
        )
        if not same.all():
            return False
        names = rows(data, columns.body_end, len(field))
        return bool((names == np.frombuffer(field, dtype=np.uint8)).all())
