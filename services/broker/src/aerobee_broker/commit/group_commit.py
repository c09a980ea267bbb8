"""Flushes synchronously: one write and one disk flush make all earlier appends durable.

The flush begins at the end of the event loop iteration of the first append, so that other appends
of this iteration share it. Appends during the write and the flush share the next flush. Both run on
the flusher thread, and the event loop accepts messages meanwhile. With 64 senders, a broker
acknowledges 10 times as many messages as with one sender.

If replicas receive the log as soon as it is written, write and flush are two jobs of the flusher
thread. Otherwise they are one job, which saves two iterations of the event loop.

The steps are callbacks, because a task would take three more iterations for a lone send.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import NoReturn

import structlog

from aerobee_broker.commit.commit import Commit
from aerobee_broker.errors import StoreFlushError
from aerobee_chassis.turns import at_end_of_turn
from aerobee_wire.status import MqError


class GroupCommit(Commit):
    @property
    def _own(self) -> int:
        return self._on_disk  # a message must be on the disk to be acknowledged

    def schedule(self) -> None:
        if self._task is None and self._store.end_offset > self._on_disk:
            loop = asyncio.get_running_loop()
            self._task = loop.create_future()
            at_end_of_turn(loop, self._begin)

    async def drain(self) -> None:
        self.schedule()
        await super().drain()

    def _begin(self) -> None:
        """Begin to write and flush everything that is appended now."""
        try:
            self._store.flush.seal()
            flushing: asyncio.Future[int] = asyncio.ensure_future(
                self._write_then_sync()
                if self._replicas.ship_at_once
                else self._flusher(self._store.flush.write_and_sync)
            )
        except MqError as error:
            self._refuse(error)
        except Exception as error:
            self._abandon(error)
        else:
            flushing.add_done_callback(self._on_flushed)

    def _on_flushed(self, flushing: asyncio.Future[int]) -> None:
        try:
            self._on_disk = flushing.result()
            if not self._replicas.ship_at_once:
                self._replicas.written(self._on_disk)
            self.advance()
        except MqError as error:
            self._roll_back(error)
        except asyncio.CancelledError:  # the process ends
            self._end()
        except Exception as error:
            if flushing.exception() is not None:
                self._abandon(error)
            self._fail_waiters(error, above=-1)
            self._end()
            raise
        else:
            # The released waiters, and new senders, may append to the next group.
            if self._store.end_offset > self._on_disk:
                asyncio.get_running_loop().call_soon(self._begin)
            else:
                self._end()

    def _roll_back(self, error: MqError) -> None:
        """Refuse what is not written, and later appends, because they would follow a gap."""
        try:
            self._store.flush.roll_back()
        except Exception as unforeseen:
            self._abandon(unforeseen)
        self._refuse(error)

    def _refuse(self, error: MqError) -> None:
        # Flushed bytes stay in the log, and may wait for replicas.
        self._fail(error, above=self._on_disk)
        self._end()
        # Last: on a full disk, this may raise.
        structlog.get_logger().error("flush_failed", reason=error.message)

    def _abandon(self, error: Exception) -> NoReturn:
        """Refuse all present and later appends, and raise the error.

        Call it for an error that the store does not foresee. The disk may lack any bytes of the
        flush, and a later flush proves nothing about them.
        """
        reason = f"flushing failed unexpectedly: {error!r}"
        refusal = StoreFlushError(f"the message may not be stored: {reason}")
        with ExitStack() as steps:  # in reverse order; each runs even if another one fails
            steps.callback(self._refuse, refusal)
            steps.callback(self._store.flush.roll_back)
            steps.callback(self._store.flush.become_read_only, reason, self._store.path)
        raise error

    def _end(self) -> None:
        ended, self._task = self._task, None
        if ended is not None and not ended.done():
            ended.set_result(None)

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
        except Exception:
            # No rollback may run during the sync.
            await asyncio.gather(syncing, return_exceptions=True)
            raise
        self._replicas.written(written)
        return await syncing
