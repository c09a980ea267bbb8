"""Provide a disk that discards all writes after its process was "killed".

A broker that shares its process with other services cannot be killed alone. Instead, it is stopped
on a disk that no longer writes. So its files stay as they were at that moment.
"""

from __future__ import annotations

from pathlib import Path

from aerobee_broker.disk import RealDisk, RealFile, Usage


class MortalDisk:
    """A `Disk` that behaves like the real one until `die` is called."""

    def __init__(self) -> None:
        self._disk = RealDisk()
        self.dead = False

    def die(self) -> None:
        """Discard all writes, new names and removals from now on. Reads still work."""
        self.dead = True

    def open(self, path: Path, *, create: bool = False) -> MortalFile:
        if self.dead and create and not path.exists():
            return MortalFile(self._disk.open(Path("/dev/null")), self)
        return MortalFile(self._disk.open(path, create=create), self)

    def exists(self, path: Path) -> bool:
        return self._disk.exists(path)

    def list(self, directory: Path) -> list[str]:
        return self._disk.list(directory)

    def make_directory(self, path: Path) -> None:
        if not self.dead:
            self._disk.make_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        if not self.dead:
            self._disk.rename(source, target)

    def remove(self, path: Path) -> None:
        if not self.dead:
            self._disk.remove(path)

    def remove_tree(self, path: Path) -> None:
        if not self.dead:
            self._disk.remove_tree(path)

    def sync_directory(self, path: Path) -> None:
        if not self.dead:
            self._disk.sync_directory(path)

    def lock(self, path: Path) -> RealFile | None:
        return self._disk.lock(path)

    def usage(self, path: Path) -> Usage:
        return self._disk.usage(path)


class MortalFile:
    """An open file of a MortalDisk. Implements `DiskFile`."""

    __slots__ = ("_disk", "_file", "path")

    def __init__(self, file: RealFile, disk: MortalDisk) -> None:
        self.path = file.path
        self._file = file
        self._disk = disk

    def pread(self, size: int, offset: int) -> bytes:
        return self._file.pread(size, offset)

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        if not self._disk.dead:
            self._file.pwrite(data, offset)

    def sync(self) -> None:
        if not self._disk.dead:
            self._file.sync()

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        if not self._disk.dead:
            self._file.truncate(size)

    def allocate(self, offset: int, size: int) -> None:
        if not self._disk.dead:
            self._file.allocate(offset, size)

    def close(self) -> None:
        self._file.close()
