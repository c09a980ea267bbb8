"""The timer table: records which messages of the timer queue wait, and which were delivered.

The table uses neither the store nor a clock.

A message is represented by a key: its due time and, in the lower bits, its queue offset. Messages
are delivered in ascending order of their keys. A *mark*, the highest delivered key, therefore
separates the delivered messages from the others.

Sometimes a message becomes visible late, when the mark has already passed its due time, because the
disk is slow or the clock was set back. Its key is then below the mark, although it is not
delivered. For messages from its queue offset on, a second, lower mark applies until that mark has
caught up with the first one. The marks
thus define exactly which messages were delivered.

A message takes 56 bytes of memory (measured): an int, and a pointer in the heap.
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
# The number of queue offsets per block, by which waiting messages are counted.
BLOCK_OFFSETS = 1 << _BLOCK_BITS
MAX_MARKS = 64
SLICE = 50_000  # keys that are processed at once: about 10 ms


def key_of(due_ms: int, queue_offset: int) -> int:
    return due_ms << _OFFSET_BITS | queue_offset


def due_of(key: int) -> int:
    return key >> _OFFSET_BITS


def offset_of(key: int) -> int:
    return key & _OFFSET_MASK


class Mark(NamedTuple):
    """The progress of delivery in a range of queue offsets.

    The range starts at the `end` of the previous mark, and ends before the `end` of this mark. In
    this range, exactly the messages with a key up to `key` have been delivered or recalled.
    """

    end: int
    key: int


class TimerTable:
    """The waiting messages of the timer queue, as a heap of keys.

    `end` is the queue offset up to which messages were added. The length of the table is the number
    of waiting messages, without the recalled ones.
    """

    def __init__(self) -> None:
        self.end = 0
        self.marks: list[Mark] = []
        self._merged = False  # True if marks were merged, so delivered messages may seem to wait
        self._heap: list[int] = []
        self._recalled: set[int] = set()  # queue offsets of messages in the heap, or just popped
        self._being_recalled: set[int] = set()  # a subset: the recall is not durable yet
        self._blocks: dict[int, int] = {}  # block number → number of its waiting messages
        self._first_block = 0
        self._none_below = 0  # no message below this queue offset waited at startup

    def __len__(self) -> int:
        return max(0, len(self._heap) - len(self._recalled))

    # ---- adding ----

    def skip_to(self, queue_offset: int) -> None:
        """Skip the messages below a queue offset, which retention has deleted."""
        self.end = max(self.end, queue_offset)

    def take(self, units: Iterable[Unit]) -> None:
        """Add consume-queue entries that start at the queue offset `end`.

        Entries that are recalls are ignored, because `recall` has recorded them already.
        """
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
        """Extend the marks to the queue offset `end`, after messages were added.

        `lowest` is the lowest key of these messages. If it is above the last mark's key, extends
        the range of the last mark. Otherwise, adds a mark with a lower key.
        """
        marks = self.marks
        if not marks:
            marks.append(Mark(self.end, -1 if lowest is None else lowest - 1))
        elif lowest is None or lowest > marks[-1].key:
            marks[-1] = Mark(self.end, marks[-1].key)
        else:
            marks.append(Mark(self.end, lowest - 1))
            if len(marks) > MAX_MARKS:
                # The lower key now applies to both ranges. After a crash, some messages would be
                # delivered twice.
                marks[:2] = [Mark(marks[1].end, marks[1].key)]
                self._merged = True

    def restore(self, progress: dict[str, Any], first_offset: int) -> None:
        """Restore the state that an earlier call of `progress` returned.

        `first_offset` is the minimum offset of the queue. Raises KeyError, TypeError, ValueError if
        the content is invalid.
        """
        marks = [Mark(int(end), key_of(int(due), int(at))) for end, due, at in progress["marks"]]
        self.end = self._none_below = max(first_offset, int(progress["floor"]))
        self.marks = marks

    def take_stored(self, chunks: Iterable[Sequence[Unit]]) -> Iterator[None]:
        """Add chunks of consume-queue entries, including recalls, at startup.

        Yields between slices of the work. During a yield, messages may be recalled, but not popped.
        """
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

    # ---- removing ----

    def head(self) -> int | None:
        """Return the key of the next message to deliver, or None if there is none.

        The message may have been recalled (`is_recalled`).
        """
        return self._heap[0] if self._heap else None

    def first(self, count: int) -> list[int]:
        """Return the keys of up to `count` waiting messages, in the order of their delivery."""
        found: list[int] = []
        # A heap of candidates: the children of an item are larger, so they follow when it is taken.
        candidates = [(self._heap[0], 0)] if self._heap else []
        while candidates and len(found) < count:
            key, at = heapq.heappop(candidates)
            if offset_of(key) not in self._recalled:
                found.append(key)
            for child in range(2 * at + 1, min(2 * at + 3, len(self._heap))):
                heapq.heappush(candidates, (self._heap[child], child))
        return found

    def count_due(self, now_ms: int, limit: int) -> int:
        """Return the number of messages that are due, without the recalled ones, up to `limit`."""
        heap, end, count = self._heap, key_of(now_ms + 1, 0), 0
        pending = [0] if heap and heap[0] < end else []
        while pending and count < limit:
            at = pending.pop()
            count += offset_of(heap[at]) not in self._recalled
            children = range(2 * at + 1, min(2 * at + 3, len(heap)))
            pending += [child for child in children if heap[child] < end]
        return count

    def keys(self, begin: int, count: int) -> list[int]:
        """Return up to `count` keys from a place of the heap on, in no order."""
        return self._heap[begin : begin + count]

    def pop(self) -> int:
        """Remove the next message, count it as delivered, and return its key.

        The record of the message is still needed until `forget` is called.
        """
        key = heapq.heappop(self._heap)
        marks = self.marks
        marks[-1] = Mark(marks[-1].end, key)
        while len(marks) > 1 and key >= marks[-2].key:
            del marks[-2]  # the last mark has caught up, so it covers both ranges
        return key

    def forget(self, keys: Iterable[int]) -> None:
        """Forget popped messages whose records are not needed, because their copies are durable."""
        for offset in map(offset_of, keys):
            if offset in self._recalled:
                self._recalled.discard(offset)
            else:
                self._uncount(offset)

    def put_back(self, keys: Iterable[int], marks: Sequence[Mark]) -> None:
        """Put back popped messages that were not delivered, and restore the previous `marks`.

        `take` must not be called between popping the messages and this call.
        """
        for key in keys:
            heapq.heappush(self._heap, key)
        self.marks = list(marks)

    # ---- recalls ----

    def recall(self, key: int) -> bool:
        """Begin the recall of a message, unless it does not wait.

        Returns whether the recall was begun. If so, the caller must call `end_recall` later.
        """
        offset = offset_of(key)
        gone = offset < self._none_below or self.is_delivered(key)
        if gone or offset in self._recalled or (self._merged and key not in self._heap):
            return False
        self._recalled.add(offset)
        self._being_recalled.add(offset)
        return True

    def end_recall(self, key: int, *, recalled: bool) -> None:
        """End a recall. `recalled` is true if it is durable, and false if it was rolled back."""
        offset = offset_of(key)
        self._being_recalled.discard(offset)
        if not recalled:
            self._recalled.discard(offset)
        elif offset < self.end:  # a message from `end` on is not counted yet
            self._uncount(offset)

    def is_recalled(self, key: int) -> bool:
        return offset_of(key) in self._recalled

    def is_being_recalled(self, key: int) -> bool:
        """Return whether the recall of a message has begun and not ended."""
        return offset_of(key) in self._being_recalled

    # ---- progress ----

    def waits(self, key: int) -> bool:
        """Return whether the record of a message is still needed."""
        gone = self.is_recalled(key) and not self.is_being_recalled(key)
        return not gone and not self.is_delivered(key)

    def is_delivered(self, key: int) -> bool:
        """Return whether a message was delivered, or was recalled and its due time has passed."""
        offset = offset_of(key)
        for mark in self.marks:
            if offset < mark.end:
                return key <= mark.key
        return False

    def floor(self) -> int:
        """Return a queue offset below which no message waits.

        The offset is rounded down to a multiple of BLOCK_OFFSETS.
        """
        if not self._blocks:
            return self.end
        if self._first_block not in self._blocks:
            self._first_block = min(self._blocks)
        return self._first_block << _BLOCK_BITS

    def progress(self) -> dict[str, Any]:
        """Return the state of the table for `restore`, serializable as JSON.

        A mark is stored as the list [end, due time of the key, queue offset of the key].
        """
        marks = [[mark.end, due_of(mark.key), offset_of(mark.key)] for mark in self.marks]
        return {"floor": self.floor(), "marks": marks}
