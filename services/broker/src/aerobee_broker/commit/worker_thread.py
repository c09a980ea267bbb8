"""Where blocking work goes: a thread of its own, awaited on the loop. Not for computing."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Job = tuple[Callable[[], Any], asyncio.Future[Any]]


class OffLoop(Protocol):
    """Runs a blocking function elsewhere. Tests run it on the spot."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


class Thread:
    """One thread: what is given to it runs in that order, one at a time.

    Every flush passes here. `run_in_executor` takes twice the processor time, 60 µs: it has a
    future on either side of the thread, and locks around both.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]:
        """Raises RuntimeError when it is closed."""
        if self._closed:
            raise RuntimeError(f"the thread {self._thread.name} is closed: nothing runs on it")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((function, future))
        return future

    def close(self) -> None:
        """Waits for what was given to it."""
        self._closed = True
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, future = job
            settle: tuple[Any, ...]
            try:
                settle = _set_result, future, function()
            except BaseException as error:
                settle = _set_exception, future, error
            # The loop may be closed: then nobody waits for the result.
            with contextlib.suppress(RuntimeError):
                future.get_loop().call_soon_threadsafe(*settle)
            del job, function, future, settle  # not kept while the thread has nothing to do


def _set_result(future: asyncio.Future[T], result: T) -> None:
    if not future.done():  # whoever waited may have been cancelled
        future.set_result(result)


def _set_exception(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
