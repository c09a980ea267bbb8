"""A bounded set of open files. If it is full, opening a file closes the least recently used one.

Use it to read files and to write derived files. Do not use it for log files that receive appends,
because closing such a file during a sync of the flusher would sync nothing.
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
        """Return the file at this path. Open it if necessary. Raises FileNotFoundError."""
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
        """Close a file that is about to be removed."""
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()
