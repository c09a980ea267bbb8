"""The schedule of check-backs for open transactions. No store, no loop.

The first check is due transactionTimeOut after the half message was stored, or after its own
immunity time. Times are those of the monotonic clock; a half message is named by its queue offset.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from aerobee_broker.delivery.transaction.half_messages import HalfMessage
from aerobee_chassis.clock import Clock

SLACK = 4_096  # entries of ended transactions that may stay, in addition to one for each open one


class CheckSchedule:
    """Check times by half message. `timeout_ms`: transactionTimeOut."""

    def __init__(self, clock: Clock, *, timeout_ms: int) -> None:
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._due: list[tuple[int, int]] = []  # heap of (time, name), some outdated
        self._times: dict[int, tuple[int, str]] = {}  # name → the valid time, producer group
        self._without_producer: dict[str, set[int]] = {}  # producer group → names

    def opened(self, half: HalfMessage) -> None:
        """Schedule the first check of an open transaction."""
        first_ms = self._timeout_ms if half.immunity_ms is None else half.immunity_ms
        self.put(half, first_ms - self.age_ms(half))

    def put(self, half: HalfMessage, in_ms: int) -> None:
        """Set the time of the next check, now at the earliest; replaces the previous time."""
        self._put(half.name, half.producer_group, in_ms)

    def put_without_producer(self, half: HalfMessage, in_ms: int) -> None:
        """Schedule like `put`, but at once when a producer of the group connects."""
        self._without_producer.setdefault(half.producer_group, set()).add(half.name)
        self.put(half, in_ms)

    def age_ms(self, half: HalfMessage) -> int:
        """Return the milliseconds since it was stored; 0 if the clock was set back."""
        return max(0, self._clock.now_ms() - half.stored_ms)

    def _put(self, name: int, group: str, in_ms: int) -> None:
        at = self._clock.monotonic_ms() + max(0, in_ms)
        self._times[name] = at, group
        heapq.heappush(self._due, (at, name))

    @property
    def groups_without_producer(self) -> frozenset[str]:
        return frozenset(self._without_producer)

    def producers_connected(self, groups: Iterable[str]) -> None:
        for group in groups:
            for name in self._without_producer.pop(group, ()):
                self._put(name, group, 0)

    def has_due(self, now_ms: int) -> bool:
        return bool(self._due) and self._due[0][0] <= now_ms

    def due_in_ms(self) -> float | None:
        """Return the time until the next check, whose transaction may have ended."""
        return self._due[0][0] - self._clock.monotonic_ms() if self._due else None

    def take_due(self, now_ms: int, limit: int) -> list[int]:
        """Remove and return the due names; processes up to `limit` entries."""
        names = []
        for _ in range(limit):
            if not self.has_due(now_ms):
                break
            at, name = heapq.heappop(self._due)
            known, group = self._times.get(name, (0, ""))
            if known == at:
                del self._times[name]
                if group in self._without_producer:
                    self._without_producer[group].discard(name)
                names.append(name)
        return names

    # ---- memory ----

    def is_crowded(self, open_count: int) -> bool:
        """Return whether most entries are of ended transactions, whose times may be days ahead."""
        return len(self._due) > 2 * open_count + SLACK

    def keep_only(self, open_names: Iterable[int]) -> None:
        """Forget the transactions that have ended."""
        kept = self._times.keys() & set(open_names)
        self._times = {name: self._times[name] for name in kept}
        self._due = [(at, name) for name, (at, _) in self._times.items()]
        heapq.heapify(self._due)
        waiting = {group: names & kept for group, names in self._without_producer.items()}
        self._without_producer = {group: names for group, names in waiting.items() if names}

    @property
    def groups(self) -> set[str]:
        """Return the producer groups of the scheduled transactions."""
        return {group for _, group in self._times.values()}
