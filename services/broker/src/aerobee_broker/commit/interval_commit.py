"""Flushes asynchronously: acknowledges written messages, and flushes by time and by amount.

A message that is not flushed is not visible, so a power cut loses only messages that no consumer
has seen. If a consumer waits in a long poll, the flush is therefore due at the next interval, even
for few bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import structlog

from aerobee_broker.commit.commit import ALONE, Commit, OnArrivals, Replicas
from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.store.message_store import MessageStore
from aerobee_wire.status import MqError

PAGE_BYTES = 4_096


class FlushTiming(NamedTuple):
    """The timing of flushes.

    The commit checks every `interval_ms` whether a flush is due. It is due if at least
    `least_pages` are written, or if the last flush was `thorough_interval_ms` ago.
    """

    interval_ms: int
    least_pages: int
    thorough_interval_ms: int


class IntervalCommit(Commit):
    """Flushes by time and by amount, as `timing` says.

    A flush is also due if `is_awaited` returns True, because a reader waits for messages.
    """

    def __init__(
        self,
        store: MessageStore,
        flusher: Worker,
        on_arrivals: OnArrivals,
        timeout_ms: int,
        *,
        is_awaited: Callable[[], bool],
        timing: FlushTiming,
        replicas: Replicas = ALONE,
    ) -> None:
        super().__init__(store, flusher, on_arrivals, timeout_ms, replicas=replicas)
        self._is_awaited = is_awaited
        self._interval_s = timing.interval_ms / 1000
        self._least_bytes = timing.least_pages * PAGE_BYTES
        self._thorough_s = timing.thorough_interval_ms / 1000
        self._written = store.flushed_offset
        self._flushed_at = 0.0
        self._scheduled_write: asyncio.Handle | None = None
        self._draining = False

    @property
    def _own(self) -> int:
        return self._written

    def schedule(self) -> None:
        if self._scheduled_write is None:
            self._scheduled_write = asyncio.get_running_loop().call_soon(self._write)

    async def drain(self) -> None:
        if self._scheduled_write is not None:
            self._scheduled_write.cancel()
        self._write()
        self._draining = True
        await super().drain()

    def _write(self) -> None:
        self._scheduled_write = None
        try:
            self._written = self._store.flush.write()
        except MqError as error:
            structlog.get_logger().error("write_failed", reason=error.message)
            # The bytes of earlier writes stay in the log, and are flushed as before.
            self._fail(error, above=self._written)
            return
        self._replicas.written(self._written)
        self.advance()
        if self._task is None and self._written > self._on_disk:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="interval commit")

    async def _run(self) -> None:
        """Flush until all written data is on the disk."""
        try:
            while self._written > self._on_disk:
                if not self._draining:
                    await asyncio.sleep(self._interval_s)
                if self._draining or self._is_due():
                    await self._flush()
        except MqError as error:
            structlog.get_logger().error("flush_failed", reason=error.message)
            self._fail(error, above=self._on_disk)
        finally:
            self._task = None

    def _is_due(self) -> bool:
        behind = self._written - self._on_disk
        since = asyncio.get_running_loop().time() - self._flushed_at
        awaited = len(self._flushed_waiters) > 0 or self._is_awaited()
        return behind >= self._least_bytes or since >= self._thorough_s or awaited

    async def _flush(self) -> None:
        self._on_disk = await self._flusher(self._store.flush.sync)
        self._flushed_at = asyncio.get_running_loop().time()
        self.advance()
