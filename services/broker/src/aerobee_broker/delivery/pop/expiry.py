"""Ends leases when their invisible duration is over.

A task sleeps until the earliest deadline in a heap. Deadlines are monotonic times, so changing the
clock of the machine does not end a lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, Protocol

import structlog

from aerobee_broker.delivery.pop.in_flight import InFlightMessage, InFlightQueue
from aerobee_broker.delivery.pop.lease_table import LeasedMessage, LeaseTable
from aerobee_broker.delivery.retry import policy
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_chassis.clock import Clock

if TYPE_CHECKING:
    from aerobee_broker.traces import BrokerTraces

RETRY_AFTER_MS = 1_000
# The approximate number of leases that end before the event loop runs other tasks.
MAX_AT_ONCE = 1_024
_SLACK = 1_024  # the heap may have this number of entries without leased messages


class Wakes(Protocol):
    """Wakes waiting receives when messages can be leased.

    Implementations are LongPolls, and LiteDispatch for lite topics.
    """

    def wake_pop(self, consumer_group: str, topic: str, queue_id: int | None = None) -> None:
        """Wake a pop, because a message of a queue became visible again.

        If `queue_id` is None, the message may be in any queue.
        """

    def wake_pops(self, topic: str) -> None:
        """Wake all pops of a topic, because offsets were reset or the topic was deleted."""


class _Deadline(NamedTuple):
    """The deadline of leases of one queue.

    Contains the queue offsets and not the messages, so that the memory of a settled message can be
    freed earlier.
    """

    deadline_ms: int
    number: int  # unique, so that comparing two entries ends here
    queue: InFlightQueue
    offsets: Sequence[int]

    def leased(self, offset: int) -> InFlightMessage | None:
        """Return the message at an offset if it is on lease and still has this deadline."""
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
        """Add the deadline of a leased message. Call this after each change of its deadline."""
        queue, message = leased
        self.watch_all(queue, (message.offset,), message.deadline_ms)

    def watch_all(self, queue: InFlightQueue, offsets: Sequence[int], deadline_ms: int) -> None:
        """Add the common deadline of leased messages of one queue.

        If the deadline of a message changes later, this deadline does not apply to it any more.
        """
        if not self._heap or deadline_ms < self._heap[0].deadline_ms:
            self._earlier.set()
        heappush(self._heap, _Deadline(deadline_ms, next(self._numbers), queue, offsets))
        if len(self._heap) > self._limit:
            self._drop_settled()

    def _drop_settled(self) -> None:
        """Remove entries whose messages are all settled, because they could stay for up to 12 h."""
        self._heap = [entry for entry in self._heap if any(map(entry.leased, entry.offsets))]
        heapify(self._heap)
        self._limit = 2 * len(self._heap) + _SLACK

    def due_in_ms(self) -> float | None:
        """Return the milliseconds until the earliest deadline, or None if there is none.

        The messages of that deadline may be settled already.
        """
        if not self._heap:
            return None
        return self._heap[0].deadline_ms - self._clock.monotonic_ms()

    def overdue(self) -> tuple[int, int]:
        """Return how many leases should have ended, and for how many ms the first one should.

        Only the next MAX_AT_ONCE deadlines are looked at.
        """
        now_ms = self._clock.monotonic_ms()
        if not self._heap or self._heap[0].deadline_ms > now_ms:
            return 0, 0
        due = [entry for entry in self._heap[:MAX_AT_ONCE] if entry.deadline_ms <= now_ms]
        leases = sum(sum(map(bool, map(entry.leased, entry.offsets))) for entry in due)
        return leases, now_ms - self._heap[0].deadline_ms if leases else 0

    def take_expired(self) -> list[LeasedMessage]:
        """Remove the deadlines that have passed, and return their messages.

        Messages that are settled or have a later deadline are left out.
        """
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
    """Makes messages visible again when their leases expire.

    Messages whose last attempt has failed are passed to `attempts_used_up`. If that raises an
    error, it is logged, and the messages still on lease are handled again after RETRY_AFTER_MS.
    """

    deadlines: LeaseDeadlines
    table: LeaseTable
    groups: GroupRegistry
    polls: Wakes
    clock: Clock
    metrics: BrokerMetrics
    attempts_used_up: Callable[[Sequence[LeasedMessage]], Awaitable[None]]
    traces: BrokerTraces | None = None

    async def run(self) -> None:
        """End expired leases, until this task is cancelled."""
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
            self.metrics.lease_expired(leased.queue.consumer_group, leased.queue.topic)
            if self.traces is not None:
                self.traces.lease_ended(leased.queue.key, leased.message.offset)
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
