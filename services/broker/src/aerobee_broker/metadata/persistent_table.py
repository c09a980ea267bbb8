"""Saves tables to JSON files on a worker thread.

One write of a file runs at a time, and each write has the newest content of the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import structlog

from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.disk import Disk, read_file, replace_file
from aerobee_broker.errors import NO_SPACE, ConfigFileDamaged, DiskFull, place
from aerobee_broker.metadata.table import Table
from aerobee_wire.checked_json import decode, encode
from aerobee_wire.status import Code, MqError


class JsonFile:
    """A JSON file that is replaced atomically, with its previous content in `.bak`.

    A write syncs a temporary file, renames the old file to `.bak`, renames the temporary file, and
    syncs the directory. After a power cut at any time, one of the two files is whole.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path
        self.problem = ""  # reason why `load` used the backup, until the next `write`
        self.is_backup = False  # whether `load` used the backup, until the next `write`
        self._disk = disk

    def load(self) -> dict[str, Any] | None:
        """Return the content of the file, or of `.bak` if the file is missing or damaged.

        Return None if neither file exists. Raises ConfigFileDamaged if no existing file can be
        read.
        """
        backup = self.path.with_name(self.path.name + ".bak")
        problems = []
        for path in (self.path, backup):
            try:
                content = decode(read_file(self._disk, path))
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                problems.append(f"{path}: {error}")
            else:
                self.problem, self.is_backup = "; ".join(problems), path == backup
                return content
        if problems:
            raise ConfigFileDamaged(self.path, "; ".join(problems))
        return None

    def load_backup(self) -> dict[str, Any] | None:
        """Return the content of `.bak`, or None if it is missing or damaged."""
        try:
            return decode(read_file(self._disk, self.path.with_name(self.path.name + ".bak")))
        except (OSError, ValueError):
            return None

    def write(self, data: bytes) -> None:
        """Replace the content of the file. Raises OSError.

        The call blocks for two or three disk flushes.
        """
        # A damaged file must not replace the intact backup.
        replace_file(self._disk, self.path, data, keep_backup=not self.problem)
        self.problem, self.is_backup = "", False


_POSITION = "journalPosition"  # a member of the file that RocketMQ does not have


class Logged(NamedTuple):
    """The journal position of a table.

    The journal below the physical offset `position` has the whole content of the table. Await
    `confirmed` to wait until no failover can remove this part of the journal. It is None if this is
    already so.
    """

    position: int
    confirmed: Awaitable[None] | None


class Journal(Protocol):
    def log(self, table: Table) -> Logged:
        """Append the changes of the table to the journal, and return its new position.

        Raises the errors of an append to the store.
        """


class Prepared(NamedTuple):
    """A write with content from one moment. It may start only after `logged` is confirmed."""

    logged: Logged
    write: Callable[[], Awaitable[None]]


_NOT_LOGGED = Logged(0, None)


class PersistentTable:
    """Saves a table to its JSON file.

    Await `logged` to wait until the log durably has everything in the table. A write waits for it,
    because the file must not contain an ack that a power cut rolls back. A replicated broker passes
    `journal`. The file then has the confirmed content of the table and its journal position.
    `require` is called with the features of the table before they are written. It raises MqError.
    """

    def __init__(
        self,
        table: Table,
        file: JsonFile,
        writer: Worker,
        logged: Callable[[], Awaitable[None]] | None = None,
        journal: Journal | None = None,
        *,
        require: Callable[[Collection[str]], None] = lambda features: None,
    ) -> None:
        self.position: int | None = None  # in the file; None if it was written without a journal
        self.is_there = False  # whether the file exists
        self._table = table
        self._file = file
        self._writer = writer
        self._saved = table.revision
        self._write_under_way: asyncio.Task[None] | None = None
        self._logged = logged
        self._journal = journal
        self._require = require

    def load(self) -> bool:
        """Fill the table from the file. Return False if the file is missing.

        Raises ConfigFileDamaged.
        """
        is_there = self.read()
        self._report()
        return is_there

    def read(self) -> bool:
        """Fill the table like `load`, but without log events."""
        content = self._file.load()
        if content is None:
            return False
        try:
            self._load_content(content)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            path = self._file.path
            raise ConfigFileDamaged(path, f"{path}: {error!r} is not as expected") from None
        self.is_there = True
        self._saved = self._table.revision
        return True

    def _report(self) -> None:
        """Log an error if `load` used the backup."""
        if self._file.problem:
            structlog.get_logger().error(
                "config_file_damaged", reason=self._file.problem, taken="the backup: .bak"
            )

    def _load_content(self, content: dict[str, Any]) -> None:
        """Fill the table with the content of the file.

        Raises AttributeError, KeyError, TypeError, ValueError, ConfigFileDamaged.
        """
        self._table.load(content)
        self._load_position(content)

    def _load_position(self, content: Mapping[str, Any]) -> None:
        position = content.get(_POSITION)
        self.position = None if position is None else int(position)

    def take(self, content: dict[str, Any]) -> None:
        """Replace the table with the content of another replica's file. Call `save` afterwards.

        Raises ConfigFileDamaged.
        """
        try:
            self._table.take(content)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            name = self._file.path.name
            text = f"{name} of another replica: {error!r} is not as expected"
            raise ConfigFileDamaged(self._file.path, text) from None

    def encoded(self) -> tuple[bytes, Logged]:
        """Return the new content of the file, and the journal position to wait for.

        Raises the errors of `require` and of the store.
        """
        content = self._table.to_json()
        logged = self._log()
        return encode({**content, **self._position_member(logged.position)}), logged

    def _log(self) -> Logged:
        self._require(self._table.features)
        return _NOT_LOGGED if self._journal is None else self._journal.log(self._table)

    def _position_member(self, position: int | None) -> dict[str, int]:
        """Return a journal position as a member of the JSON file, or {} without a journal."""
        if self._journal is None or position is None:
            return {}
        return {_POSITION: position}

    async def save(self) -> None:
        """Save the table, and return when its present content is durable.

        Concurrent callers share a write. Raises MqError with the code DISK_FULL or SYSTEM_ERROR if
        the file cannot be written, and the errors of `logged` and `require`.
        """
        wanted = self._table.revision
        while self._saved < wanted:
            if self._write_under_way is None:
                self._write_under_way = asyncio.get_running_loop().create_task(
                    self._write(), name=f"save {self._file.path.name}"
                )
            # Cancelling one caller must not cancel the write for the other callers.
            await asyncio.shield(self._write_under_way)

    async def try_save(self) -> None:
        """Save the table, but log a failure instead of raising it. The next call retries."""
        try:
            await self.save()
        except MqError as error:
            structlog.get_logger().error(
                "table_not_saved", file=str(self._file.path), reason=error.message
            )

    async def finish(self) -> None:
        """Save the table before a stop.

        Afterwards the JSON file alone has the whole table, so that older versions can read it.
        """
        await self.try_save()

    async def _write(self) -> None:
        try:
            revision = self._table.revision
            logged, write = self._prepare()
            if logged.confirmed is not None:
                await logged.confirmed
            if self._logged is not None:
                await self._logged()
            await write()
            self._saved, self.is_there = revision, True
            if self._journal is not None:
                self.position = logged.position
        except OSError as error:
            raise self._failure(error) from error
        finally:
            self._write_under_way = None

    def _failure(self, error: OSError) -> MqError:
        path = self._file.path
        if error.errno in NO_SPACE:
            return DiskFull(
                f"there is no room on the disk for {place(path)}: make room on the disk of the "
                "store, then retry; the broker keeps running",
                place(path),
            )
        return MqError(
            Code.SYSTEM_ERROR,
            f"cannot write {path.name}: {error.strerror}; repair the disk, then retry",
        )

    def _prepare(self) -> Prepared:
        data, logged = self.encoded()

        async def write() -> None:
            await self._writer(lambda: self._file.write(data))

        return Prepared(logged, write)
