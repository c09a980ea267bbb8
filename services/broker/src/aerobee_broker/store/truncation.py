"""Truncates the log after the last record that it shares with the log of its master.

    diverged/EPOCH-OFFSET.log   the cut bytes, from this physical offset to the end of the log

The order of the steps is safe against a crash. First, the cut bytes are copied durably. Next, the
checkpoint is lowered, because everything below its offsets must exist at a start. Then the log is
cut, and zeros are written and synced after its end. If a crash interrupts a cut, the next cut
repeats the steps and finds the copy.

A cut at or above the confirm offset changes only the log, because queues and index have nothing
after that offset. A cut below it follows an election that gave up confirmed messages. Queues and
index are then rebuilt, so the store must be opened again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from aerobee_broker.disk import Disk
from aerobee_broker.errors import CutRefused
from aerobee_broker.store.derived.checkpoint import Checkpoint, CheckpointFile
from aerobee_broker.store.derived.dispatch import Dispatch
from aerobee_broker.store.log.commit_log import CommitLog
from aerobee_broker.store.retention.deleted_topics import DeletedTopics

_COPY_BYTES = 1 << 20  # that one read and one write copy


class Cut(NamedTuple):
    """The result of a cut from the physical offset `begin` to `end`.

    `path` is the file that keeps the cut bytes, or None if there were none. `confirmed` is True if
    confirmed messages were cut. Then the store must be opened again, and must copy the tables of
    its master, whose consumer offsets fit the shorter queues.
    """

    begin: int
    end: int
    path: Path | None
    confirmed: bool


@dataclass(frozen=True, slots=True)
class Cutter:
    """Cuts the log, and keeps the cut bytes in `folder`.

    The methods block. No other part may use the store meanwhile.
    """

    disk: Disk
    folder: Path
    log: CommitLog
    dispatch: Dispatch
    checkpoint_file: CheckpointFile
    deleted_topics: DeletedTopics

    def cut(self, physical_offset: int, epoch: int) -> Cut:
        """Cut the log at the end of a record.

        `epoch` is the epoch in which the cut bytes were written, if known. It is used only in the
        name of the copy.

        Raises CutRefused if the position is invalid or the log is not flushed. Raises OSError if
        the disk fails; the caller may then retry.
        """
        log = self.log
        if not log.min_offset <= physical_offset <= log.end:
            raise CutRefused(physical_offset, f"the log lies from {log.min_offset} to {log.end}")
        if log.flushed != log.end:
            raise CutRefused(physical_offset, f"the log is flushed up to {log.flushed} only")
        if self.dispatch.has_unconfirmed:
            raise CutRefused(physical_offset, "the store has appends of its own: open it again")
        end, confirmed = log.end, physical_offset < log.confirmed
        if physical_offset == end:
            return Cut(end, end, None, False)
        path = self._copy(physical_offset, end, epoch)
        self._lower_checkpoint(physical_offset)
        log.cut(physical_offset)
        self.deleted_topics.end_at(physical_offset)
        return Cut(physical_offset, end, path, confirmed)

    def _lower_checkpoint(self, physical_offset: int) -> None:
        found = self.checkpoint_file.read() or Checkpoint(self.log.file_size)
        if physical_offset < found.dispatched:
            found = Checkpoint(self.log.file_size)  # everything that is derived is rebuilt
        confirmed = min(self.log.confirmed, physical_offset)
        self.checkpoint_file.write(replace(found, flushed=physical_offset, confirmed=confirmed))

    def _copy(self, begin: int, end: int, epoch: int) -> Path:
        """Return a file with a durable copy of this range of the log. Write it if it is missing."""
        self.disk.make_directory(self.folder)
        path = self.folder / f"{epoch}-{begin}.log"
        number = 1
        while self.disk.exists(path):
            if self._holds(path, begin, end):
                return path
            number += 1
            path = self.folder / f"{epoch}-{begin}.{number}.log"
        new = path.with_name(path.name + ".tmp")
        file = self.disk.open(new, create=True)
        try:
            file.truncate(0)
            for at in self._pieces(begin, end):
                file.pwrite(self._read(at, end), at - begin)
            file.sync()
        finally:
            file.close()
        self.disk.rename(new, path)
        self.disk.sync_directory(self.folder)
        self.disk.sync_directory(self.folder.parent)
        return path

    def _holds(self, path: Path, begin: int, end: int) -> bool:
        """Return whether the file is a copy of this range, left by an interrupted cut."""
        file = self.disk.open(path)
        try:
            return file.size() >= end - begin and all(
                file.pread(len(data), at - begin) == data
                for at in self._pieces(begin, end)
                for data in (self._read(at, end),)
            )
        finally:
            file.close()

    def _pieces(self, begin: int, end: int) -> list[int]:
        """Return the physical offsets at which reads of a range begin.

        No read spans two files of the log.
        """
        pieces = []
        at = begin
        while at < end:
            pieces.append(at)
            file_end = self.log.start_at(at) + self.log.file_size
            at = min(at + _COPY_BYTES, file_end)
        return pieces

    def _read(self, at: int, end: int) -> bytes:
        file_end = self.log.start_at(at) + self.log.file_size
        return self.log.read(at, min(_COPY_BYTES, file_end - at, end - at))
