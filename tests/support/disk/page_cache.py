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
        self.versions: dict[int, list[bytes]] = {}  # of sectors, since the last sync
        self.sizes: list[int] = []  # since the last sync
        self.taken: set[int] = set()  # sectors that take space

    def touch(self, start: int, end: int) -> None:
        """The sectors in [start, end) have just got their present content."""
        for sector in range(start // SECTOR, -(-end // SECTOR)):
            data = bytes(self.current[sector * SECTOR : (sector + 1) * SECTOR])
            self.versions.setdefault(sector, []).append(data.ljust(SECTOR, b"\0"))

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
        for sector in self.versions:
            start = sector * SECTOR
            data = self.current[start : start + SECTOR]
            self.durable.extend(bytes(max(0, start + len(data) - len(self.durable))))
            self.durable[start : start + len(data)] = data
        self.drop()

    def drop(self) -> None:
        """All that is dirty is clean, and lost to the disk; but for the size, which the journal
        keeps.
        """
        size = len(self.current)
        self.durable.extend(bytes(max(0, size - len(self.durable))))
        del self.durable[size:]
        self.versions.clear()
        self.sizes.clear()

    def survivor(self, rng: random.Random) -> FileContent:
        """What a power cut leaves."""
        result = FileContent()
        data = bytearray(self.durable)
        size = rng.choice([len(data), *self.sizes])
        end = max((sector + 1 for sector in self.versions), default=0) * SECTOR
        data.extend(bytes(max(0, max(end, size) - len(data))))
        for sector in sorted(self.versions):
            kept = rng.choice([None, *self.versions[sector]])
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
