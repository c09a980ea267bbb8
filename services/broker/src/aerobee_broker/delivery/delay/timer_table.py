"""Which messages of the timer queue wait, and which were delivered. Pure: no store, no clock.

A message is a key: its due time and, below it, its queue offset. Keys are delivered in ascending
order, so a *mark*, the highest key that was delivered, tells which were. A message that becomes
visible only after the mark has passed its due time (a slow disk, a clock that was set back) is
below the mark and not delivered: from its queue offset on a second, lower mark holds, until it has
caught up with the first. So a few numbers tell exactly what was delivered, whatever happened.

Memory: 56 bytes a message (measured): an int, and a pointer in the heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from aerobee_broker.delivery.delay.timer_format import recalled_offset
from aerobee_broker.store.messages import Unit

_OFFSET_BITS = 40
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
_BLOCK_BITS = 12
BLOCK_OFFSETS = 1 << _BLOCK_BITS  # waiting messages are counted by blocks of so many queue offsets
MAX_MARKS = 64
SLICE = 50_000  # keys that are looked at in one go: some 10 ms


def key_of(due_ms: int, queue_offset: int) -> int:
    return due_ms << _OFFSET_BITS | queue_offset


def due_of(key: int) -> int:
    return key >> _OFFSET_BITS


def offset_of(key: int) -> int:
    return key & _OFFSET_MASK


class Mark(NamedTuple):
    """Of the queue offsets from the `end` of the mark before to below this `end`, every message
    with a key up to `key` has been delivered or recalled, and no other."""

    end: int
    key: int


class TimerTable:
    """`end`: the queue offset up to which units were taken. The length is the number of messages
    that wait, without those that were recalled."""

    def __init__(self) -> None:
        self.end = 0
        self.marks: list[Mark] = []
        self._merged = False  # marks were merged: delivered messages may count as waiting
        self._heap: list[int] = []
        self._recalled: set[int] = set()  # queue offsets of messages in the heap, or just popped
        self._being_recalled: set[int] = set()  # of these, whose recall is not durable yet
        self._blocks: dict[int, int] = {}  # number of a block → messages in it that wait
        self._first_block = 0
        self._none_below = 0  # at the start no message below this queue offset waited

    def __len__(self) -> int:
        return max(0, len(self._heap) - len(self._recalled))

    # ---- in ----

    def skip_to(self, queue_offset: int) -> None:
        """Retention has deleted the units below."""
        self.end = max(self.end, queue_offset)

    def take(self, units: Iterable[Unit]) -> None:
        """Adds the units from `end` on. Recalls among them are in the table already."""
        fresh = []
        for offset, (_, _, code) in enumerate(units, self.end):
            self.end = offset + 1
            if code > 0:
                key = code << _OFFSET_BITS | offset
                if not self.is_delivered(key):
                    fresh.append(key)
        if not self.marks or self.end > self.marks[-1].end:
            self._extend(min(fresh, default=None))
        if len(fresh) > len(self._heap):
            self._heap += fresh
            heapq.heapify(self._heap)
        else:
            for key in fresh:
                heapq.heappush(self._heap, key)
        for key in fresh:
            if not self.is_recalled(key) or self.is_being_recalled(key):
                block = offset_of(key) >> _BLOCK_BITS
                self._blocks[block] = self._blocks.get(block, 0) + 1

    def _uncount(self, offset: int) -> None:
        block = offset >> _BLOCK_BITS
        self._blocks[block] -= 1
        if not self._blocks[block]:
            del self._blocks[block]

    def _extend(self, lowest: int | None) -> None:
        """The last mark holds up to `end` from now on; with a key below it (`lowest`), a new mark
        does."""
        marks = self.marks
        if not marks:
            marks.append(Mark(self.end, -1 if lowest is None else lowest - 1))
        elif lowest is None or lowest > marks[-1].key:
            marks[-1] = Mark(self.end, marks[-1].key)
        else:
            marks.append(Mark(self.end, lowest - 1))
            if len(marks) > MAX_MARKS:
                # With the lower key for both, a crash now would deliver some messages twice.
                marks[:2] = [Mark(marks[1].end, marks[1].key)]
                self._merged = True

    def restore(self, progress: dict[str, Any], first_offset: int) -> None:
        """The state that `progress` returned. `first_offset`: the minimum offset of the queue.

        Raises KeyError, TypeError, ValueError for anything that `progress` cannot return.
        """
        marks = [Mark(int(end), key_of(int(due), int(at))) for end, due, at in progress["marks"]]
        self.end = self._none_below = max(first_offset, int(progress["floor"]))
        self.marks = marks

    def take_stored(self, chunks: Iterable[Sequence[Unit]]) -> Iterator[None]:
        """At a start: `take` for chunks of units, and the recalls among them. In slices, between
        which messages may be recalled, and none is popped."""
        recalled: set[int] = set()
        for units in chunks:
            recalled.update(recalled_offset(code) for _, _, code in units if code < 0)
            self.take(units)
            yield
        for begin in range(0, len(self._heap) if recalled else 0, SLICE):
            keys = self._heap[begin : begin + SLICE]
            found = recalled.intersection(map(offset_of, keys)) - self._recalled
            self._recalled |= found
            for offset in found:
                self._uncount(offset)
            yield

    # ---- out ----

    def head(self) -> int | None:
        """The lowest key; its message may have been recalled (`is_recalled`)."""
        return self._heap[0] if self._heap else None

    def pop(self) -> int:
        """Takes the head out, as delivered. Its record is needed until `forget`."""
        key = heapq.heappop(self._heap)
        marks = self.marks
        marks[-1] = Mark(marks[-1].end, key)
        while len(marks) > 1 and key >= marks[-2].key:
            del marks[-2]  # caught up: one mark holds for both
        return key

    def forget(self, keys: Iterable[int]) -> None:
        """The copies of popped messages are durable: their records are not needed again."""
        for offset in map(offset_of, keys):
            if offset in self._recalled:
                self._recalled.discard(offset)
            else:
                self._uncount(offset)

    def put_back(self, keys: Iterable[int], marks: Sequence[Mark]) -> None:
        """Popped messages were not delivered after all; `marks` as they were before. No `take` may
        lie between."""
        for key in keys:
            heapq.heappush(self._heap, key)
        self.marks = list(marks)

    # ---- recalls ----

    def recall(self, key: int) -> bool:
        """Begins the recall of a message; `end_recall` must follow. False: it does not wait."""
        offset = offset_of(key)
        gone = offset < self._none_below or self.is_delivered(key)
        if gone or offset in self._recalled or (self._merged and key not in self._heap):
            return False
        self._recalled.add(offset)
        self._being_recalled.add(offset)
        return True

    def end_recall(self, key: int, *, recalled: bool) -> None:
        """The recall is durable; or not `recalled`: it was rolled back, and the message waits."""
        offset = offset_of(key)
        self._being_recalled.discard(offset)
        if not recalled:
            self._recalled.discard(offset)
        elif offset < self.end:  # else it is not counted yet
            self._uncount(offset)

    def is_recalled(self, key: int) -> bool:
        return offset_of(key) in self._recalled

    def is_being_recalled(self, key: int) -> bool:
        """Whether its recall is neither durable nor rolled back."""
        return offset_of(key) in self._being_recalled

    # ---- progress ----

    def waits(self, key: int) -> bool:
        """Whether the record of a message is still needed."""
        gone = self.is_recalled(key) and not self.is_being_recalled(key)
        return not gone and not self.is_delivered(key)

    def is_delivered(self, key: int) -> bool:
        """True too for a recalled message whose due time has passed."""
        offset = offset_of(key)
        for mark in self.marks:
            if offset < mark.end:
                return key <= mark.key
        return False

    def floor(self) -> int:
        """A queue offset below which no message waits, rounded down to a block."""
        if not self._blocks:
            return self.end
        if self._first_block not in self._blocks:
            self._first_block = min(self._blocks)
        return self._first_block << _BLOCK_BITS

    def progress(self) -> dict[str, Any]:
        """For `restore`: can be written as JSON. A mark is [end, due time, queue offset]."""
        marks = [[mark.end, due_of(mark.key), offset_of(mark.key)] for mark in self.marks]
        return {"floor": self.floor(), "marks": marks}
