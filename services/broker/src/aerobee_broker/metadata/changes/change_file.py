"""The change file of a table: the changes since its JSON file was written, appended.

Independent of the tables. A line is one change: eight hexadecimal digits, the CRC-32 of the JSON
object; a space; the object. The first member of the object is `number`, which counts the changes of
the table. A change is durable when `append` returns. A power cut tears at most the last line,
because only one line at a time is on its way to the disk.

`rotate` renames the file to `.bak` after the JSON file has received all of its changes. A start
that loads the backup of the JSON file needs both change files.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aerobee_broker.disk import Disk, read_file
from aerobee_broker.errors import ConfigFileDamaged

_CRC = b"%08x "
_CRC_SIZE = 9
_OBJECT = b'{"number":'  # how an object begins; the quotes are escaped inside a string
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode


class ChangeFile:
    """The change file that belongs to the JSON file `path`; its suffix is `.changes`."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path.with_suffix(".changes")
        self.torn_bytes = 0  # bytes after the last whole line, found by `load`
        self._backup = self.path.with_suffix(".changes.bak")
        self._disk = disk
        self._end = 0
        self._is_named = False  # whether the name of the file is certainly durable

    def load(self, *, with_backup: bool) -> list[dict[str, Any]]:
        """Return the changes on the disk, oldest first. Write nothing.

        With `with_backup`, the changes of the rotated file come first. Raises ConfigFileDamaged.
        """
        found: list[dict[str, Any]] = []
        if with_backup:
            found, _, torn = self._read(self._backup)
            if torn:  # the file was whole when it was rotated
                raise self.damaged(f"its last {torn} bytes are damaged", self._backup)
        newest, self._end, self.torn_bytes = self._read(self.path)
        self._is_named = False
        return found + newest

    def append(self, number: int, change: Mapping[str, Any]) -> None:
        """Append a change. Blocks for a disk flush.

        Raises OSError; the next call then overwrites what this one wrote.
        """
        text = _encode({"number": number, **change}).encode()
        line = _CRC % zlib.crc32(text) + text + b"\n"
        file = self._disk.open(self.path, create=True)
        try:
            if file.size() != self._end:
                file.truncate(self._end)
            file.pwrite(line, self._end)
            file.sync()
        finally:
            file.close()
        if not self._is_named:
            self._disk.sync_directory(self.path.parent)
            self._is_named = True
        self._end += len(line)

    def rotate(self) -> None:
        """Rename the file to its backup: the JSON file has all of its changes. Raises OSError."""
        if self._end:
            self._disk.rename(self.path, self._backup)
        self._end, self._is_named = 0, False

    def clear(self) -> None:
        """Remove both files, because their JSON file no longer exists. Raises OSError."""
        for path in (self.path, self._backup):
            if self._disk.exists(path):
                self._disk.remove(path)
        self._disk.sync_directory(self.path.parent)
        self._end, self._is_named = 0, False

    def _read(self, path: Path) -> tuple[list[dict[str, Any]], int, int]:
        """Return the changes of one file, where the last one ends, and how many bytes follow."""
        try:
            data = read_file(self._disk, path)
        except FileNotFoundError:
            return [], 0, 0
        except OSError as error:
            raise self.damaged(str(error), path) from None
        found: list[dict[str, Any]] = []
        end = 0
        while (change := _change_at(data, end)) is not None:
            found.append(change)
            end = data.index(b"\n", end) + 1
        if _has_whole_change(data, end):
            problem = f"the change at byte {end} is damaged, and whole ones follow"
            raise self.damaged(problem, path)
        return found, end, len(data) - end

    def damaged(self, problem: str, path: Path | None = None) -> ConfigFileDamaged:
        """Return the error for a damaged file. The default `path` is the change file."""
        path = path or self.path
        table = path.name.partition(".")[0]
        return ConfigFileDamaged(
            path,
            f"{path}: {problem}",
            f"restore the file, or remove it: then every change since {table}.json was written is "
            "lost, and what was deleted since is back",
        )


def _change_at(data: bytes, begin: int) -> dict[str, Any] | None:
    """Return the change whose line begins at `begin`, or None if it is not whole."""
    end = data.find(b"\n", begin)
    text = data[begin + _CRC_SIZE : end]
    if end < 0 or data[begin : begin + _CRC_SIZE] != _CRC % zlib.crc32(text):
        return None
    change = json.loads(text)
    return change if isinstance(change, dict) else None


def _has_whole_change(data: bytes, begin: int) -> bool:
    """Return whether a whole change begins anywhere after `begin`. A torn write leaves none."""
    at = data.find(_OBJECT, begin)
    while at >= 0:
        if at >= begin + _CRC_SIZE and _change_at(data, at - _CRC_SIZE) is not None:
            return True
        at = data.find(_OBJECT, at + 1)
    return False
