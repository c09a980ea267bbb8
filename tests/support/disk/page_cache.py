"""Contents of files and directories, current (in the page cache) and durable (on the disk).

The fault model that they serve is that of `simulated_disk`.
"""

from __future__ import annotations

import random

SECTOR = 512


class FileContent:
    """The bytes of a file, whatever its names."""

    def __init__(self) -> None:
        self.current = bytearray()
        self.durable = bytearray()
        # Since the last sync: the first sector of what was written, and the whole sectors.
        self.writes: list[tuple[int, bytes]] = []
        self.sizes: list[int] = []  # since the last sync
        self.taken: set[int] = set()  # sectors that take space

    def touch(self, start: int, end: int) -> None:
        """The sectors in [start, end) have just got their present content."""
        first, behind = start // SECTOR, -(-end // SECTOR)
        if first < behind:
            data = bytes(self.current[first * SECTOR : behind * SECTOR])
            self.writes.append((first, data.ljust((behind - first) * SECTOR, b"\0")))

    def resize(self, size: int) -> None:
        old = len(self.current)
        if size < old:
            del self.current[size:]
            self.touch(size, old)
            self.taken = {sector for sector in self.taken if sector * SECTOR < size}
        else:
            self.current.extend(bytes(size - old))
        self.sizes.append(size)

    def sync(self) -> None:
        """All that is dirty is durable."""
        size = len(self.current)
        self.durable.extend(bytes(max(0, size - len(self.durable))))
        for first, data in self.writes:
            start = first * SECTOR
            end = min(start + len(data), size)
            if start < end:
                self.durable[start:end] = self.current[start:end]
        self.drop()

    def drop(self) -> None:
        """All that is dirty is clean, and lost to the disk; but for the size, which the journal
        keeps.
        """
        size = len(self.current)
        self.durable.extend(bytes(max(0, size - len(self.durable))))
        del self.durable[size:]
        self.writes.clear()
        self.sizes.clear()

    def versions(self) -> dict[int, list[bytes]]:
        """Return each content that a sector has had since the last sync."""
        found: dict[int, list[bytes]] = {}
        for first, data in self.writes:
            for number in range(len(data) // SECTOR):
                version = data[number * SECTOR : (number + 1) * SECTOR]
                found.setdefault(first + number, []).append(version)
        return found

    def survivor(self, rng: random.Random) -> FileContent:
        """What a power cut leaves."""
        result = FileContent()
        data = bytearray(self.durable)
        size = rng.choice([len(data), *self.sizes])
        versions = self.versions()
        end = max((sector + 1 for sector in versions), default=0) * SECTOR
        data.extend(bytes(max(0, max(end, size) - len(data))))
        for sector in sorted(versions):
            kept = rng.choice([None, *versions[sector]])
            if kept is not None:
                data[sector * SECTOR : (sector + 1) * SECTOR] = kept
        del data[size:]
        result.durable, result.current = data, bytearray(data)
        result.taken = {sector for sector in self.taken if sector * SECTOR < size}
        return result


class DirectoryContent:
    """Names, and the changes to them that are not durable. A change is a list of (name, content or
    None) that happen together.
    """

    def __init__(self) -> None:
        self.current: dict[str, FileContent] = {}
        self.durable: dict[str, FileContent] = {}
        self.changes: list[list[tuple[str, FileContent | None]]] = []
        self.removed = 0  # so many of them ended with the removal of the directory

    def change(self, *parts: tuple[str, FileContent | None]) -> None:
        self.changes.append(list(parts))
        _apply(self.current, list(parts))

    def sync(self, count: int | None = None) -> None:
        """Makes the first `count` changes durable, or all."""
        count = len(self.changes) if count is None else count
        for change in self.changes[:count]:
            _apply(self.durable, change)
        del self.changes[:count]
        self.removed = max(0, self.removed - count)

    def survivors(self, rng: random.Random) -> dict[str, FileContent]:
        kept = dict(self.durable)
        for change in self.changes[: rng.randint(0, len(self.changes))]:
            _apply(kept, change)
        return kept


def _apply(names: dict[str, FileContent], change: list[tuple[str, FileContent | None]]) -> None:
    for name, content in change:
        if content is None:
            names.pop(name, None)
        else:
            names[name] = content
