"""Runs blocking calls on a thread, so that the event loop can await them.

Do not use the thread for computations.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from aerobee_chassis.turns import deliver

T = TypeVar("T")
Job = tuple[Callable[[], Any], asyncio.Future[Any]]


class Worker(Protocol):
    """Runs a blocking function outside the event loop. Tests run it directly."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


class WorkerThread:
    """Runs functions one at a time, in the order in which they are submitted.

    Every flush uses such a thread. `run_in_executor` would take twice the processor time, 60 µs,
    because it uses two futures with locks.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]:
        """Run the function on the thread, and return a future of its result.

        Raises RuntimeError after `close`.
        """
        if self._closed:
            raise RuntimeError(f"the thread {self._thread.name} is closed")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((function, future))
        return future

    def close(self) -> None:
        """Wait until all submitted functions have run, and end the thread."""
        self._closed = True
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, future = job
            outcome: Callable[[], None]
            try:
                outcome = partial(_set_result, future, function())
            except BaseException as error:
                outcome = partial(_set_exception, future, error)
            # The loop may be closed; then no task awaits the result.
            with contextlib.suppress(RuntimeError):
                deliver(future.get_loop(), outcome)
            del job, function, future, outcome  # frees their memory while the thread is idle


def _set_result(future: asyncio.Future[T], result: T) -> None:
    if not future.done():  # the awaiting task may have been cancelled
        future.set_result(result)


def _set_exception(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
