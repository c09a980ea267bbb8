"""Run blocking calls on a thread, awaited on the loop. Do not use it for computation."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Job = tuple[Callable[[], Any], asyncio.Future[Any]]


class Worker(Protocol):
    """Run a blocking function off the loop. Tests run it in place."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


class WorkerThread:
    """Run functions one at a time, in the order in which they are submitted.

    Every flush uses it. `run_in_executor` takes twice the processor time, 60 µs: it has a future on
    either side of the thread, and locks around both.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]:
        """Run the function on the thread. Raises RuntimeError after `close`."""
        if self._closed:
            raise RuntimeError(f"the thread {self._thread.name} is closed")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((function, future))
        return future

    def close(self) -> None:
        """Wait until everything that was submitted has run."""
        self._closed = True
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, future = job
            outcome: tuple[Any, ...]
            try:
                outcome = _set_result, future, function()
            except BaseException as error:
                outcome = _set_exception, future, error
            # The loop may be closed; then no task awaits the result.
            with contextlib.suppress(RuntimeError):
                future.get_loop().call_soon_threadsafe(*outcome)
            del job, function, future, outcome  # not kept in memory while the thread is idle


def _set_result(future: asyncio.Future[T], result: T) -> None:
    if not future.done():  # the awaiting task may have been cancelled
        future.set_result(result)


def _set_exception(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
