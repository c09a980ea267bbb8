"""Expiry of invisible durations: a heap of deadlines, and a task that sleeps until the next one.

Deadlines are monotonic: setting the time of day does not end a lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple, Protocol

import structlog

from aerobee_broker.delivery.pop.in_flight import InFlightMessage, InFlightQueue
from aerobee_broker.delivery.pop.lease_table import LeasedMessage, LeaseTable
from aerobee_broker.delivery.retry import policy
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_chassis.clock import Clock

RETRY_AFTER_MS = 1_000
MAX_AT_ONCE = 1_024  # approximately; the event loop runs other tasks between two rounds
_SLACK = 1_024  # entries without leased messages, in addition to the number of the others


class Wakes(Protocol):
    """Notified when messages may be leased: the long polls, or their replacement."""

    def wake_pop(self, consumer_group: str, topic: str, queue_id: int | None = None) -> None:
        """Wake a pop: a message of this queue (None: of any) became visible again."""

    def wake_pops(self, topic: str) -> None:
        """Wake all pops: offsets in the topic were reset, or it was deleted."""


class _Deadline(NamedTuple):
    """Messages of one queue with the same deadline.

    Holds only their offsets, so that a message settled earlier can be freed.
    """

    deadline_ms: int
    number: int  # unique, so that comparing two entries ends here
    queue: InFlightQueue
    offsets: Sequence[int]

    def leased(self, offset: int) -> InFlightMessage | None:
        """Return the message if it is on lease and still has this deadline."""
        message = self.queue.in_flight.get(offset)
        if message and message.is_leased and message.deadline_ms == self.deadline_ms:
            return message
        return None


class LeaseDeadlines:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[_Deadline] = []
        self._numbers = count()
        self._limit = _SLACK
        self._earlier = asyncio.Event()  # set when a new deadline is the earliest

    def __len__(self) -> int:
        return len(self._heap)

    def watch(self, leased: LeasedMessage) -> None:
        """Watch a message; call after each change of its deadline."""
        queue, message = leased
        self.watch_all(queue, (message.offset,), message.deadline_ms)

    def watch_all(self, queue: InFlightQueue, offsets: Sequence[int], deadline_ms: int) -> None:
        """Watch messages with the same deadline, and ignore those whose deadline changes later."""
        if not self._heap or deadline_ms < self._heap[0].deadline_ms:
            self._earlier.set()
        heappush(self._heap, _Deadline(deadline_ms, next(self._numbers), queue, offsets))
        if len(self._heap) > self._limit:
            self._drop_settled()

    def _drop_settled(self) -> None:
        """Drop the entries of settled messages, which would stay for up to 12 h."""
        self._heap = [entry for entry in self._heap if any(map(entry.leased, entry.offsets))]
        heapify(self._heap)
        self._limit = 2 * len(self._heap) + _SLACK

    def due_in_ms(self) -> float | None:
        """Return the time until the first deadline, whose message may be settled already."""
        if not self._heap:
            return None
        return self._heap[0].deadline_ms - self._clock.monotonic_ms()

    def take_expired(self) -> list[LeasedMessage]:
        """Return the messages whose deadline has passed, except settled or changed ones."""
        self._earlier.clear()
        now_ms = self._clock.monotonic_ms()
        expired: list[LeasedMessage] = []
        seen: set[InFlightMessage] = set()  # a message may be watched twice
        while self._heap and self._heap[0].deadline_ms <= now_ms and len(expired) < MAX_AT_ONCE:
            entry = heappop(self._heap)
            for offset in entry.offsets:
                message = entry.leased(offset)
                if message is not None and message not in seen:
                    seen.add(message)
                    expired.append(LeasedMessage(entry.queue, message))
        return expired

    async def wait(self) -> None:
        """Wait until the next deadline, or until an earlier one is added."""
        if not self._heap:
            await self._earlier.wait()
            return
        seconds = max(0, self._heap[0].deadline_ms - self._clock.monotonic_ms()) / 1000
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._earlier.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseExpiry:
    """Makes expired messages visible again.

    Messages without attempts left are passed to `attempts_used_up`. If that raises, the error is
    logged, and the messages still on lease expire again after RETRY_AFTER_MS.
    """

    deadlines: LeaseDeadlines
    table: LeaseTable
    groups: GroupRegistry
    polls: Wakes
    clock: Clock
    attempts_used_up: Callable[[Sequence[LeasedMessage]], Awaitable[None]]

    async def run(self) -> None:
        """Expire leases until cancelled."""
        while True:
            expired = self.deadlines.take_expired()
            if not expired:
                await self.deadlines.wait()
                continue
            try:
                await self._expire(expired)
            except Exception:
                structlog.get_logger().exception("lease_expiry_failed", leases=len(expired))
                self._retry_later(expired)
            await asyncio.sleep(0)

    async def _expire(self, expired: Sequence[LeasedMessage]) -> None:
        dying = []
        for leased in expired:
            if self._is_dying(leased):
                dying.append(leased)
                continue
            leased.queue.expire(leased.message)
            self.table.touch()
            self.polls.wake_pop(*leased.queue.key)
        if dying:
            await self.attempts_used_up(dying)

    def _is_dying(self, leased: LeasedMessage) -> bool:
        queue, message = leased
        group = self.groups.table.get(queue.consumer_group)
        if group is None or message.uncounted:
            return False
        return policy.is_last_attempt(message.attempt, group)

    def _retry_later(self, expired: Sequence[LeasedMessage]) -> None:
        deadline_ms = self.clock.monotonic_ms() + RETRY_AFTER_MS
        for leased in expired:
            if leased.message.is_leased:
                leased.message.deadline_ms = deadline_ms
                self.deadlines.watch(leased)
