"""Share the event loop between searches and all other calls.

A search is a sequence of short steps. Only one step of all searches runs at a time, and an equally
long pause follows it. So all searches together use at most half of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from aerobee_wire.status import Code, MqError

T = TypeVar("T")

MAX_SEARCHES = 64  # that run or wait at a time; each keeps up to a few MiB


class Pace:
    def __init__(self, max_searches: int = MAX_SEARCHES) -> None:
        self._max_searches = max_searches
        self._running = 0
        self._turn = asyncio.Lock()

    @contextmanager
    def search(self) -> Iterator[None]:
        """Count a search while it runs.

        Raises MqError with the code FLOW_CONTROL if too many searches run.
        """
        if self._running >= self._max_searches:
            raise MqError(
                Code.FLOW_CONTROL,
                f"{self._running} searches run at this broker: search again when one has ended",
                retryable=True,
                retry_after_ms=1_000,
            )
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    async def next(self, steps: Iterator[T]) -> T | None:
        """Run one step of a search, and pause for as long as it took. Return None at the end."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            began_s = loop.time()
            result = next(steps, None)
            await asyncio.sleep(loop.time() - began_s)
        return result
