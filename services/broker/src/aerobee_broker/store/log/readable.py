"""The log for parts that only read it.

It is the log itself on the loop, or a reader with its own file that one other thread may use.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from aerobee_broker.disk import Disk, DiskFile
from aerobee_broker.store.log.commit_log import CommitLog


class ReadableLog(Protocol):
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
