"""The commit log: append-only bytes, addressed by physical offset. Independent of topics.

Files of one size, named by the physical offset of their first byte. A record never spans two files:
a blank record fills the rest of a file.

Two threads use it. `sync` and `allocate_next_file` run on the flusher's, `write` on either, one at
a time, and everything else on the loop's. They share a few fields, each assigned by one thread. The
loop does not change what it has sealed.
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
BLANK_RESERVE = BLANK.size  # a record leaves at least this much of its file
_READY = "blank.ready"  # the next file, allocated ahead of time
_UNREADY = ("blank.tmp", "new.tmp")
_COPY_BYTES = 1 << 20  # rewritten at once during a start


def file_name(start: int) -> str:
    return f"{start:0{NAME_DIGITS}d}"


def start_of(name: str) -> int | None:
    """Return the offset in a file name; None for any other name."""
    return int(name) if len(name) == NAME_DIGITS and name.isdigit() else None


class CommitLog:
    def __init__(self, disk: Disk, folder: Path, file_size: int, open_files: OpenFiles) -> None:
        self.folder = folder
        self.file_size = file_size
        self.starts: list[int] = []
        self.end = 0  # after the last appended byte
        self.written = 0  # after the last byte that the operating system has
        self.flushed = 0  # after the last byte that is durable
        # No failover rolls back records below it. Without replicas: after the last durable byte.
        self.confirmed = 0
        self.recent = RecentWrites()
        self._disk = disk
        self._open_files = open_files
        self._writers: dict[int, DiskFile] = {}
        self._pending: list[tuple[int, list[Part]]] = []  # parts up to the end of a file
        self._parts: list[Part] = []  # of the file that contains `end`
        self._parts_at = 0
        self._sealed: list[tuple[int, list[Part]]] = []  # for the next `write`
        self._sealed_end = 0  # and the offset at which that ends
        self._stale: list[tuple[int, int]] = []  # ranges that failed writes may have left: from, to
        # Shared with the flusher.
        self._unsynced: dict[int, DiskFile] = {}
        self._names_unsynced = False
        self._next_file_ready = False

    # ---- where ----

    @property
    def min_offset(self) -> int:
        return self.starts[0] if self.starts else self.written  # a write creates the first file

    def start_at(self, physical_offset: int) -> int:
        """Return the physical offset at which the file containing this one starts."""
        return physical_offset - physical_offset % self.file_size

    def path_of(self, physical_offset: int) -> Path:
        return self.folder / file_name(self.start_at(physical_offset))

    # ---- append ----

    def room(self) -> int:
        """Return the physical offset at or below which a record must end.

        If it does not fit, the log must `roll` first.
        """
        return self.start_at(self.end) + self.file_size - BLANK_RESERVE

    def extend(self, parts: Sequence[Part], end: int) -> None:
        """Append the bytes of whole records, which end at `end`."""
        self._parts += parts
        self.end = end

    def roll(self) -> int:
        """Fill the current file with a blank record; the next record goes to the next file."""
        following = self.start_at(self.end) + self.file_size
        self._parts.append(BLANK.pack(following - self.end, MAGIC_BLANK))
        self._begin_file(following)
        return following

    def behind_blank(self, physical_offset: int) -> int:
        """Return where the next record is: after a blank record, if there is one at this offset.

        A blank record may be all zeros after a start. Raises OSError.
        """
        following = self.start_at(physical_offset) + self.file_size
        if following > self.end:
            return physical_offset
        found = self.read(physical_offset, min(BLANK.size, following - physical_offset))
        is_blank = found == BLANK.pack(following - physical_offset, MAGIC_BLANK) or not any(found)
        return following if is_blank else physical_offset

    def extend_raw(self, data: Part, end: int) -> None:
        """Append bytes of another log that continue this one: whole records that end at `end`.

        If `end` is the start of a file, they end with a blank record.
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
        """Drop what was appended and not written. Do not call it while `write` is under way."""
        self._pending.clear()
        self._sealed.clear()
        self._parts = []
        self.end = self._parts_at = self.written

    def seal(self) -> None:
        """Hand everything appended until now to the next `write`."""
        self._sealed += self._pending
        if self._parts:
            self._sealed.append((self._parts_at, self._parts))
        self._pending = []
        self._parts, self._parts_at = [], self.end
        self._sealed_end = self.end

    def write(self) -> int:
        """Hand everything sealed to the operating system, with one write a file.

        Raises OSError; then none of it counts as written, and `drop_unwritten` must follow.
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
        try:
            file = self._writers.get(start) or self._open_writer(start)
            file.pwrite(data, at - start)
        except OSError:
            self._stale.append((self.written, at + len(data)))
            raise
        # After the write, so that a sync that removes the file from the table covers these bytes.
        self._unsynced[start] = file

    def _wipe_stale(self) -> None:
        """Overwrite with zeros what failed writes left. Raises OSError.

        After a crash, whole records there could be mistaken for new ones.
        """
        for stale_start, stale_end in self._stale:
            for start in [s for s in list(self._writers) if stale_start < s + self.file_size]:
                low, high = max(stale_start, start), min(stale_end, start + self.file_size)
                if low < high:
                    self._writers[start].pwrite(bytes(high - low), low - start)
                    self._unsynced[start] = self._writers[start]
        self._stale.clear()

    # ---- flush: the flusher's thread ----

    def sync(self) -> int:
        """Make everything durable that was written when it began; return that offset.

        Raises OSError. Then bytes that were not durable before may never be, even if a later sync
        succeeds: the system marks pages as clean that it could not write.
        """
        target = self.written
        # A copy: what the loop writes meanwhile must not prolong this.
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
        """Allocate the next file, so that the append that needs it only renames it.

        Raises OSError; then that append allocates the file itself.
        """
        self._allocate(self.folder / _UNREADY[0])
        self._disk.rename(self.folder / _UNREADY[0], self.folder / _READY)
        self._next_file_ready = True

    def _allocate(self, path: Path) -> None:
        file = self._disk.open(path, create=True)
        try:
            file.truncate(0)
            file.allocate(self.file_size)
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
        file = self._writers[start] = self._disk.open(path)
        return file

    def close_flushed_writers(self) -> None:
        """Close the writers of files that are full and durable. Runs on the loop, after a flush."""
        if len(self._writers) > 1:
            for start in [s for s in self._writers if s + self.file_size <= self.flushed]:
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
            self._writers.pop(start).close()
        return path

    # ---- start ----

    def load(self) -> int | None:
        """Find the files and check that they are consecutive.

        Returns the physical offset at which the last file ended if it was too short; it is now
        extended with zeros. Raises OSError, CommitLogBroken.
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
        """Set the end of the log, found by recovery. Everything below `durable` is durable.

        Wipes everything after the end: a stale record there could look like a new one after the
        next crash. Syncs the bytes between `durable` and the end. After a crash of the process,
        they may be only in the page cache, and they are about to become visible. Writes them again
        before the sync: after a failed sync the system considers those pages clean, and a sync
        alone would not save them. Raises OSError.
        """
        self._set_end(end)
        # The last file first: a power cut must not leave a gap. The first file stays: its name is
        # the position at which an empty log begins.
        first = self.starts[0] if self.starts and self.starts[0] > 0 else -1
        for start in [s for s in reversed(self.starts) if s >= end and s != first]:
            self.starts.remove(start)
            path = self.folder / file_name(start)
            self._open_files.forget(path)
            self._disk.remove(path)
        # Before the last file is cut, because only the last file may be too short at a start.
        self._disk.sync_directory(self.folder)
        if self.starts and end < self.starts[-1] + self.file_size:
            start = self.starts[-1]
            file = self._writers[start] = self._disk.open(self.folder / file_name(start))
            file.truncate(end - start)
            file.allocate(self.file_size)
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
        """Let a log without records begin at this start of a file, durably. Raises OSError."""
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
        """Remove the files allocated ahead, when everything is durable. Raises OSError."""
        for name in (_READY, *_UNREADY):
            if self._disk.exists(self.folder / name):
                self._disk.remove(self.folder / name)

    def abandon(self) -> None:
        """Close the files as they are."""
        while self._writers:
            self._writers.popitem()[1].close()


class ReadableLog(Protocol):
    """The log for parts that only read it: the log itself on the loop, or a PrivateReader."""

    @property
    def file_size(self) -> int: ...

    @property
    def starts(self) -> list[int]: ...

    def start_at(self, physical_offset: int) -> int: ...

    def path_of(self, physical_offset: int) -> Path: ...

    def read(self, physical_offset: int, size: int) -> bytes:
        """Return up to `size` bytes, fewer at the end of a file. Raises OSError."""


class PrivateReader:
    """Reads the log through a file of its own, on one thread beside the loop.

    A file that retention removes meanwhile stays readable to its end.
    """

    def __init__(self, disk: Disk, log: CommitLog) -> None:
        self.file_size = log.file_size
        self.start_at, self.path_of = log.start_at, log.path_of
        self._disk = disk
        self._log = log
        self._file: DiskFile | None = None
        self._start = -1  # where that file starts

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
