"""Synchronous flush: one write and one disk flush settle every append before them.

The flush begins at the end of the loop turn in which something was appended, so that whatever else
the turn appends goes with it; what comes while the disk works goes with the next. Both run on the
flusher's thread: the loop takes in messages meanwhile. Measured, 64 senders: 10 times the
acknowledgements of one sender.
"""

from __future__ import annotations

import asyncio

import structlog

from aerobee_broker.commit.commit import CommitWaiters, OnArrivals, fail_all
from aerobee_broker.commit.worker_thread import OffLoop
from aerobee_broker.store.message_store import MessageStore
from aerobee_wire.status import MqError


class GroupCommit:
    def __init__(
        self, store: MessageStore, flusher: OffLoop, *, on_arrivals: OnArrivals, timeout_ms: int
    ) -> None:
        self._store = store
        self._flusher = flusher
        self._on_arrivals = on_arrivals
        self._waiters = CommitWaiters(timeout_ms)
        self._visible = store.flushed_offset  # and shown, since the store is open
        self._task: asyncio.Task[None] | None = None

    async def durable(self, end_offset: int) -> None:
        if end_offset > self._visible:
            await self.flushing(end_offset)

    flushed = durable

    def flushing(self, end_offset: int) -> asyncio.Future[None]:
        if end_offset <= self._visible:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        future = self._waiters.add(end_offset)
        self.begin()
        return future

    def begin(self) -> None:
        if self._task is None and self._store.end_offset > self._visible:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="group commit")

    async def drain(self) -> None:
        self.begin()
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._store.end_offset > self._visible:
                await self._flush()
                # Who was let go, and who has come meanwhile, may append to the next group.
                await asyncio.sleep(0)
        except MqError as error:
            structlog.get_logger().error("flush_failed", reason=error.message)
            fail_all(self._store, error, self._waiters)
        except Exception as error:
            self._waiters.fail(error)
            raise
        finally:
            self._task = None

    async def _flush(self) -> None:
        self._store.seal()
        try:
            flushed = await self._flusher(self._store.write_and_sync)
        except MqError:
            # With what was appended meanwhile: it would lie behind a gap.
            self._store.forget_unwritten()
            raise
        arrivals = self._store.confirm(flushed)
        self._visible = flushed
        self._waiters.settle(flushed)
        if arrivals:
            self._on_arrivals(arrivals)
