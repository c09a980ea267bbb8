"""Flushes synchronously: one write and one disk flush make all earlier appends durable.

The flush begins at the end of the event loop iteration of the first append, so that other appends
of this iteration share it. Appends during the write and the flush share the next flush. Both run on
the flusher thread, and the event loop accepts messages meanwhile. With 64 senders, a broker
acknowledges 10 times as many messages as with one sender.

If replicas receive the log as soon as it is written, write and flush are two jobs of the flusher
thread. Otherwise they are one job, which saves two iterations of the event loop.
"""

from __future__ import annotations

import asyncio

import structlog

from aerobee_broker.commit.commit import Commit
from aerobee_wire.status import MqError


class GroupCommit(Commit):
    @property
    def _own(self) -> int:
        return self._on_disk  # a message must be on the disk to be acknowledged

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
            # Flushed bytes stay in the log, and may wait for replicas.
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
            # This also rolls back later appends, because they would follow a gap.
            self._store.flush.roll_back()
            raise
        self.advance()

    async def _write_then_sync(self) -> int:
        """Submit write and sync as two jobs at once, and return the result of the sync.

        The disk does not wait for the event loop between the jobs. After a failed write, the sync
        still makes earlier writes durable.
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
