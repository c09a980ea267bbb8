"""A flusher's thread in virtual time: jobs one at a time, in order, each after a while.

A write that is followed by a sync is in the page cache for that while, as on a real disk: a power
cut takes it.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from aerobee_broker.store.flush import Flush

T = TypeVar("T")


class SimulatedWorker:
    """`stop`: a killed process; what had not begun never happens, and nobody hears of it."""

    def __init__(self, rng: random.Random, *, most_ms: float) -> None:
        self._rng = rng
        self._most_ms = most_ms
        self._jobs: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._busy = False
        self._stopped = False

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.append((function, future))
        self._begin()
        return future

    def stop(self) -> None:
        self._stopped = True

    def _begin(self) -> None:
        if not self._busy and self._jobs and not self._stopped:
            self._busy = True
            self._jobs[0] = _written_now(*self._jobs[0])
            duration_s = self._rng.uniform(0.05, self._most_ms) / 1000
            asyncio.get_running_loop().call_later(duration_s, self._end)

    def _end(self) -> None:
        if self._stopped:
            return
        function, future = self._jobs.popleft()
        try:
            result = function()
        except Exception as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(result)
        self._busy = False
        self._begin()


def _written_now(
    function: Callable[[], Any], future: asyncio.Future[Any]
) -> tuple[Callable[[], Any], asyncio.Future[Any]]:
    """Do the write of `write_and_sync`. Returns what is left of the job."""
    flush = getattr(function, "__self__", None)
    if not isinstance(flush, Flush) or function != flush.write_and_sync:
        return function, future
    try:
        flush.write_sealed()
    except Exception as error:
        failure = error

        def fail() -> None:
            raise failure

        return fail, future
    return flush.sync, future
