"""Define the disk for the store and the tables: files by offset, durable after a sync.

There are two implementations: `RealDisk`, on the operating system, and the simulated disk of the
fault tests, whose power can be cut. On both:

- Written bytes, and the size of a file, are durable after `DiskFile.sync`.
- Names (created, renamed, removed) are durable after `Disk.sync_directory` of their directory.

Files are read with `pread`, never with a memory map. So a sector that cannot be read causes an
OSError of one call, and does not end the process. And no page fault blocks the event loop.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aerobee_wire import files
from aerobee_wire.files import NotSynced


class DiskFile(Protocol):
    """An open file. Every method raises OSError."""

    path: Path

    def pread(self, size: int, offset: int) -> bytes:
        """Return `size` bytes from `offset` on, or fewer at the end of the file."""

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of `data` at `offset`."""

    def sync(self) -> None:
        """Make all earlier writes durable."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None:
        """Cut or extend the file; the extension reads as zeros and takes no space."""

    def allocate(self, offset: int, size: int) -> None:
        """Reserve space on the disk for `size` bytes from `offset` on.

        Written bytes stay, and others read as zeros. A shorter file is extended. After an error,
        the file may have a part of the space.
        """

    def close(self) -> None: ...


class FileLock(Protocol):
    """A lock that is held until it is closed or the process ends."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of the file system of a path, in bytes.

    `free` is the space that this process may use.
    """

    used: int
    free: int

    @property
    def percent(self) -> float:
        return 100.0 * self.used / max(1, self.used + self.free)


class Disk(Protocol):
    """A file system. Every method raises OSError."""

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        """Open a file for reading and writing.

        Raises FileNotFoundError if it is missing and `create` is False.
        """

    def exists(self, path: Path) -> bool: ...

    def list(self, directory: Path) -> list[str]:
        """Return the sorted names in a directory, or an empty list if it does not exist."""

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents; do nothing if it exists."""

    def rename(self, source: Path, target: Path) -> None:
        """Rename `source` to `target`, and replace `target` if it exists."""

    def remove(self, path: Path) -> None: ...

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with its contents; do nothing if it does not exist."""

    def sync_directory(self, path: Path) -> None: ...

    def lock(self, path: Path) -> FileLock | None:
        """Lock a file. Return None if another process holds the lock."""

    def usage(self, path: Path) -> Usage: ...


# macOS does not have this function. A full disk is then detected by the write.
_fallocate: Callable[[int, int, int], None] | None = getattr(os, "posix_fallocate", None)


class RealFile:
    __slots__ = ("_fd", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    def pread(self, size: int, offset: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and data:  # one call moves at most 2 GiB, and may be cut short
            data = os.pread(self._fd, size - got, offset + got)
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        written = os.pwrite(self._fd, data, offset)
        if written < len(data):
            rest = memoryview(data)
            while written < len(data):
                written += os.pwrite(self._fd, rest[written:], offset + written)

    def sync(self) -> None:
        files.sync_data(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def allocate(self, offset: int, size: int) -> None:
        if _fallocate is None:
            self.truncate(max(offset + size, self.size()))
        else:
            _fallocate(self._fd, offset, size)

    def close(self) -> None:
        os.close(self._fd)


class RealDisk:
    def open(self, path: Path, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(path, os.open(path, flags, 0o644))

    def exists(self, path: Path) -> bool:
        return path.exists()

    def list(self, directory: Path) -> list[str]:
        try:
            return sorted(entry.name for entry in directory.iterdir())
        except FileNotFoundError:
            return []

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def remove(self, path: Path) -> None:
        path.unlink()

    def remove_tree(self, path: Path) -> None:
        while path.exists():
            # The flusher's thread may remove a file of the tree meanwhile.
            with suppress(FileNotFoundError):
                shutil.rmtree(path)

    def sync_directory(self, path: Path) -> None:
        files.sync_directory(path)

    def lock(self, path: Path) -> RealFile | None:
        """Lock the file until it is closed. The kernel releases the lock if the process crashes."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            locked = files.lock(fd)
        except OSError:
            os.close(fd)
            raise
        if locked:
            return RealFile(path, fd)
        os.close(fd)
        return None

    def usage(self, path: Path) -> Usage:
        found = os.statvfs(path)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        return Usage(used, found.f_bavail * found.f_frsize)


def read_file(disk: Disk, path: Path) -> bytes:
    """Return the whole content of a file. Raises FileNotFoundError."""
    file = disk.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def replace_file(disk: Disk, path: Path, data: bytes, *, keep_backup: bool = False) -> None:
    """Replace the file atomically.

    Raises NotSynced if the file was replaced, and another OSError if it was not.
    A reader finds either the old or the new content, also after a power cut. With `keep_backup`,
    the old content is kept as `path` + ".bak".
    """
    new = path.with_name(path.name + ".tmp")
    file = disk.open(new, create=True)
    try:
        file.truncate(0)
        file.pwrite(data, 0)
        file.sync()
    finally:
        file.close()
    if keep_backup and disk.exists(path):
        disk.rename(path, path.with_name(path.name + ".bak"))
        disk.sync_directory(path.parent)
    disk.rename(new, path)
    try:
        disk.sync_directory(path.parent)
    except OSError as error:
        raise NotSynced(error.errno, error.strerror) from error
