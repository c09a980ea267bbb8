"""Flush synchronously: one write and one disk flush make every append before them durable.

If the log is shipped as soon as it is written, beside this broker's own flush, write and flush are
two jobs. Otherwise they are one, which spares the loop two turns.

The flush begins at the end of the loop turn in which something was appended, so that other appends
of that turn share it. Appends during the disk's work share the next flush. Write and flush run on
the flusher's thread: the loop accepts messages meanwhile. Measured with 64 senders: 10 times the
acknowledgements of one sender.
"""

from __future__ import annotations

import asyncio

import structlog

from aerobee_broker.commit.commit import Commit
from aerobee_wire.status import MqError


class GroupCommit(Commit):
    @property
    def _own(self) -> int:
        return self._on_disk  # a message is acknowledged once it is on the disk

    def schedule(self) -> None:
        if self._task is None and self._store.end_offset > self._on_disk:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="group commit")

    async def drain(self) -> None:
        self.schedule()
        await super().drain()

    async def _run(self) -> None:
        try:
            while self._store.end_offset > self._on_disk:
                await self._flush()
                # The released waiters, and new senders, may append to the next group.
                await asyncio.sleep(0)
        except MqError as error:
            structlog.get_logger().error("flush_failed", reason=error.message)
            # What is flushed stays in the log, and may wait for replicas.
            self._fail(error, above=self._on_disk)
        except Exception as error:
            self._fail_waiters(error, above=-1)
            raise
        finally:
            self._task = None

    async def _flush(self) -> None:
        self._store.flush.seal()
        try:
            if self._replicas.ship_at_once:
                self._on_disk = await self._write_then_sync()
            else:
                self._on_disk = await self._flusher(self._store.flush.write_and_sync)
                self._replicas.written(self._on_disk)
        except MqError:
            # This also rolls back what was appended meanwhile: it would lie after a gap.
            self._store.flush.roll_back()
            raise
        self.advance()

    async def _write_then_sync(self) -> int:
        """Queue both jobs at once, so that the disk does not wait for the loop between them.

        After a failed write the sync makes durable what was written before.
        """
        flush = self._store.flush
        writing = asyncio.ensure_future(self._flusher(flush.write_sealed))
        syncing = asyncio.ensure_future(self._flusher(flush.sync))
        try:
            written = await writing
        except MqError:
            await asyncio.gather(syncing, return_exceptions=True)
            raise
        self._replicas.written(written)
        return await syncing
