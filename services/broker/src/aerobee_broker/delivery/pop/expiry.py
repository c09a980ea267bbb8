"""When leases end by themselves: a heap of deadlines, and one task that sleeps until the next.

Deadlines are of the clock that only goes forward: setting the time of day ends no lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from heapq import heapify, heappop, heappush
from itertools import count

import structlog

from aerobee_broker.delivery.pop.in_flight import Held, QueueLeases
from aerobee_broker.delivery.pop.lease_table import GroupLeases
from aerobee_chassis.clock import Clock

Due = tuple[GroupLeases, QueueLeases, Held]
AFTER_FAILURE_MS = 1_000
MAX_AT_ONCE = 1_024  # about; the loop serves others between two rounds
_SLACK = 1_024  # entries of which nothing is on lease, besides as many as there are others


class LeaseExpiry:
    """`ended` is told of leases whose time is over; what it fails with is logged, and tried again.

    It must expire or settle them, or `watch` them anew.
    """

    def __init__(self, clock: Clock, ended: Callable[[list[Due]], Awaitable[None]]) -> None:
        self._clock = clock
        self._ended = ended
        # Offsets, not messages: what is settled before its time is not kept until then.
        self._heap: list[tuple[int, int, GroupLeases, QueueLeases, Sequence[int]]] = []
        self._numbers = count()
        self._limit = _SLACK
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def watch(self, due: Due) -> None:
        """Anew after each change of the deadline."""
        place, queue, held = due
        self.watch_all(place, queue, (held.offset,), held.deadline_ms)

    def watch_all(
        self, place: GroupLeases, queue: QueueLeases, offsets: Sequence[int], deadline_ms: int
    ) -> None:
        """Messages with the same deadline. One that has another by now is not watched here."""
        if not self._heap or deadline_ms < self._heap[0][0]:
            self._news.set()
        heappush(self._heap, (deadline_ms, next(self._numbers), place, queue, offsets))
        if len(self._heap) > self._limit:
            self._drop_settled()

    def _drop_settled(self) -> None:
        """What was settled long before its time would stay until then: for up to 12 h."""
        self._heap = [
            one for one in self._heap if any(_watched(one[3], offset, one[0]) for offset in one[4])
        ]
        heapify(self._heap)
        self._limit = 2 * len(self._heap) + _SLACK

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="lease expiry")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            self._news.clear()
            due = self._due()
            if due:
                await self._end(due)
                await asyncio.sleep(0)
            else:
                await self._sleep()

    async def _sleep(self) -> None:
        if not self._heap:
            await self._news.wait()
            return
        seconds = max(0, self._heap[0][0] - self._clock.monotonic_ms()) / 1000
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    def _due(self) -> list[Due]:
        """Takes out what is due. What was settled, or has another deadline now, is left out."""
        now = self._clock.monotonic_ms()
        due: list[Due] = []
        seen: set[Held] = set()  # one may be watched twice
        while self._heap and self._heap[0][0] <= now and len(due) < MAX_AT_ONCE:
            deadline, _, place, queue, offsets = heappop(self._heap)
            for offset in offsets:
                held = _watched(queue, offset, deadline)
                if held is not None and held not in seen:
                    seen.add(held)
                    due.append((place, queue, held))
        return due

    async def _end(self, due: list[Due]) -> None:
        try:
            await self._ended(due)
        except Exception:
            structlog.get_logger().exception("leases_not_ended", leases=len(due))
            retry_at = self._clock.monotonic_ms() + AFTER_FAILURE_MS
            for one in due:
                if one[2].leased and one[1].open.get(one[2].offset) is one[2]:
                    one[2].deadline_ms = retry_at
                    self.watch(one)


def _watched(queue: QueueLeases, offset: int, deadline_ms: int) -> Held | None:
    held = queue.open.get(offset)
    return held if held and held.leased and held.deadline_ms == deadline_ms else None
