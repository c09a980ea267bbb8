"""Opens the store of a stopped broker for reading only.

A broker that opens a store extends, cuts and rebuilds files. This module does not change files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aerobee_broker.disk import Disk, FileLock, read_file
from aerobee_broker.errors import StoreOpenError
from aerobee_broker.store.derived.checkpoint import Checkpoint, CheckpointFile
from aerobee_broker.store.format import Format, FormatFile, StoreTooNew
from aerobee_broker.store.log.commit_log import BLANK_RESERVE, CommitLog, start_of
from aerobee_broker.store.log.open_files import OpenFiles
from aerobee_broker.store.recovery.scan import End, Records, Stop, find_record, scan_log
from aerobee_chassis.errors import StartError
from aerobee_wire.checked_json import decode

MAX_OPEN_FILES = 64


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a file. `physical_offset` is -1 if it is not in the bytes of the log."""

    file: Path
    what: str
    physical_offset: int = -1

    def __str__(self) -> str:
        where = f" at physical offset {self.physical_offset}" if self.physical_offset >= 0 else ""
        return f"{self.file}{where}: {self.what}"


@dataclass(slots=True)
class StoppedStore:
    """A store opened for reading. `close` releases its lock."""

    path: Path
    disk: Disk
    log: CommitLog
    open_files: OpenFiles
    checkpoint: Checkpoint | None
    deleted_topics: dict[str, int]
    format: Format | None  # None: the file is missing or damaged
    clean: bool  # whether the broker stopped in order
    problems: list[Problem] = field(default_factory=list)
    _lock: FileLock | None = None

    def close(self) -> None:
        self.open_files.close()
        if self._lock is not None:
            self._lock.close()

    def end_of_files(self) -> int:
        """Return the physical offset after the last log file."""
        return self.log.starts[-1] + self.log.file_size if self.log.starts else 0


def directory_of(path: Path) -> Path:
    """Return the directory that contains commitlog/.

    `path` is this directory, or the value of the broker's option --data. Raises StartError if no
    store is found.
    """
    for candidate in (path, path / "store", path / "broker" / "store"):
        if (candidate / "commitlog").is_dir():
            return candidate
    raise StartError(
        f"{path} holds no store: give the directory of --data, or the one with commitlog/ in it",
        str(path),
    )


def open_stopped(path: Path, disk: Disk) -> StoppedStore:
    """Lock the store of a stopped broker, and find its files.

    Raises StartError if a broker has the store open, or if this build cannot read it.
    """
    path = directory_of(path)
    problems: list[Problem] = []
    found = _format(disk, path, problems)
    lock = disk.lock(path / "lock")
    if lock is None:
        raise StartError(f"a broker has the store in {path} open: stop it first", str(path))
    checkpoint = CheckpointFile(disk, path / "checkpoint").read()
    open_files = OpenFiles(disk, MAX_OPEN_FILES)
    log = CommitLog(disk, path / "commitlog", _file_size(disk, path, checkpoint), open_files)
    log.starts = _starts(disk, log, problems)
    return StoppedStore(
        path,
        disk,
        log,
        open_files,
        checkpoint,
        _deleted_topics(disk, path, problems),
        found,
        clean=not disk.exists(path / "abort"),
        problems=problems,
        _lock=lock,
    )


def _format(disk: Disk, path: Path, problems: list[Problem]) -> Format | None:
    """Return the format of the store. Add a damaged file to `problems`.

    Raises StartError if this build cannot read the store.
    """
    file = FormatFile(disk, path)
    try:
        file.load()
    except StoreTooNew as error:
        raise StartError(error.message, error.about) from error
    except StoreOpenError as error:
        problems.append(Problem(file.path, error.message))
    return file.current


def _file_size(disk: Disk, path: Path, checkpoint: Checkpoint | None) -> int:
    """Return the size of a log file from the checkpoint, or else the size of the first file."""
    if checkpoint is not None:
        return checkpoint.file_size
    for name in disk.list(path / "commitlog"):
        if start_of(name) is not None:
            return max(1, size_of(disk, path / "commitlog" / name))
    return 1 << 30


def size_of(disk: Disk, path: Path) -> int:
    file = disk.open(path)
    try:
        return file.size()
    finally:
        file.close()


def _starts(disk: Disk, log: CommitLog, problems: list[Problem]) -> list[int]:
    """Return the physical offsets at which the log files start.

    Add missing files, and wrong names and sizes, to `problems`.
    """
    starts = [start for name in disk.list(log.folder) if (start := start_of(name)) is not None]
    for index, start in enumerate(starts):
        path = log.path_of(start)
        size = size_of(disk, path)
        if start % log.file_size:
            problems.append(Problem(path, f"its name is not a multiple of {log.file_size}"))
        elif index and start != starts[index - 1] + log.file_size:
            missing = log.path_of(starts[index - 1] + log.file_size)
            problems.append(Problem(missing, "it is missing in the middle of the commit log"))
        if size != log.file_size:
            problems.append(Problem(path, f"it has {size} bytes instead of {log.file_size}"))
    return [start for start in starts if start % log.file_size == 0]


def _deleted_topics(disk: Disk, path: Path, problems: list[Problem]) -> dict[str, int]:
    """Return a map from deleted topics to the physical offsets of their deletions."""
    file = path / "config" / "deletedTopics.json"
    files = [each for each in (file, file.with_name(file.name + ".bak")) if disk.exists(each)]
    for each in files:
        try:
            found = decode(read_file(disk, each))
            return {str(topic): int(offset) for topic, offset in found.items()}
        except (ValueError, TypeError) as error:
            problems.append(Problem(each, f"it cannot be read: {error}"))
    return {}


class Walk:
    """Reads the log from record to record, and reports damage like recovery.

    Iterate over the object for pairs of records and the physical offset after them. Then read these
    fields: `end` is the physical offset at which the records end. `tail` is the reason of a torn
    tail at `end`, which the next start truncates, or "". `lost_bytes` is the number of damaged
    bytes before `end`.
    """

    def __init__(self, store: StoppedStore, begin: int | None = None) -> None:
        self._store = store
        self._log = store.log
        first = store.log.starts[0] if store.log.starts else 0
        self.end = first if begin is None else max(begin, first)
        self.tail = ""
        self.lost_bytes = 0

    def __iter__(self) -> Iterator[tuple[Records, int]]:
        log = self._log
        at = self.end
        while log.start_at(at) in log.starts:
            file_end = log.start_at(at) + log.file_size
            if at + BLANK_RESERVE > file_end:
                at = file_end
                continue
            records, at, end = scan_log(log, at, check_crc=True)
            self.end = at
            yield records, at
            if end.stop is Stop.BLANK:
                at = file_end
            elif end.stop is not Stop.MORE:
                next_at = self._behind(at, end)
                if next_at is None:
                    break
                if end.damaged is not None:
                    yield end.damaged, at + len(end.damaged.data)
                at = next_at
            self.end = max(self.end, at)
        self._check_durable_end(at)

    def _behind(self, physical_offset: int, end: End) -> int | None:
        """Return the physical offset of the next whole record after a bad one.

        Return None if the log ends at the bad record.
        """
        checkpoint = self._store.checkpoint
        durable = checkpoint.flushed if checkpoint else None
        if durable is not None and physical_offset >= durable:
            self.tail = end.reason
            return None
        limit = self._store.end_of_files() if durable is None else durable
        behind = physical_offset + (len(end.damaged.data) if end.damaged else 1)
        next_at = find_record(self._log, behind, limit, check_crc=True)
        if next_at is None and durable is None:
            self.tail = end.reason
            return None
        reason = end.reason or "zeros in the place of a record"
        path = self._log.path_of(physical_offset)
        self._store.problems.append(Problem(path, reason, physical_offset))
        next_at = limit if next_at is None else next_at
        self.lost_bytes += next_at - physical_offset
        return next_at

    def _check_durable_end(self, end: int) -> None:
        """Report a problem if the log ends before the durable end of the checkpoint."""
        checkpoint = self._store.checkpoint
        if checkpoint is not None and end < checkpoint.flushed:
            what = f"the log ends here, and it was durable up to {checkpoint.flushed}"
            self._store.problems.append(Problem(self._log.path_of(end), what, end))
