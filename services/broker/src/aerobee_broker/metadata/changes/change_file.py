"""The change file of a table: what has changed since its JSON file was written, appended. Knows no
table.

A line is one change: eight hexadecimal digits, the CRC-32 of the JSON object; a space; the object.
Its first member is `number`, which counts the changes of the table. A change is durable when
`append` returns. A power cut tears the last line at most: one is on its way to the disk at a time.

`rotate` renames the file to `.bak` once the JSON file has all of it. A start that takes the backup
of the JSON file needs both.
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
_OBJECT = b'{"number":'  # its beginning; within a string the quotes would be escaped
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode


class ChangeFile:
    """`path`: of the JSON file; the change file has the suffix `.changes` instead."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path.with_suffix(".changes")
        self.torn_bytes = 0  # behind the last whole line, as `load` found it
        self._backup = self.path.with_suffix(".changes.bak")
        self._disk = disk
        self._end = 0
        self._is_named = False  # whether its name is durable for certain

    def load(self, *, with_backup: bool) -> list[dict[str, Any]]:
        """The changes that are on the disk, the oldest first; `with_backup`: also what was put
        aside. Writes nothing. Raises ConfigFileDamaged."""
        found: list[dict[str, Any]] = []
        if with_backup:
            found, _, torn = self._read(self._backup)
            if torn:  # it was whole when it was put aside
                raise self.damaged(f"its last {torn} bytes are damaged", self._backup)
        newest, self._end, self.torn_bytes = self._read(self.path)
        self._is_named = False
        return found + newest

    def append(self, number: int, change: Mapping[str, Any]) -> None:
        """Blocks for a disk flush. Raises OSError; then the next call writes in its place."""
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
        """The JSON file has all of it. Raises OSError."""
        if self._end:
            self._disk.rename(self.path, self._backup)
        self._end, self._is_named = 0, False

    def clear(self) -> None:
        """Removes both files: they belong to a JSON file that is gone. Raises OSError."""
        for path in (self.path, self._backup):
            if self._disk.exists(path):
                self._disk.remove(path)
        self._disk.sync_directory(self.path.parent)
        self._end, self._is_named = 0, False

    def _read(self, path: Path) -> tuple[list[dict[str, Any]], int, int]:
        """The changes of one file, where the last one ends, and how many bytes follow."""
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
        """`path`: None, of the change file."""
        path = path or self.path
        table = path.name.partition(".")[0]
        return ConfigFileDamaged(
            path,
            f"{path}: {problem}",
            f"restore the file, or remove it: then every change since {table}.json was written is "
            "lost, and what was deleted since is back",
        )


def _change_at(data: bytes, begin: int) -> dict[str, Any] | None:
    """The change whose line begins there; None: it is not whole."""
    end = data.find(b"\n", begin)
    text = data[begin + _CRC_SIZE : end]
    if end < 0 or data[begin : begin + _CRC_SIZE] != _CRC % zlib.crc32(text):
        return None
    change = json.loads(text)
    return change if isinstance(change, dict) else None


def _has_whole_change(data: bytes, begin: int) -> bool:
    """Whether one begins anywhere behind: a torn write leaves none."""
    at = data.find(_OBJECT, begin)
    while at >= 0:
        if at >= begin + _CRC_SIZE and _change_at(data, at - _CRC_SIZE) is not None:
            return True
        at = data.find(_OBJECT, at + 1)
    return False
