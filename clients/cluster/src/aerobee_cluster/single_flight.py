"""Share calls to other servers among concurrent callers: at most one call per key is in flight.

Cancelling one caller does not cancel the call for the other callers. A caller that has a stale
value waits at most STALE_WAIT_S.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

STALE_WAIT_S = 0.3  # since the start of the call, for callers that have a stale value
RETRY_AFTER_MS = 1_000  # how long callers get a stale value after a failed call

T = TypeVar("T")


class Clock(Protocol):
    def monotonic_ms(self) -> int:
        """Return the milliseconds since an unspecified start. The value never decreases."""


class _Flight(NamedTuple, Generic[T]):
    task: asyncio.Task[T]
    started_ms: int  # monotonic


class SingleFlight(Generic[T]):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._flights: dict[str, _Flight[T]] = {}

    def __len__(self) -> int:
        """Return the number of calls in flight."""
        return len(self._flights)

    async def do(
        self, key: str, call: Callable[[], Coroutine[Any, Any, T]], *, has_stale: bool = False
    ) -> T:
        """Return the result of the call for this key. Start the call if none is in flight.

        Args:
            key: The key; concurrent callers with the same key share one call.
            call: Starts the call.
            has_stale: Whether the caller has a stale value, which it uses after a timeout.

        Raises:
            TimeoutError: If `has_stale` is true and the call takes longer than STALE_WAIT_S.
            Exception: The exception of the call.
        """
        flight = self._flights.get(key)
        if flight is None:
            task = asyncio.create_task(call())
            flight = self._flights[key] = _Flight(task, self._clock.monotonic_ms())
            task.add_done_callback(lambda done: self._landed(key, done))
        if has_stale:
            waited_s = (self._clock.monotonic_ms() - flight.started_ms) / 1_000
            await asyncio.wait([flight.task], timeout=max(0.0, STALE_WAIT_S - waited_s))
            if not flight.task.done():
                raise TimeoutError
        return await asyncio.shield(flight.task)

    async def close(self) -> None:
        """Cancel the calls in flight, and wait until they have ended."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _landed(self, key: str, task: asyncio.Task[T]) -> None:
        del self._flights[key]
        if not task.cancelled():
            task.exception()  # mark it as retrieved, because every caller may be cancelled
