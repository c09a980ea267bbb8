"""The commit log: append-only bytes that are addressed by physical offset.

The log consists of files of one size. The name of a file is the physical offset of its first byte.
A record never spans two files, because a blank record fills the rest of a file.

A file has its full size from its first name on, but its space is reserved in steps: 64 MiB, then as
much again as is reserved. A write reserves before it writes, so a full disk refuses it as a whole.

Two threads use the log. The flusher thread calls `sync` and `allocate_next_file`. Either thread
calls `write`, but never both at once. The event loop's thread calls everything else. The threads
share a few fields, and only one thread assigns each of them. The event loop does not change bytes
that it has sealed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from aerobee_broker.disk import Disk, DiskFile
from aerobee_broker.errors import CommitLogBroken
from aerobee_broker.store.log.open_files import OpenFiles
from aerobee_broker.store.log.recent_writes import Part, RecentWrites
from aerobee_wire.record import BLANK, MAGIC_BLANK

NAME_DIGITS = 20
BLANK_RESERVE = BLANK.size  # bytes at the end of a file that a record leaves for the blank record
_READY = "blank.ready"  # the next file, allocated ahead of time
_UNREADY = ("blank.tmp", "new.tmp")
_COPY_BYTES = 1 << 20  # that a start rewrites with one write
DEFAULT_STEP = 64 << 20  # bytes of disk space that a file reserves at first


def file_name(start: int) -> str:
    return f"{start:0{NAME_DIGITS}d}"


def start_of(name: str) -> int | None:
    """Return the physical offset that a file name encodes, or None for any other name."""
    return int(name) if len(name) == NAME_DIGITS and name.isdigit() else None


class CommitLog:
    def __init__(
        self,
        disk: Disk,
        folder: Path,
        file_size: int,
        open_files: OpenFiles,
        *,
        step: int = DEFAULT_STEP,
    ) -> None:
        self.folder = folder
        self.file_size = file_size
        self.starts: list[int] = []
        # Physical offsets: the first byte after those that are appended, written or durable.
        self.end = 0
        self.written = 0  # the operating system has all bytes below
        self.flushed = 0
        # No failover removes records below `confirmed`. Without replicas it equals `flushed`.
        self.confirmed = 0
        self.recent = RecentWrites()
        self._disk = disk
        self._open_files = open_files
        self._step = min(step, file_size)
        self._writers: dict[int, DiskFile] = {}
        self._reserved: dict[int, int] = {}  # start of a writer's file: bytes of reserved space
        self._pending: list[tuple[int, list[Part]]] = []  # not sealed, of earlier files
        self._parts: list[Part] = []  # not sealed, of the current file
        self._parts_at = 0
        self._sealed: list[tuple[int, list[Part]]] = []  # for the next `write`
        self._sealed_end = 0  # physical offset after the sealed bytes
        self._stale: list[tuple[int, int]] = []  # ranges (begin, end) of failed writes
        # Shared with the flusher.
        self._unsynced: dict[int, DiskFile] = {}
        self._names_unsynced = False
        self._next_file_ready = False

    # ---- positions ----

    @property
    def min_offset(self) -> int:
        return self.starts[0] if self.starts else self.written  # a write creates the first file

    def start_at(self, physical_offset: int) -> int:
        """Return the physical offset of the first byte of the file that contains this offset."""
        return physical_offset - physical_offset % self.file_size

    def path_of(self, physical_offset: int) -> Path:
        return self.folder / file_name(self.start_at(physical_offset))

    # ---- append ----

    def room(self) -> int:
        """Return the physical offset at or below which the next record must end.

        If the record does not fit, call `roll` first.
        """
        return self.start_at(self.end) + self.file_size - BLANK_RESERVE

    def extend(self, parts: Sequence[Part], end: int) -> None:
        """Append the bytes of whole records, which end at the physical offset `end`."""
        self._parts += parts
        self.end = end

    def roll(self) -> int:
        """Fill the current file with a blank record, and return the start of the next file."""
        following = self.start_at(self.end) + self.file_size
        self._parts.append(BLANK.pack(following - self.end, MAGIC_BLANK))
        self._begin_file(following)
        return following

    def behind_blank(self, physical_offset: int) -> int:
        """Return the start of the next file if a blank record begins at this offset.

        Return the offset itself otherwise. Zeros count as a blank record, because recovery may
        leave zeros at the end of a file. Raises OSError.
        """
        following = self.start_at(physical_offset) + self.file_size
        if following > self.end:
            return physical_offset
        found = self.read(physical_offset, min(BLANK.size, following - physical_offset))
        is_blank = found == BLANK.pack(following - physical_offset, MAGIC_BLANK) or not any(found)
        return following if is_blank else physical_offset

    def extend_raw(self, data: Part, end: int) -> None:
        """Append whole records from a copy of this log. They end at the physical offset `end`.

        If `end` is the start of a file, the bytes end with a blank record.
        """
        self._parts.append(data)
        if end == self.start_at(end):
            self._begin_file(end)
        else:
            self.end = end

    def _begin_file(self, start: int) -> None:
        self._pending.append((self._parts_at, self._parts))
        self._parts, self._parts_at = [], start
        self.end = start

    def drop_unwritten(self) -> None:
        """Drop all appended bytes that are not written. Do not call it during `write`."""
        self._pending.clear()
        self._sealed.clear()
        self._parts = []
        self.end = self._parts_at = self.written

    def seal(self) -> None:
        """Let the next `write` write everything that is appended now."""
        self._sealed += self._pending
        if self._parts:
            self._sealed.append((self._parts_at, self._parts))
        self._pending = []
        self._parts, self._parts_at = [], self.end
        self._sealed_end = self.end

    def write(self) -> int:
        """Write all sealed bytes to the operating system, with one write for each file.

        Return the physical offset after them. Raises OSError. After an error, none of these bytes
        count as written, and the caller must call `drop_unwritten`.
        """
        self._wipe_stale()
        writes = [
            (at, parts[0] if len(parts) == 1 else b"".join(parts)) for at, parts in self._sealed
        ]
        for at, data in writes:
            self._write_at(at, data)
        self._sealed = []
        self.written = self._sealed_end
        self.recent.put(writes, self.written)
        return self.written

    def _write_at(self, at: int, data: Part) -> None:
        start = self.start_at(at)
        stale_end = at  # bytes of earlier parts may be in the files, of this part none yet
        try:
            file = self._writers.get(start) or self._open_writer(start)
            self._reserve(file, start, at + len(data) - start)
            stale_end = at + len(data)
            file.pwrite(data, at - start)
        except OSError:
            self._stale.append((self.written, stale_end))
            raise
        # Only after the write: a sync removes the file from the table, and must cover these bytes.
        self._unsynced[start] = file

    def _reserve(self, file: DiskFile, start: int, size: int) -> None:
        """Reserve space for the first `size` bytes of a file, and more for later writes.

        Raises OSError. After an error, the file has the space that it had before.
        """
        reserved = self._reserved[start]
        if size <= reserved:
            return
        doubled = min(max(2 * reserved, self._step), self.file_size)
        # On a small disk, the doubled space could pass a watermark, although the log is small.
        fits = doubled >= size and doubled - reserved <= self._free_space() // 2
        goal = doubled if fits else min(-(-size // self._step) * self._step, self.file_size)
        try:
            file.allocate(reserved, goal - reserved)
        except OSError:
            # A file system may keep the space that it found. Other files need it on a full disk.
            file.truncate(reserved)
            file.truncate(self.file_size)
            file.sync()  # a start accepts a short file only if it is the last one
            raise
        self._reserved[start] = goal

    def _free_space(self) -> int:
        """Return the free space of the disk in bytes, or 0 if it cannot be measured."""
        try:
            return self._disk.usage(self.folder).free
        except OSError:
            return 0  # a step is small then, and may succeed

    def _wipe_stale(self) -> None:
        """Overwrite the bytes of failed writes with zeros. Raises OSError.

        After a crash, recovery could mistake whole records there for new ones.
        """
        for stale_start, stale_end in self._stale:
            for start in [s for s in list(self._writers) if stale_start < s + self.file_size]:
                low, high = max(stale_start, start), min(stale_end, start + self._reserved[start])
                if low < high:
                    self._writers[start].pwrite(bytes(high - low), low - start)
                    self._unsynced[start] = self._writers[start]
        self._stale.clear()

    # ---- flush: the flusher's thread ----

    def sync(self) -> int:
        """Make everything durable that is written now, and return the physical offset after it.

        Raises OSError. After an error, a later sync proves nothing, because the operating system
        marks pages as clean that it could not write.
        """
        target = self.written
        # A copy of the list, because writes of the loop during the sync must not prolong it.
        for start in list(self._unsynced):
            self._unsynced.pop(start).sync()
        if self._names_unsynced:
            self._names_unsynced = False
            self._disk.sync_directory(self.folder)
        self.flushed = target
        return target

    def wants_next_file(self) -> bool:
        """Return whether the current file is more than half full and the next one is missing."""
        used = self.written - self.start_at(self.written)
        return not self._next_file_ready and used > self.file_size // 2

    def allocate_next_file(self) -> None:
        """Allocate the next file, so that the write that needs it only renames it.

        Raises OSError. After an error, that write allocates the file itself.
        """
        self._allocate(self.folder / _UNREADY[0])
        self._disk.rename(self.folder / _UNREADY[0], self.folder / _READY)
        self._next_file_ready = True

    def _allocate(self, path: Path) -> None:
        file = self._disk.open(path, create=True)
        try:
            file.truncate(0)
            file.truncate(self.file_size)
            file.allocate(0, self._step)
            file.sync()
        except OSError:
            self._disk.remove(path)
            raise
        finally:
            file.close()

    # ---- files ----

    def _open_writer(self, start: int) -> DiskFile:
        path = self.folder / file_name(start)
        if not self.starts or start > self.starts[-1]:
            if self._next_file_ready:
                self._next_file_ready = False
                self._disk.rename(self.folder / _READY, path)
            else:
                self._allocate(self.folder / _UNREADY[1])
                self._disk.rename(self.folder / _UNREADY[1], path)
            self.starts.append(start)
            self._names_unsynced = True
        return self._add_writer(start, reserved=self._step)

    def _add_writer(self, start: int, *, reserved: int) -> DiskFile:
        file = self._disk.open(self.folder / file_name(start))
        self._writers[start], self._reserved[start] = file, reserved
        return file

    def close_flushed_writers(self) -> None:
        """Close the write handles of full, durable files. Call it on the event loop."""
        if len(self._writers) > 1:
            for start in [s for s in self._writers if s + self.file_size <= self.flushed]:
                self._close_writer(start)

    def _close_writer(self, start: int) -> None:
        del self._reserved[start]
        self._writers.pop(start).close()

    def read(self, physical_offset: int, size: int) -> bytes:
        """Return up to `size` bytes, fewer at the end of a file. Raises OSError."""
        start = self.start_at(physical_offset)
        file = self._writers.get(start) or self._open_files.get(self.folder / file_name(start))
        return file.pread(size, physical_offset - start)

    def drop_first(self) -> Path:
        """Drop the oldest file from the log. The caller removes it."""
        start = self.starts.pop(0)
        path = self.folder / file_name(start)
        self._open_files.forget(path)
        if start in self._writers:
            self._close_writer(start)
        return path

    # ---- start ----

    def load(self) -> int | None:
        """Find the files and check that they are consecutive.

        If the last file was too short, extend it with zeros, and return the physical offset at
        which it ended. Return None otherwise. Raises OSError, CommitLogBroken.
        """
        names = self._disk.list(self.folder)
        for name in names:
            if name == _READY or name in _UNREADY:
                self._disk.remove(self.folder / name)
        self.starts = [start for name in names if (start := start_of(name)) is not None]
        for index, start in enumerate(self.starts):
            self._check_start(start, self.starts[index - 1] if index else None)
        ended = None
        for start in self.starts:
            size = self._check_size(start, last=start == self.starts[-1])
            if size < self.file_size:
                ended = start + size
        return ended

    def _check_start(self, start: int, previous: int | None) -> None:
        path = self.folder / file_name(start)
        if start % self.file_size:
            raise CommitLogBroken(
                f"{path} does not start at a multiple of mappedFileSizeCommitLog = "
                f"{self.file_size}: set that option to the size that this store was made with",
                "mappedFileSizeCommitLog",
            )
        if previous is not None and start != previous + self.file_size:
            missing = self.folder / file_name(previous + self.file_size)
            raise CommitLogBroken(
                f"{missing} is missing from the commit log: put it back from a copy; to continue "
                f"without what is before {path}, move the files before it out of the directory",
                str(missing),
            )

    def _check_size(self, start: int, *, last: bool) -> int:
        path = self.folder / file_name(start)
        file = self._disk.open(path)
        try:
            size = file.size()
            if size == self.file_size:
                return size
            if size > self.file_size or not last:
                raise CommitLogBroken(
                    f"{path} has {size} bytes instead of mappedFileSizeCommitLog = "
                    f"{self.file_size}: put it back from a copy, or set that option to the size "
                    "that this store was made with",
                    str(path),
                )
            file.truncate(self.file_size)
            file.sync()
            return size
        finally:
            file.close()

    def begin_at(self, end: int, durable: int) -> None:
        """Set the end of the log that recovery found. All bytes below `durable` are durable.

        Remove all bytes after the end, because an old record there could look like a new one after
        the next crash. Rewrite and sync the bytes between `durable` and the end, because they may
        be only in the page cache. A sync alone is not enough: after a failed sync, the operating
        system considers these pages clean. Raises OSError.
        """
        self._set_end(end)
        # Remove the last file first, because a power cut must not leave a gap. Keep the first
        # file, because its name is the physical offset at which an empty log begins.
        first = self.starts[0] if self.starts and self.starts[0] > 0 else -1
        for start in [s for s in reversed(self.starts) if s >= end and s != first]:
            self.starts.remove(start)
            path = self.folder / file_name(start)
            self._open_files.forget(path)
            self._disk.remove(path)
        # Sync before the last file is truncated: at a start, only the last file may be too short.
        self._disk.sync_directory(self.folder)
        if self.starts and end < self.starts[-1] + self.file_size:
            start = self.starts[-1]
            file = self._add_writer(start, reserved=end - start)
            file.truncate(end - start)
            file.truncate(self.file_size)
        for start in [s for s in self.starts if s + self.file_size >= durable]:
            file = self._writers.get(start) or self._open_files.get(self.folder / file_name(start))
            at = max(start, durable)
            while at < min(end, start + self.file_size):
                data = file.pread(min(_COPY_BYTES, end - at), at - start)
                file.pwrite(data, at - start)
                at += len(data)
            file.sync()

    def cut(self, end: int) -> None:
        """End the log at the end of an earlier record, and write zeros after it, durably.

        Call it only when everything is flushed and no other part uses the log. Raises OSError.
        """
        self.abandon()
        self._unsynced.clear()
        self._stale.clear()
        self.confirmed = min(self.confirmed, end)
        self.begin_at(end, end)

    def restart_at(self, start: int) -> None:
        """Start a log without records at this physical offset, durably. Raises OSError.

        `start` is a multiple of the file size.
        """
        self.abandon()
        for old in self.starts:
            self._open_files.forget(self.folder / file_name(old))
            self._disk.remove(self.folder / file_name(old))
        self.starts = []
        self._set_end(start)
        self._open_writer(start)
        self._names_unsynced = False
        self._disk.sync_directory(self.folder)

    def _set_end(self, end: int) -> None:
        self.end = self.written = self.flushed = self._parts_at = self._sealed_end = end
        self.recent.clear()

    def close(self) -> None:
        """Remove the files that are allocated ahead of time. Raises OSError.

        Call it only when everything is durable.
        """
        for name in (_READY, *_UNREADY):
            if self._disk.exists(self.folder / name):
                self._disk.remove(self.folder / name)

    def abandon(self) -> None:
        """Close the files that are open for writes, without a sync."""
        for start in list(self._writers):
            self._close_writer(start)


class ReadableLog(Protocol):
    """Parts of the commit log that readers use: a CommitLog or a PrivateReader."""

    @property
    def file_size(self) -> int: ...

    @property
    def starts(self) -> list[int]: ...

    def start_at(self, physical_offset: int) -> int: ...

    def path_of(self, physical_offset: int) -> Path: ...

    def read(self, physical_offset: int, size: int) -> bytes:
        """Return up to `size` bytes, fewer at the end of a file. Raises OSError."""


class PrivateReader:
    """Reads the log on a thread other than the event loop's, with its own file handle.

    If retention removes the file during a read, the reader can still read it to its end.
    """

    def __init__(self, disk: Disk, log: CommitLog) -> None:
        self.file_size = log.file_size
        self.start_at, self.path_of = log.start_at, log.path_of
        self._disk = disk
        self._log = log
        self._file: DiskFile | None = None
        self._start = -1  # physical offset at which that file starts

    @property
    def starts(self) -> list[int]:
        return self._log.starts

    def read(self, physical_offset: int, size: int) -> bytes:
        start = self.start_at(physical_offset)
        if self._file is None or self._start != start:
            self.close()
            self._file = self._disk.open(self.path_of(physical_offset))
            self._start = start
        return self._file.pread(size, physical_offset - start)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file, self._start = None, -1
