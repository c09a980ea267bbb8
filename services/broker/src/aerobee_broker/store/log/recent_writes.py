"""The last writes of the log, kept in memory for replicas that follow closely.

A write consists of whole records of one file in one piece of memory. A replica receives these bytes
unchanged. Reading the same bytes from the file would copy them again and search them for records,
which costs 1 µs a message of 1 KiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MOST_WRITES = 16
MOST_BYTES = 4 << 20

Part = bytes | memoryview  # bytes of the log; never changed


class Write(NamedTuple):
    """A write of whole records.

    `end` is the physical offset of the next write, which may be after a blank record.
    """

    physical_offset: int
    data: Part
    end: int


class RecentWrites:
    """Keeps up to 16 recent writes, at most 4 MiB. Before the first `find`, it keeps nothing.

    `put` runs on the flusher thread, `find` on any thread. `put` replaces the tuple that they
    share, and never changes it.
    """

    def __init__(self) -> None:
        self._writes: tuple[Write, ...] = ()
        self._asked = False

    def put(self, writes: Sequence[tuple[int, Part]], end: int) -> None:
        """Add writes that the operating system has, each as (physical offset, bytes).

        They continue the earlier writes. Each ends where the next one begins, the last one at
        `end`.
        """
        if not (self._asked and writes):
            return
        ends = [at for at, _ in writes[1:]] + [end]
        added = (Write(at, data, end) for (at, data), end in zip(writes, ends, strict=True))
        kept = (*self._writes, *added)[-MOST_WRITES:]
        while sum(len(write.data) for write in kept) > MOST_BYTES:
            kept = kept[1:]
        self._writes = kept

    def clear(self) -> None:
        """Drop all writes, because the end of the log has changed."""
        self._writes = ()

    def find(self, physical_offset: int, most: int, file_end: int) -> Write | None:
        """Return consecutive writes from this physical offset on, joined to one write.

        The result has at most `most` bytes, and does not include a write that begins at or after
        `file_end`. Return None if no write begins at this offset, or if it is larger than `most`.
        """
        self._asked = True
        parts: list[Part] = []
        end = physical_offset
        for write in self._writes:
            if write.physical_offset == end < file_end and len(write.data) <= most:
                parts.append(write.data)
                most -= len(write.data)
                end = write.end
            elif write.physical_offset >= end:
                break
        if not parts:
            return None
        return Write(physical_offset, parts[0] if len(parts) == 1 else b"".join(parts), end)
