"""Where listeners run: on threads, or as tasks on the loop; at most `concurrency` at a time.

A runner is given batches and hands each back with its verdicts, on the loop. It knows neither
offsets nor brokers.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from aerobee_client.clock import Clock
from aerobee_client.consuming.listener import Consume, Verdicts
from aerobee_client.consuming.process_queue import ProcessQueue
from aerobee_client.message import ReceivedMessage


@dataclass(slots=True, eq=False)
class Batch:
    """What one call of the listener gets, all of one queue."""

    process_queue: ProcessQueue
    messages: list[ReceivedMessage]
    # When the listener began, of the monotonic clock; 0: it has not. Set where the listener runs.
    started_ms: int = 0


# Called on the loop; None when the batch was skipped.
OnDone = Callable[[Batch, Verdicts | None], None]


class Runner(Protocol):
    @property
    def threads(self) -> list[threading.Thread]:
        """Those that listeners run on; none for coroutines."""

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Those that listeners run in; none for functions."""

    def start(self) -> None: ...
    def submit(self, batch: Batch) -> None: ...

    async def close(self, timeout_s: float) -> bool:
        """Skips what has not begun and waits for what runs. False: some still ran at the end."""


class ThreadRunner:
    """For plain functions. A listener that never returns keeps its thread; the threads are daemons,
    so the program can still end."""

    def __init__(self, consume: Consume, concurrency: int, clock: Clock, on_done: OnDone) -> None:
        self._consume = consume
        self._concurrency = concurrency
        self._clock = clock
        self._on_done = on_done
        self._batches: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._done: deque[tuple[Batch, Verdicts | None]] = deque()
        self._wake_pending = False
        self._open = 0
        self._idle = asyncio.Event()
        self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: list[threading.Thread] = []

    @property
    def threads(self) -> list[threading.Thread]:
        return self._threads

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return []

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        for number in range(self._concurrency):
            thread = threading.Thread(target=self._work, name=f"listener-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def submit(self, batch: Batch) -> None:
        self._open += 1
        self._idle.clear()
        self._batches.put(batch)

    async def close(self, timeout_s: float) -> bool:
        self._closing = True  # every batch that is taken from now on is skipped
        for _ in self._threads:
            self._batches.put(None)
        if self._open:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._idle.wait()
            except TimeoutError:
                return False
        return True

    def _work(self) -> None:
        while (batch := self._batches.get()) is not None:
            result = None
            if not (self._closing or batch.process_queue.dropped):
                batch.started_ms = self._clock.monotonic_ms()
                result = self._consume.call(batch.messages)
            self._done.append((batch, result))
            if not self._wake_pending:
                self._wake_pending = True
                self._wake()

    def _wake(self) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._report)
        except RuntimeError:  # the loop has ended: close() gave this listener up
            return

    def _report(self) -> None:
        # Cleared first: what a thread adds from here on is seen below or wakes the loop again.
        self._wake_pending = False
        while self._done:
            batch, result = self._done.popleft()
            self._open -= 1
            self._on_done(batch, result)
        if not self._open:
            self._idle.set()


class TaskRunner:
    """For coroutine functions."""

    def __init__(self, consume: Consume, concurrency: int, clock: Clock, on_done: OnDone) -> None:
        self._consume = consume
        self._concurrency = concurrency
        self._clock = clock
        self._on_done = on_done
        self._batches: asyncio.Queue[Batch] = asyncio.Queue()
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def threads(self) -> list[threading.Thread]:
        return []

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return self._tasks

    def start(self) -> None:
        for number in range(self._concurrency):
            self._tasks.append(asyncio.create_task(self._work(), name=f"listener {number}"))

    def submit(self, batch: Batch) -> None:
        self._batches.put_nowait(batch)

    async def close(self, timeout_s: float) -> bool:
        self._closing = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._batches.join()
            return True
        except TimeoutError:
            return False
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            batch = await self._batches.get()
            result = None
            if not (self._closing or batch.process_queue.dropped):
                batch.started_ms = self._clock.monotonic_ms()
                result = await self._consume.call_async(batch.messages)
            self._on_done(batch, result)
            self._batches.task_done()
