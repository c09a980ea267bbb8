"""A bounded set of open files: the least recently used one is closed when another must be opened.

For reading, and for writing what is derived. Not for the log's files that are being appended to:
closing one while the flusher syncs it would sync nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from aerobee_broker.disk import Disk, DiskFile


class OpenFiles:
    def __init__(self, disk: Disk, limit: int) -> None:
        self._disk = disk
        self._limit = max(1, limit)
        self._files: OrderedDict[Path, DiskFile] = OrderedDict()

    def get(self, path: Path, *, create: bool = False) -> DiskFile:
        """Raises FileNotFoundError."""
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            return file
        file = self._disk.open(path, create=create)
        while len(self._files) >= self._limit:
            self._files.popitem(last=False)[1].close()
        self._files[path] = file
        return file

    def forget(self, path: Path) -> None:
        """Closes a file that is about to be removed."""
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()
