"""Saves a table by appending its changed rows to a change file beside the JSON file.

The cost of a save therefore depends on the number of changed rows. The JSON file is written again
when the number of appended rows reaches the number of rows in the table.

The member `changes` of the JSON file is the number of the last change that the file includes. A
start applies the later changes. An older version writes the JSON file without that member. In this
case, a start ignores the change file.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import structlog

from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.disk import Disk, read_file
from aerobee_broker.errors import ConfigFileDamaged
from aerobee_broker.metadata.persistent_table import (
    Journal,
    JsonFile,
    Logged,
    PersistentTable,
    Prepared,
)
from aerobee_broker.metadata.table import DataVersion, JournalledTable, kept
from aerobee_broker.store.format import TABLE_CHANGES
from aerobee_wire.checked_json import encode_text

_CRC = b"%08x "
_CRC_SIZE = 9
_OBJECT = b'{"number":'  # begin of each object; inside a string, the quotes would be escaped
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode


class ChangeFile:
    """The change file that belongs to the JSON file `path`; its suffix is `.changes`.

    Each line is a change. It consists of a CRC-32 as eight hexadecimal digits, a space, and a JSON
    object. The first member of the object is `number`, which counts the changes of the table. A
    change is durable when `append` returns. A power cut tears at most the last line, because each
    line is durable before the next one is written.

    `rotate` renames the file to `.changes.bak` after the JSON file has received all of its changes.
    A start that loads the backup of the JSON file needs both change files.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path.with_suffix(".changes")
        self.torn_bytes = 0  # bytes after the last whole line, found by `load`
        self._backup = self.path.with_suffix(".changes.bak")
        self._disk = disk
        self._end = 0
        self._is_named = False  # whether the name of the file is certainly durable

    def load(self, *, with_backup: bool) -> list[dict[str, Any]]:
        """Read the changes on the disk, oldest first.

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

    @property
    def is_there(self) -> bool:
        """Return whether a change file exists, rotated or not."""
        return self._disk.exists(self.path) or self._disk.exists(self._backup)

    def rotated(self) -> list[dict[str, Any]]:
        """Return the changes of the rotated file, oldest first, or [] if it is damaged.

        The JSON file has them, unless an older copy of it was put back.
        """
        try:
            found, _, torn = self._read(self._backup)
        except ConfigFileDamaged:
            return []
        return [] if torn else found

    def append(self, number: int, change: Mapping[str, Any]) -> None:
        """Append a change durably. The call blocks for a disk flush.

        Raises OSError. After an error, the next call overwrites the bytes of the failed call.
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
        """Rename the file to its backup. The JSON file must have all changes. Raises OSError."""
        if self._end:
            self._disk.rename(self.path, self._backup)
        self._end, self._is_named = 0, False

    def clear(self) -> None:
        """Remove the change file and its backup. Raises OSError.

        Call it if the changes do not belong to the present JSON file.
        """
        for path in (self.path, self._backup):
            if self._disk.exists(path):
                self._disk.remove(path)
        self._disk.sync_directory(self.path.parent)
        self._end, self._is_named = 0, False

    def _read(self, path: Path) -> tuple[list[dict[str, Any]], int, int]:
        """Return the changes in a file, the end of the last one, and the number of later bytes."""
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
    """Return the change whose line begins at this position, or None if it is not whole."""
    end = data.find(b"\n", begin)
    text = data[begin + _CRC_SIZE : end]
    if end < 0 or data[begin : begin + _CRC_SIZE] != _CRC % zlib.crc32(text):
        return None
    change = json.loads(text)
    return change if isinstance(change, dict) else None


def _has_whole_change(data: bytes, begin: int) -> bool:
    """Return whether a whole change begins after this position.

    If so, the file is damaged, because a torn write leaves no whole change.
    """
    at = data.find(_OBJECT, begin)
    while at >= 0:
        if at >= begin + _CRC_SIZE and _change_at(data, at - _CRC_SIZE) is not None:
            return True
        at = data.find(_OBJECT, at + 1)
    return False


_NUMBER = "changes"  # a member of the JSON file that RocketMQ does not have
LEAST_APPENDED = 4096  # rows to append before the JSON file is written again
_SLICE_ROWS = 256  # rows to encode before other tasks may run: 1 to 2 ms
T = TypeVar("T")


def load_table(table: JournalledTable, disk: Disk, path: Path) -> None:
    """Load a table from its JSON file `path` and its change file, without writing a file.

    Raises ConfigFileDamaged.
    """

    def write(job: Callable[[], T]) -> Awaitable[T]:
        raise AssertionError(f"{path} is only read")

    IncrementalTable(table, JsonFile(disk, path), ChangeFile(disk, path), write).read()


class _Content(NamedTuple):
    """The content for the JSON file, taken at one moment."""

    number: int
    head: Mapping[str, Any]
    rows: Mapping[Any, Any]


class IncrementalTable(PersistentTable):
    """Saves a table to its JSON file and its change file."""

    def __init__(
        self,
        table: JournalledTable,
        file: JsonFile,
        changes: ChangeFile,
        writer: Worker,
        journal: Journal | None = None,
        *,
        require: Callable[[Collection[str]], None] = lambda features: None,
    ) -> None:
        super().__init__(table, file, writer, journal=journal, require=require)
        self._rows = table
        self._changes = changes
        self._number = 0  # the number of the newest change
        self._appended = 0  # rows appended since the JSON file was written
        self._is_continued = False  # whether the change file continues the JSON file
        self._missing: list[range] = []  # numbers of missing changes
        self._older_than = 0  # number of a change that the JSON file must have, and lacks
        self._due: _Content | None = None  # next content of the JSON file

    # ---- load ----

    def read(self) -> bool:
        if super().read():
            return True
        if self._changes.is_there:
            path, changes = self._file.path, self._changes.path.name
            raise ConfigFileDamaged(
                path,
                f"{path}: it and its .bak are missing, and {changes} continues it",
                f"restore the file; or remove {changes} and its .bak, and the table begins empty",
            )
        return False

    def _load_content(self, content: dict[str, Any]) -> None:
        super()._load_content(content)
        # A backup without a number was written by an older version. The later changes belong to it.
        number = content.get(_NUMBER, 0 if self._file.is_backup else None)
        self._is_continued = number is not None
        self._number, self._appended, self._older_than = int(number or 0), 0, 0
        if self._is_continued:
            self._apply_changes(self._find_changes())

    def _find_changes(self) -> list[dict[str, Any]]:
        """Return the changes to apply to the JSON file, oldest first.

        The rotated file has later ones if an older copy of the JSON file was put back. If changes
        between the two are missing, load the backup of the JSON file, which may be newer.
        """
        changes = self._changes.load(with_backup=self._file.is_backup)
        if self._file.is_backup:
            return changes
        rotated = [each for each in self._changes.rotated() if int(each["number"]) > self._number]
        if rotated:
            self._older_than = int(rotated[-1]["number"])
        changes = rotated + changes
        if changes and int(changes[0]["number"]) > self._number + 1:
            backup = self._file.load_backup()
            number = int((backup or {}).get(_NUMBER, 0))
            if backup is not None and number > self._number:
                super()._load_content(backup)
                self._number, self._older_than = number, max(self._older_than, number)
        return changes

    def _report(self) -> None:
        super()._report()
        log = structlog.get_logger().bind(file=str(self._changes.path))
        if self._older_than:
            structlog.get_logger().error(
                "table_file_is_older", file=str(self._file.path), lacked_change=self._older_than
            )
        for gap in self._missing:
            log.error("table_changes_missing", first=gap.start, last=gap.stop - 1)
        if self._is_continued and self._changes.torn_bytes:
            log.warning("torn_table_change_dropped", bytes=self._changes.torn_bytes)

    def _apply_changes(self, changes: Sequence[Mapping[str, Any]]) -> None:
        self._missing = []
        for change in changes:
            number = int(change["number"])
            if number <= self._number:
                continue
            if number != self._number + 1:
                self._missing.append(range(self._number + 1, number))
            self._apply(change)
            self._number = number

    def _apply(self, change: Mapping[str, Any]) -> None:
        try:
            put, removed = change["put"], change["removed"]
            self._rows.take_rows(put, removed, DataVersion.from_json(change["version"]), anew=False)
            self._load_position(change)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            problem = f"change {change['number']}: {error!r} is not as expected"
            raise self._changes.damaged(problem) from None
        self._appended += max(1, len(put) + len(removed))

    # ---- save ----

    async def finish(self) -> None:
        await super().finish()
        if self._write_under_way is not None:
            await asyncio.shield(self._write_under_way)
        if self._appended and self._saved == self._table.revision:
            await self._compact(self._content(self._number, self.position))

    async def _write(self) -> None:
        self._due = None
        await super()._write()
        self._begin_compaction()

    def _begin_compaction(self) -> None:
        """Start a task that writes the JSON file, if it is due.

        The change is already durable, so the caller of `save` does not wait for the task.
        """
        if self._due is not None:
            self._write_under_way = asyncio.get_running_loop().create_task(
                self._compact(self._due), name=f"compact {self._file.path.name}"
            )

    def _prepare(self) -> Prepared:
        keys = self._rows.changed_keys(self._saved) if self._is_continued else None
        logged = self._log()
        if keys is None:
            # One more than the newest change, so that a start from the backup notices the gap.
            self._number += 1
            content = self._content(self._number, logged.position)
            return Prepared(logged, partial(self._replace, content))
        self._require({TABLE_CHANGES})
        if self._appended >= max(LEAST_APPENDED, len(self._rows.rows())):
            self._due = self._content(self._number + 1, logged.position)
        return Prepared(logged, partial(self._append, self._change(keys, logged), len(keys)))

    def _change(self, keys: Sequence[Any], logged: Logged) -> dict[str, Any]:
        table = self._rows
        rows = table.rows()
        return {
            "version": table.version.to_json(),
            "put": {
                table.name_of(key): table.row_to_json(rows[key]) for key in keys if key in rows
            },
            "removed": [table.name_of(key) for key in keys if key not in rows],
            **self._position_member(logged.position),
        }

    async def _append(self, change: dict[str, Any], rows: int) -> None:
        number = self._number + 1
        await self._writer(lambda: self._changes.append(number, change))
        self._number = number
        self._appended += max(1, rows)

    # ---- the JSON file ----

    def _content(self, number: int, position: int | None) -> _Content:
        head = {
            **self._rows.head_to_json(),
            **self._position_member(position),
            _NUMBER: number,
        }
        return _Content(number, head, {key: kept(row) for key, row in self._rows.rows().items()})

    async def _compact(self, content: _Content) -> None:
        """Write the JSON file, and log a failure.

        A failure is harmless, because the change file has all changes.
        """
        try:
            await self._replace(content)
        except OSError as error:
            self._appended = 0  # so the next attempt waits for the same number of rows
            structlog.get_logger().warning(
                "table_not_compacted", file=str(self._file.path), reason=error.strerror
            )
        finally:
            self._write_under_way = None

    async def _replace(self, content: _Content) -> None:
        """Write the JSON file and rotate the change file. Raises OSError."""
        text = await self._encoded(content)
        is_continued = self._is_continued

        def put() -> None:
            if not is_continued:
                self._changes.clear()
            self._file.write(encode_text(text))
            self._changes.rotate()

        await self._writer(put)
        self._is_continued, self._appended = True, 0

    async def _encoded(self, content: _Content) -> str:
        """Encode the content in slices, so that the event loop can serve clients in between."""
        table = self._rows
        rows = []
        for count, (key, row) in enumerate(content.rows.items(), start=1):
            rows.append(f"{_encode(table.name_of(key))}:{_encode(table.row_to_json(row))}")
            if count % _SLICE_ROWS == 0:
                await asyncio.sleep(0)
        return f"{_encode(content.head)[:-1]},{_encode(table.ROWS)}:{{{','.join(rows)}}}}}"
