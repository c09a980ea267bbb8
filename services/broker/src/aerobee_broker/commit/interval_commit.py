"""Asynchronous flush: acknowledged once written, flushed to the disk by time and by amount.

What is not flushed yet is not visible either: a power cut then takes back messages that nobody saw.
So a consumer that waits in a long poll makes the next interval flush, however little there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from aerobee_broker.commit.commit import CommitWaiters, OnArrivals, fail_all
from aerobee_broker.commit.worker_thread import OffLoop
from aerobee_broker.store.message_store import MessageStore
from aerobee_wire.status import MqError

PAGE_BYTES = 4_096


class TimedCommit:
    """`wanted`: whether somebody waits for messages to become visible."""

    def __init__(
        self,
        store: MessageStore,
        flusher: OffLoop,
        *,
        on_arrivals: OnArrivals,
        wanted: Callable[[], bool],
        timeout_ms: int,
        interval_ms: int,
        least_pages: int,
        thorough_interval_ms: int,
    ) -> None:
        self._store = store
        self._flusher = flusher
        self._on_arrivals = on_arrivals
        self._wanted = wanted
        self._waiters = CommitWaiters(timeout_ms)  # for the write
        self._flush_waiters = CommitWaiters(timeout_ms)
        self._interval_s = interval_ms / 1000
        self._least_bytes = least_pages * PAGE_BYTES
        self._thorough_s = thorough_interval_ms / 1000
        self._written = store.flushed_offset
        self._visible = store.flushed_offset  # and shown, since the store is open
        self._flushed_at = 0.0
        self._turn: asyncio.Handle | None = None
        self._task: asyncio.Task[None] | None = None
        self._draining = False

    async def durable(self, end_offset: int) -> None:
        if end_offset > self._written:
            future = self._waiters.add(end_offset)
            self.begin()
            await future

    async def flushed(self, end_offset: int) -> None:
        if end_offset > self._visible:
            await self.flushing(end_offset)

    def flushing(self, end_offset: int) -> asyncio.Future[None]:
        if end_offset <= self._visible:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        future = self._flush_waiters.add(end_offset)
        self.begin()
        return future

    def begin(self) -> None:
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._write)

    async def drain(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
        self._write()
        self._draining = True
        while self._task is not None:
            await asyncio.wait([self._task])

    def _write(self) -> None:
        self._turn = None
        try:
            self._written = self._store.write()
        except MqError as error:
            structlog.get_logger().error("write_failed", reason=error.message)
            # What earlier writes took stands in the log, and is to be flushed as before.
            waiters = (self._waiters, self._flush_waiters)
            fail_all(self._store, error, *waiters, above=self._written)
            return
        self._waiters.settle(self._written)
        if self._task is None and self._written > self._visible:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="timed commit")

    async def _run(self) -> None:
        """Lives while something is written and not flushed."""
        try:
            while self._written > self._visible:
                if not self._draining:
                    await asyncio.sleep(self._interval_s)
                if self._draining or self._due():
                    await self._flush()
        except MqError as error:
            structlog.get_logger().error("flush_failed", reason=error.message)
            fail_all(self._store, error, self._waiters, self._flush_waiters)
        finally:
            self._task = None

    def _due(self) -> bool:
        behind = self._written - self._visible
        since = asyncio.get_running_loop().time() - self._flushed_at
        wanted = bool(self._flush_waiters) or self._wanted()
        return behind >= self._least_bytes or since >= self._thorough_s or wanted

    async def _flush(self) -> None:
        flushed = await self._flusher(self._store.sync)
        self._flushed_at = asyncio.get_running_loop().time()
        arrivals = self._store.confirm(flushed)
        self._visible = flushed
        self._flush_waiters.settle(flushed)
        if arrivals:
            self._on_arrivals(arrivals)
