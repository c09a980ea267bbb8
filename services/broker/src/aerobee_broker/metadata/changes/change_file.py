"""The change file of a table: what has changed since its JSON file was written, appended. Knows no
table.

A line is one change: eight hexadecimal digits, the CRC-32 of the rest of the line; a space; a JSON
object. Its member `number` counts the changes of the table. A change is durable when `append`
returns. A power cut may tear the last line only: no two are on their way to the disk at once.

`rotate` puts the file aside as `.bak`, once the JSON file has all of it: whoever has to take the
backup of the JSON file needs what follows that.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aerobee_broker.disk import Disk, read_file
from aerobee_broker.errors import ConfigFileDamaged

_CRC = b"%08x "
_CRC_SIZE = 9
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
        found = []
        if with_backup:
            found, _, torn = self._read(self._backup)
            if torn:  # it was whole when it was put aside
                raise self._damaged(self._backup, f"its last {torn} bytes are damaged")
        newest, self._end, self.torn_bytes = self._read(self.path)
        self._is_named = False
        return found + newest

    def append(self, change: Mapping[str, Any]) -> None:
        """Blocks for a disk flush. Raises OSError; then the next call writes in its place."""
        text = _encode(change).encode()
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
            raise self._damaged(path, str(error)) from None
        found: list[dict[str, Any]] = []
        end = 0
        for begin, behind, change in _lines(data):
            if change is None:
                continue
            if begin != end:
                problem = f"the line at byte {end} is damaged, and whole ones follow"
                raise self._damaged(path, problem)
            found.append(change)
            end = behind
        return found, end, len(data) - end

    @staticmethod
    def _damaged(path: Path, problem: str) -> ConfigFileDamaged:
        table = path.name.partition(".")[0]
        return ConfigFileDamaged(
            path,
            f"{path}: {problem}",
            f"restore the file, or remove it: then every change since {table}.json was written is "
            "lost, and what was deleted since is back",
        )


def _lines(data: bytes) -> Iterator[tuple[int, int, dict[str, Any] | None]]:
    """Where each line begins and ends, and its change; None: it is not whole."""
    begin = 0
    while (end := data.find(b"\n", begin)) >= 0:
        yield begin, end + 1, _decode(data[begin:end])
        begin = end + 1


def _decode(line: bytes) -> dict[str, Any] | None:
    text = line[_CRC_SIZE:]
    if line[:_CRC_SIZE] != _CRC % zlib.crc32(text):
        return None
    change = json.loads(text)
    return change if isinstance(change, dict) else None
