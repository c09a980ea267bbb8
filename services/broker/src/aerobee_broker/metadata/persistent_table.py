"""Persistent tables: written to their files on a worker thread, one write at a time, with the
newest content.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.errors import ConfigFileDamaged
from aerobee_broker.metadata.json_file import JsonFile
from aerobee_broker.metadata.table import Table
from aerobee_wire.checked_json import encode
from aerobee_wire.status import Code, MqError


class PersistentTable:
    """A table and its file.

    `logged`, where it is given: returns when the log durably holds what the table says by now. Such
    a table is written only then: its file must not hold an ack that a power cut rolls back.
    """

    def __init__(
        self,
        table: Table,
        file: JsonFile,
        writer: Worker,
        logged: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._table = table
        self._file = file
        self._writer = writer
        self._saved = table.revision
        self._write_under_way: asyncio.Task[None] | None = None
        self._logged = logged

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
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            path = self._file.path
            raise ConfigFileDamaged(path, f"{path}: {error!r} is not as expected") from None
        return True

    async def save(self) -> None:
        """Returns when the table as it is now is durable; concurrent callers share a write.

        Raises MqError SYSTEM_ERROR when the file cannot be written, and what `logged` raises.
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
            data = encode(self._table.to_json())
            if self._logged is not None:
                await self._logged()
            await self._writer(lambda: self._file.write(data))
            self._saved = revision
        except OSError as error:
            raise MqError(
                Code.SYSTEM_ERROR,
                f"cannot write {self._file.path.name}: {error.strerror}; make room or repair the "
                "disk",
            ) from error
        finally:
            self._write_under_way = None
