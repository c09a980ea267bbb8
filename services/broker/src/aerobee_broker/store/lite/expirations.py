"""Which lite topics in a queue of a parent were removed by their TTL, and when: its expirations.

An *expiration* is a pair of queue offsets: when the queue ended at `end`, each lite topic that had
no message at `floor` or behind was removed, with all its messages. A later message of that name
begins the lite topic anew. So one pair says it of any number of lite topics, and whoever reads the
queue from its beginning again finds the same ones. Memory: 16 bytes an expiration, until none of
the messages below its floor is stored any more.
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
    """Of one queue of a parent. Both offsets rise from one expiration to the next."""

    def __init__(self) -> None:
        self._ends = array(_OFFSET)
        self._floors = array(_OFFSET)

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """End and floor of each."""
        return zip(self._ends, self._floors, strict=True)

    def add(self, end: int, floor: int) -> bool:
        """False: it is known, or says nothing new."""
        if self._ends and (end < self._ends[-1] or floor <= self._floors[-1]):
            return False
        if self._ends and end == self._ends[-1]:
            self._floors[-1] = floor  # removes what the one before did, and more
        else:
            self._ends.append(end)
            self._floors.append(floor)
        return True

    def at(self, queue_offset: int) -> tuple[int, int]:
        """The floor for a message at this queue offset: its lite topic begins anew if the message
        before it lies below. And the queue offset from which another floor is in force."""
        index = bisect_right(self._ends, queue_offset)
        floor = self._floors[index - 1] if index else 0
        return floor, self._ends[index] if index < len(self._ends) else _NEVER

    def trim_to(self, queue_offset: int) -> None:
        """Drops those that concern only messages below."""
        self._cut(bisect_right(self._floors, queue_offset), len(self))

    def drop_beyond(self, queue_offset: int) -> None:
        """Drops those with a later end: of a queue that this one has taken the place of."""
        self._cut(0, bisect_right(self._ends, queue_offset))

    def _cut(self, begin: int, end: int) -> None:
        if begin or end < len(self):
            self._ends, self._floors = self._ends[begin:end], self._floors[begin:end]

    # ---- as bytes ----

    def to_bytes(self) -> list[bytes]:
        """All ends, then all floors, in the byte order of the machine."""
        return [self._ends.tobytes(), self._floors.tobytes()]

    def load(self, ends: bytes, floors: bytes) -> None:
        """What `to_bytes` gave."""
        self._ends, self._floors = array(_OFFSET), array(_OFFSET)
        self._ends.frombytes(ends)
        self._floors.frombytes(floors)


class ParentExpirations:
    """Of all queues of all parents."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, int], Expirations] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[tuple[str, int, Expirations]]:
        """Parent, queue id, and expirations of each queue that has some."""
        for (parent, queue_id), expirations in self._queues.items():
            if expirations:
                yield parent, queue_id, expirations

    def of(self, parent: str, queue_id: int) -> Expirations:
        return self._queues.setdefault((parent, queue_id), Expirations())

    def parents(self) -> set[str]:
        return {parent for parent, _, _ in self}

    def remove_parent(self, parent: str) -> bool:
        """False: it had none."""
        removed = [self._queues.pop(key) for key in list(self._queues) if key[0] == parent]
        return any(removed)

    def clear(self) -> None:
        self._queues.clear()
