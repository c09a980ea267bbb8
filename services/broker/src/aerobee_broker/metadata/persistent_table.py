"""Persistent tables: written to their files on a worker thread, one write at a time, with the
newest content.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, NamedTuple, Protocol

import structlog

from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.errors import NO_SPACE, ConfigFileDamaged
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
        content = self._file.load()
        if content is None:
            return False
        if self._file.problem:
            structlog.get_logger().error(
                "config_file_damaged", reason=self._file.problem, taken="the backup: .bak"
            )
        try:
            self._table.load(content)
            position = content.get(_POSITION)
            self.position = None if position is None else int(position)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            path = self._file.path
            raise ConfigFileDamaged(path, f"{path}: {error!r} is not as expected") from None
        self.is_there = True
        return True

    def take(self, content: dict[str, Any]) -> None:
        """The content of another replica's file; `save` is to follow. Raises ConfigFileDamaged."""
        try:
            self._table.take(content)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            name = self._file.path.name
            text = f"{name} of another replica: {error!r} is not as expected"
            raise ConfigFileDamaged(self._file.path, text) from None

    def encoded(self) -> tuple[bytes, Logged]:
        """What the file is to hold when `confirmed` of the second has ended. Raises what `require`
        and the store raise."""
        self._require(self._table.features)
        content: dict[str, Any] = self._table.to_json()
        if self._journal is None:
            return encode(content), _NOT_LOGGED
        logged = self._journal.log(self._table)
        return encode({**content, _POSITION: logged.position}), logged

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

    async def _write(self) -> None:
        try:
            revision = self._table.revision
            data, logged = self.encoded()
            if logged.confirmed is not None:
                await logged.confirmed
            if self._logged is not None:
                await self._logged()
            await self._writer(lambda: self._file.write(data))
            self._saved, self.is_there = revision, True
            if self._journal is not None:
                self.position = logged.position
        except OSError as error:
            raise MqError(
                Code.DISK_FULL if error.errno in NO_SPACE else Code.SYSTEM_ERROR,
                f"cannot write {self._file.path.name}: {error.strerror}; make room or repair the "
                "disk",
            ) from error
        finally:
            self._write_under_way = None
