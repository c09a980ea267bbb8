"""Run a coroutine on an event loop for a thread that waits for its result.

An interrupt, such as Ctrl-C, may end the wait at any moment: before the coroutine begins, while it
runs, or when it has its result. The loop then cancels the coroutine. A result that the thread did
not get is passed to `lost`, so that no result disappears.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

R = TypeVar("R")


class ThreadCall(Generic[R]):
    """The call. The thread calls `wait`, and the loop calls everything else."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, R], lost: Callable[[R], None] | None = None
    ) -> None:
        self._coroutine = coroutine
        self._lost = lost
        self._task: asyncio.Task[R] | None = None
        self._abandoned = False
        self.is_over = False
        # A plain lock: an interrupted `Future.result` waits for a condition and may raise
        # RuntimeError in place of the KeyboardInterrupt.
        self._waiting = threading.Lock()
        self._waiting.acquire()

    @property
    def has_failed(self) -> bool:
        """True if the coroutine has ended without a result."""
        return self.is_over and self._task is not None and not _has_result(self._task)

    def start(self) -> None:
        if not self._abandoned:
            self._task = asyncio.get_running_loop().create_task(self._coroutine)
            self._task.add_done_callback(self._done)

    def abandon(self) -> None:
        """Cancel the coroutine, because the thread no longer waits.

        May be called twice, and before `start`.
        """
        if self._abandoned:
            return
        self._abandoned = True
        if self._task is None:
            self._coroutine.close()
        elif self.is_over:
            self._pass_on()
        else:
            self._task.cancel()

    def wait(self) -> R:
        """Return the result, or raise the coroutine's error."""
        self._waiting.acquire()
        assert self._task is not None
        try:
            return self._task.result()
        except BaseException:
            del self  # the traceback would keep it, and it keeps the exception
            raise

    def _done(self, _: asyncio.Task[R]) -> None:
        self.is_over = True
        if self._abandoned:
            self._pass_on()
        self._waiting.release()

    def _pass_on(self) -> None:
        if self._lost is not None and self._task is not None and _has_result(self._task):
            self._lost(self._task.result())


def _has_result(task: asyncio.Task[Any]) -> bool:
    return not task.cancelled() and task.exception() is None
