"""The commit log: append-only bytes, addressed by physical offset. Knows no topic.

Files of one size, named by the physical offset of their first byte. A record never spans two files:
a blank record fills the rest of a file.

Two threads: `sync` and `allocate_next_file` run on the flusher's, `write` on either, one at a time;
everything else on the loop's. They share a handful of fields, each assigned by one side; the loop
does not touch what it has sealed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aerobee_broker.disk import Disk, DiskFile
from aerobee_broker.errors import CommitLogBroken
from aerobee_broker.store.log.open_files import OpenFiles
from aerobee_broker.store.log.recent_writes import Part, RecentWrites
from aerobee_wire.record import BLANK, MAGIC_BLANK

NAME_DIGITS = 20
BLANK_RESERVE = BLANK.size  # a record leaves at least this much of its file
_READY = "blank.ready"  # the next file, allocated ahead of time
_UNREADY = ("blank.tmp", "new.tmp")
_COPY_BYTES = 1 << 20  # rewritten at once at a start


def file_name(start: int) -> str:
    return f"{start:0{NAME_DIGITS}d}"


def start_of(name: str) -> int | None:
    """The offset that a file name gives; None for any other name."""
    return int(name) if len(name) == NAME_DIGITS and name.isdigit() else None


class CommitLog:
    def __init__(self, disk: Disk, folder: Path, file_size: int, open_files: OpenFiles) -> None:
        self.folder = folder
        self.file_size = file_size
        self.starts: list[int] = []
        self.end = 0  # after the last appended byte
        self.written = 0  # after the last byte that the operating system has
        self.flushed = 0  # after the last byte that is durable
        # No failover takes back what lies below. Without replicas: after the last durable byte.
        self.confirmed = 0
        self.recent = RecentWrites()
        self._disk = disk
        self._open_files = open_files
        self._writers: dict[int, DiskFile] = {}
        self._pending: list[tuple[int, list[Part]]] = []  # parts up to the end of a file
        self._parts: list[Part] = []  # of the file that `end` lies in
        self._parts_at = 0
        self._sealed: list[tuple[int, list[Part]]] = []  # what `write` takes
        self._sealed_end = 0  # and where that ends
        self._stale: list[tuple[int, int]] = []  # ranges that failed writes may have left: from, to
        # Shared with the flusher.
        self._unsynced: dict[int, DiskFile] = {}
        self._names_unsynced = False
        self._next_file_ready = False

    # ---- where ----

    @property
    def min_offset(self) -> int:
        return self.starts[0] if self.starts else self.written  # the first file comes with a write

    def start_at(self, physical_offset: int) -> int:
        """The physical offset at which the file that holds this one starts."""
        return physical_offset - physical_offset % self.file_size

    def path_of(self, physical_offset: int) -> Path:
        return self.folder / file_name(self.start_at(physical_offset))

    # ---- append ----

    def room(self) -> int:
        """A record must end at or below this physical offset, or the log must `roll` first."""
        return self.start_at(self.end) + self.file_size - BLANK_RESERVE

    def extend(self, parts: Sequence[Part], end: int) -> None:
        """Takes the bytes of whole records, which end at `end`."""
        self._parts += parts
        self.end = end

    def roll(self) -> int:
        """Fills the current file with a blank record; the next record goes to the next file."""
        following = self.start_at(self.end) + self.file_size
        self._parts.append(BLANK.pack(following - self.end, MAGIC_BLANK))
        self._begin_file(following)
        return following

    def behind_blank(self, physical_offset: int) -> int:
        """Where the next record lies: behind a blank one that lies there, which may be all zeros
        when a start has found it. Raises OSError."""
        following = self.start_at(physical_offset) + self.file_size
        if following > self.end:
            return physical_offset
        found = self.read(physical_offset, min(BLANK.size, following - physical_offset))
        is_blank = found == BLANK.pack(following - physical_offset, MAGIC_BLANK) or not any(found)
        return following if is_blank else physical_offset

    def extend_raw(self, data: Part, end: int) -> None:
        """Takes bytes of another log, which belong at the end of this one: whole records that end
        at `end`. Where that is the start of a file they end with a blank record.
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
        """Drops what was appended and not written. Not while `write` is under way."""
        self._pending.clear()
        self._sealed.clear()
        self._parts = []
        self.end = self._parts_at = self.written

    def seal(self) -> None:
        """Gives what was appended until now to the next `write`."""
        self._sealed += self._pending
        if self._parts:
            self._sealed.append((self._parts_at, self._parts))
        self._pending = []
        self._parts, self._parts_at = [], self.end
        self._sealed_end = self.end

    def write(self) -> int:
        """Hands what is sealed to the operating system, one write a file.

        Raises OSError; then nothing of it counts, and `forget_pending` must follow.
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
        # After the write, so that a sync which takes the file out of the table covers these bytes.
        self._unsynced[start] = file

    def _wipe_stale(self) -> None:
        """Overwrites with zeros what failed writes left: after a crash, whole records there could
        be taken for new ones. Raises OSError.
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
        """Makes everything durable that was written when it began; returns that offset.

        Raises OSError; then what was not durable before may never be, whatever a later sync says:
        the system marks pages clean that it could not write.
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
        """The current file is more than half full and the next one is not there."""
        used = self.written - self.start_at(self.written)
        return not self._next_file_ready and used > self.file_size // 2

    def allocate_next_file(self) -> None:
        """Allocates the next file, so that the append which needs it only renames it.

        Raises OSError; then the append will try by itself.
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
        """Of files that are full and durable. On the loop, after a flush."""
        if len(self._writers) > 1:
            for start in [s for s in self._writers if s + self.file_size <= self.flushed]:
                self._writers.pop(start).close()

    def read(self, physical_offset: int, size: int) -> bytes:
        """Up to `size` bytes, fewer at the end of a file. Raises OSError."""
        start = self.start_at(physical_offset)
        file = self._writers.get(start) or self._open_files.get(self.folder / file_name(start))
        return file.pread(size, physical_offset - start)

    def drop_first(self) -> Path:
        """Drops the oldest file from the log; the caller removes it."""
        start = self.starts.pop(0)
        path = self.folder / file_name(start)
        self._open_files.forget(path)
        if start in self._writers:
            self._writers.pop(start).close()
        return path

    # ---- start ----

    def load(self) -> int | None:
        """Finds the files and checks that they follow one another. Returns the physical offset at
        which the last one ended if it was too short; it is now extended with zeros. Raises OSError,
        CommitLogBroken.
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
                f"{missing} is missing from the commit log: put it back from a copy; to go on "
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
        """Sets the end of the log, once recovery knows it; below `durable` everything is durable.

        Wipes what lies behind the end: a stale record there could look like a new one after the
        next crash. Syncs what lies between `durable` and the end: after a crash of the process only
        the page cache may have it, and it will be visible at once. Writes it again before that:
        after a failed sync the system takes those pages for clean, and a sync alone would not save
        them. Raises OSError.
        """
        self._set_end(end)
        # The last one first: a power cut must leave no gap. The first one stays: it tells where a
        # log that is empty begins.
        first = self.starts[0] if self.starts and self.starts[0] > 0 else -1
        for start in [s for s in reversed(self.starts) if s >= end and s != first]:
            self.starts.remove(start)
            path = self.folder / file_name(start)
            self._open_files.forget(path)
            self._disk.remove(path)
        # Before the last file is cut: only the last one may be found short.
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
        """Ends the log at the end of a record further ahead: zeros follow it, durably. Only when
        everything is flushed, and while nothing else uses the log. Raises OSError.
        """
        self.abandon()
        self._unsynced.clear()
        self._stale.clear()
        self.confirmed = min(self.confirmed, end)
        self.begin_at(end, end)

    def restart_at(self, start: int) -> None:
        """A log without records begins at this start of a file, durably. Raises OSError."""
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
        """When everything is durable: removes what was allocated ahead. Raises OSError."""
        for name in (_READY, *_UNREADY):
            if self._disk.exists(self.folder / name):
                self._disk.remove(self.folder / name)

    def abandon(self) -> None:
        """Closes the files as they are."""
        while self._writers:
            self._writers.popitem()[1].close()
