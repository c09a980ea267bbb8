"""Run background work: components with a task each, and tasks that outlive their RPC.

An exception in the work is a bug. It is logged, and ends neither the component nor the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

from aerobee_chassis.lifecycle import Component

RESTART_S = 1.0  # between a failure of a BackgroundTask's work and its next run
GRACE_S = 2.0  # time for running tasks of a Background when the service stops

Work = Callable[[], Awaitable[None]]


async def pause(seconds: float) -> None:
    """Sleep between two rounds of periodic work.

    A pause of a second or more ends at a whole second of the loop's time, up to half a second
    earlier or later. So all periodic work of a process shares its wake-ups.
    """
    now = asyncio.get_running_loop().time()
    await asyncio.sleep(round(now + seconds) - now if seconds >= 1 else seconds)


class BackgroundTask(Component):
    """Run `work` once, and restart it if it fails. Work that returns has ended."""

    def __init__(self, name: str, work: Work) -> None:
        self.name = name
        self._work = work
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start the task. Use this where no coroutine can be awaited."""
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            if await self._succeeds():
                return
            await asyncio.sleep(RESTART_S)

    async def _succeeds(self) -> bool:
        try:
            await self._work()
        except Exception:
            structlog.get_logger().exception("background_work_failed", work=self.name)
            return False
        return True


class PeriodicTask(BackgroundTask):
    """Run `work` with a `pause` of `interval_s` before each run.

    If a run fails, the next run is one interval later.
    """

    def __init__(self, name: str, interval_s: float, work: Work) -> None:
        super().__init__(name, work)
        self.rounds = 0  # finished rounds, failed ones included
        self._interval_s = interval_s

    async def _run(self) -> None:
        while True:
            await pause(self._interval_s)
            await self._succeeds()
            self.rounds += 1


async def until_one_ends(*works: Coroutine[Any, Any, None]) -> None:
    """Run coroutines concurrently until one ends, then cancel the others and wait for them.

    Raises the exception of the coroutine that ended first. If several end at once, raises one of
    their exceptions.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


class Background:
    """Run tasks that outlive the RPC that started them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._done)
        return task

    async def close(self) -> None:
        """Wait for running tasks, and cancel tasks that take longer than GRACE_S."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GRACE_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            structlog.get_logger().error("background_work_failed", exc_info=error)
