"""Run the listener on threads, or in tasks on the event loop, at most `concurrency` at a time.

A runner accepts batches, and reports each batch with its verdicts on the event loop. Runners use
neither offsets nor brokers.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from aerobee_client.consuming.listener import Consume, Verdicts
from aerobee_client.consuming.process_queue import ProcessQueue
from aerobee_client.message import ReceivedMessage
from aerobee_client.observing.statistics import Tally
from aerobee_client.runtime.clock import Clock


@dataclass(slots=True, eq=False)
class Batch:
    """Messages of one queue that a runner passes to the listener."""

    process_queue: ProcessQueue
    messages: list[ReceivedMessage]
    # When the listener started, in ms of the monotonic clock; 0 if it has not. Set by the runner.
    started_ms: int = 0
    ended_ms: int = 0

    def call(self, consume: Consume) -> Verdicts:
        return consume.call(self.messages)

    async def call_async(self, consume: Consume) -> Verdicts:
        return await consume.call_async(self.messages)


# Called on the loop. The verdicts are None if the batch was skipped.
OnDone = Callable[[Batch, Verdicts | None], None]


class Runner(ABC):
    # Listeners run on threads if they are plain functions, otherwise in tasks.
    threads: list[threading.Thread]
    tasks: list[asyncio.Task[None]]

    def __init__(self, consume: Consume, concurrency: int, clock: Clock, on_done: OnDone) -> None:
        self.threads = []
        self.tasks = []
        self._consume = consume
        self._concurrency = concurrency
        self._clock = clock
        self.tally = Tally(clock)
        # Counts since the last call of `_count`.
        self._calls = self._elapsed_ms = self._messages = self._consumed = 0
        self._on_done = on_done
        self._closing = False  # if set, batches that have not started are skipped

    def start(self) -> None:
        """Start the runner. Runs on the loop."""
        self.set_concurrency(self._concurrency)

    @abstractmethod
    def set_concurrency(self, concurrency: int) -> None:
        """Change the maximum number of listeners. Surplus listeners end first. Runs on the loop."""

    @abstractmethod
    def submit(self, batch: Batch) -> None: ...

    def _finished(self, batch: Batch, verdicts: Verdicts | None) -> None:
        """Count a finished batch and report it. Runs on the loop."""
        if verdicts is not None:
            if not self._calls:  # counted together, once per iteration of the loop
                asyncio.get_running_loop().call_soon(self._count)
            self._calls += 1
            self._elapsed_ms += batch.ended_ms - batch.started_ms
            self._messages += len(verdicts)
            self._consumed += verdicts.count(None)
        self._on_done(batch, verdicts)

    def _count(self) -> None:
        failed = self._messages - self._consumed
        self.tally.add(self._consumed, failed, self._elapsed_ms, calls=self._calls)
        self._calls = self._elapsed_ms = self._messages = self._consumed = 0

    @abstractmethod
    async def close(self, timeout_s: float) -> bool:
        """Skip the batches that have not started, and wait for the running batches.

        Return False if some batches still run after `timeout_s`.
        """


class ThreadRunner(Runner):
    """Runs listeners that are plain functions, on threads.

    The threads are daemons, so that a listener that never returns does not keep the program alive.
    """

    def __init__(self, consume: Consume, concurrency: int, clock: Clock, on_done: OnDone) -> None:
        super().__init__(consume, concurrency, clock, on_done)
        self._batches: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._done: deque[tuple[Batch, Verdicts | None]] = deque()
        self._wake_pending = False
        self._open = 0
        self._lock = threading.Lock()  # protects `threads` and the concurrency
        self._idle = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def set_concurrency(self, concurrency: int) -> None:
        self._loop = asyncio.get_running_loop()
        with self._lock:
            self._concurrency = concurrency
            surplus = len(self.threads) - concurrency
            new = [
                threading.Thread(target=self._work, name=f"listener-{number}", daemon=True)
                for number in range(len(self.threads), concurrency)
            ]
            self.threads += new
        for thread in new:
            thread.start()
        for _ in range(surplus):
            self._batches.put(None)  # wakes a thread that waits

    def _is_surplus(self) -> bool:
        """Return whether this thread must end because the concurrency was reduced."""
        if len(self.threads) <= self._concurrency:
            return False
        with self._lock:
            if len(self.threads) <= self._concurrency:
                return False
            self.threads.remove(threading.current_thread())
            return True

    def submit(self, batch: Batch) -> None:
        self._open += 1
        self._idle.clear()
        self._batches.put(batch)

    async def close(self, timeout_s: float) -> bool:
        self._closing = True  # batches taken from now on are skipped
        for _ in list(self.threads):
            self._batches.put(None)
        if self._open:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._idle.wait()
            except TimeoutError:
                return False
        return True

    def _work(self) -> None:
        while not self._is_surplus():
            batch = self._batches.get()
            if batch is None:
                if self._closing:
                    return
                continue
            result = None
            if not (self._closing or batch.process_queue.is_off):
                batch.started_ms = self._clock.monotonic_ms()
                result = batch.call(self._consume)
                batch.ended_ms = self._clock.monotonic_ms()
            self._done.append((batch, result))
            if not self._wake_pending:
                self._wake_pending = True
                self._wake()

    def _wake(self) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._report)
        except RuntimeError:  # the loop has ended: close() did not wait for this listener
            return

    def _report(self) -> None:
        # Cleared first: a batch that a thread adds from here on is seen below, or wakes the loop.
        self._wake_pending = False
        while self._done:
            batch, result = self._done.popleft()
            self._open -= 1
            self._finished(batch, result)
        if not self._open:
            self._idle.set()


class TaskRunner(Runner):
    """Runs listeners that are coroutine functions, in tasks."""

    def __init__(self, consume: Consume, concurrency: int, clock: Clock, on_done: OnDone) -> None:
        super().__init__(consume, concurrency, clock, on_done)
        self._batches: asyncio.Queue[Batch | None] = asyncio.Queue()

    def set_concurrency(self, concurrency: int) -> None:
        self._concurrency = concurrency
        surplus = len(self.tasks) - concurrency
        for number in range(len(self.tasks), concurrency):
            self.tasks.append(asyncio.create_task(self._work(), name=f"listener {number}"))
        for _ in range(surplus):
            self._batches.put_nowait(None)  # wakes a task that waits

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
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _work(self) -> None:
        while len(self.tasks) <= self._concurrency:
            batches = self._batches
            batch = await batches.get() if batches.empty() else batches.get_nowait()
            if batch is not None:
                result = None
                if not (self._closing or batch.process_queue.is_off):
                    batch.started_ms = self._clock.monotonic_ms()
                    result = await batch.call_async(self._consume)
                    batch.ended_ms = self._clock.monotonic_ms()
                self._finished(batch, result)
            self._batches.task_done()
        self.tasks = [task for task in self.tasks if task is not asyncio.current_task()]
