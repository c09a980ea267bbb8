"""The expirations of a parent's queue record which lite topics their TTL removed, and when.

An *expiration* is a pair of queue offsets, `end` and `floor`. When the queue ended at `end`, each
lite topic without a message at or after `floor` was removed, with all its messages. A later message
with the same name starts a new lite topic. One pair therefore covers any number of lite topics. A
rebuild from the beginning of the queue removes the same ones. An expiration takes 16 bytes of
memory until no message below its floor is stored.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator

_OFFSET = "q"
_NEVER = sys.maxsize
OFFSET_BYTES = array(_OFFSET).itemsize
assert OFFSET_BYTES == 8


class Expirations:
    """The expirations of one queue of a parent topic, in ascending order of ends and floors."""

    def __init__(self) -> None:
        self._ends = array(_OFFSET)
        self._floors = array(_OFFSET)

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Iterate over the end and floor of each expiration."""
        return zip(self._ends, self._floors, strict=True)

    def add(self, end: int, floor: int) -> bool:
        """Add an expiration. Return False if it is known or has no effect."""
        if self._ends and (end < self._ends[-1] or floor <= self._floors[-1]):
            return False
        if self._ends and end == self._ends[-1]:
            self._floors[-1] = floor  # it also removes all that the previous one removes
        else:
            self._ends.append(end)
            self._floors.append(floor)
        return True

    def at(self, queue_offset: int) -> tuple[int, int]:
        """Return the floor for a message at this queue offset, and the end of the next expiration.

        If the previous message of the lite topic is below the floor, the lite topic starts again.
        """
        index = bisect_right(self._ends, queue_offset)
        floor = self._floors[index - 1] if index else 0
        return floor, self._ends[index] if index < len(self._ends) else _NEVER

    def trim_to(self, queue_offset: int) -> None:
        """Drop the expirations whose floor is at or below this queue offset."""
        self._cut(bisect_right(self._floors, queue_offset), len(self))

    def drop_beyond(self, queue_offset: int) -> None:
        """Drop the expirations whose end is after this queue offset.

        They belong to an older queue that this queue has replaced.
        """
        self._cut(0, bisect_right(self._ends, queue_offset))

    def _cut(self, begin: int, end: int) -> None:
        if begin or end < len(self):
            self._ends, self._floors = self._ends[begin:end], self._floors[begin:end]

    # ---- as bytes ----

    def to_bytes(self) -> list[bytes]:
        """Return the bytes of all ends and of all floors, in the byte order of the machine."""
        return [self._ends.tobytes(), self._floors.tobytes()]

    def load(self, ends: bytes, floors: bytes) -> None:
        """Load the result of `to_bytes`."""
        self._ends, self._floors = array(_OFFSET), array(_OFFSET)
        self._ends.frombytes(ends)
        self._floors.frombytes(floors)


class ParentExpirations:
    """The expirations of all queues of all parent topics."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, int], Expirations] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[tuple[str, int, Expirations]]:
        """Iterate over (parent, queue id, expirations) of each queue with expirations."""
        for (parent, queue_id), expirations in self._queues.items():
            if expirations:
                yield parent, queue_id, expirations

    def of(self, parent: str, queue_id: int) -> Expirations:
        return self._queues.setdefault((parent, queue_id), Expirations())

    def parents(self) -> set[str]:
        return {parent for parent, _, _ in self}

    def remove_parent(self, parent: str) -> bool:
        """Remove the expirations of a parent. Return False if it had none."""
        removed = [self._queues.pop(key) for key in list(self._queues) if key[0] == parent]
        return any(removed)

    def clear(self) -> None:
        self._queues.clear()
