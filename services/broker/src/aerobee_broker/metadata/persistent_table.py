"""Persistent tables: written to their files on a worker thread, one write at a time, with the
newest content.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, NamedTuple, Protocol

import structlog

from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.errors import NO_SPACE, ConfigFileDamaged, DiskFull, place
from aerobee_broker.metadata.json_file import JsonFile
from aerobee_broker.metadata.table import Table
from aerobee_wire.checked_json import encode
from aerobee_wire.status import Code, MqError

_POSITION = "journalPosition"  # a member of the file, beside RocketMQ's


class Logged(NamedTuple):
    """`position`: physical; the journal below it says all that the table says. `confirmed` ends
    when no failover takes that back; None: none does."""

    position: int
    confirmed: Awaitable[None] | None


class Journal(Protocol):
    def log(self, table: Table) -> Logged:
        """What has changed in the table goes to the journal. Raises what the store raises."""


class Prepared(NamedTuple):
    """A write, as of one turn of the loop: to be made once `logged` is confirmed."""

    logged: Logged
    write: Callable[[], Awaitable[None]]


_NOT_LOGGED = Logged(0, None)


class PersistentTable:
    """A table and its file.

    `logged`, where it is given: returns when the log durably holds what the table says by now. Such
    a table is written only then: its file must not hold an ack that a power cut rolls back.
    `journal`: of a replicated broker; the file holds what is confirmed, and says up to where.
    `require`: called with the features of the table before they are in the file or the journal;
    raises MqError.
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
        self.position: int | None = None  # as the file has it; None: no journal was kept
        self.is_there = False  # whether there is a file
        self._table = table
        self._file = file
        self._writer = writer
        self._saved = table.revision
        self._write_under_way: asyncio.Task[None] | None = None
        self._logged = logged
        self._journal = journal
        self._require = require

    def load(self) -> bool:
        """Fills the table from the file. False: there is none. Raises ConfigFileDamaged."""
        is_there = self.read()
        self._report()
        return is_there

    def read(self) -> bool:
        """`load`, without a log event."""
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
        """Logs what was not as expected."""
        if self._file.problem:
            structlog.get_logger().error(
                "config_file_damaged", reason=self._file.problem, taken="the backup: .bak"
            )

    def _load_content(self, content: dict[str, Any]) -> None:
        """Raises AttributeError, KeyError, TypeError, ValueError, ConfigFileDamaged."""
        self._table.load(content)
        self._load_position(content)

    def _load_position(self, content: Mapping[str, Any]) -> None:
        position = content.get(_POSITION)
        self.position = None if position is None else int(position)

    def take(self, content: dict[str, Any]) -> None:
        """The content of another replica's file; `save` is to follow. Raises ConfigFileDamaged."""
        try:
            self._table.take(content)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            name = self._file.path.name
            text = f"{name} of another replica: {error!r} is not as expected"
            raise ConfigFileDamaged(self._file.path, text) from None

    def encoded(self) -> tuple[bytes, Logged]:
        """What the file is to hold when `confirmed` of the second has ended. Raises what
        `require` and the store raise."""
        content = self._table.to_json()
        logged = self._log()
        return encode({**content, **self._position_member(logged.position)}), logged

    def _log(self) -> Logged:
        self._require(self._table.features)
        return _NOT_LOGGED if self._journal is None else self._journal.log(self._table)

    def _position_member(self, position: int | None) -> dict[str, int]:
        """Of a file; none where no journal is kept."""
        if self._journal is None or position is None:
            return {}
        return {_POSITION: position}

    async def save(self) -> None:
        """Returns when the table as it is now is durable; concurrent callers share a write.

        Raises MqError DISK_FULL or SYSTEM_ERROR when the file cannot be written, and what `logged`
        and `require` raise.
        """
        wanted = self._table.revision
        while self._saved < wanted:
            if self._write_under_way is None:
                self._write_under_way = asyncio.get_running_loop().create_task(
                    self._write(), name=f"save {self._file.path.name}"
                )
            # Cancelling one caller must not cancel the write for the others.
            await asyncio.shield(self._write_under_way)

    async def try_save(self) -> None:
        """Periodic `save`: a failure is logged, and the next call retries."""
        try:
            await self.save()
        except MqError as error:
            structlog.get_logger().error(
                "table_not_saved", file=str(self._file.path), reason=error.message
            )

    async def finish(self) -> None:
        """The last `try_save`: an older version finds all of it in the JSON file."""
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
