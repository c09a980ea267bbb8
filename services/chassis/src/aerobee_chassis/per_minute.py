"""Limit how often something happens in each minute, for each of many keys."""

from __future__ import annotations

from collections import deque

from aerobee_chassis.clock import Clock

WINDOW_MS = 60_000
MAX_KEYS = 10_000  # then all other keys share one limit


class PerMinute:
    """Count events by key in the last minute."""

    def __init__(self, clock: Clock, limit: int) -> None:
        self.limit = limit
        self._clock = clock
        self._times: dict[str, deque[int]] = {}

    def count(self, key: str) -> int:
        """Count an event and return 0, or return the milliseconds until one more is allowed."""
        now_ms = self._clock.monotonic_ms()
        if key not in self._times and len(self._times) >= MAX_KEYS:
            self._forget(now_ms - WINDOW_MS)
            if len(self._times) >= MAX_KEYS:
                key = ""
        times = self._times.setdefault(key, deque())
        while times and times[0] <= now_ms - WINDOW_MS:
            times.popleft()
        if len(times) >= self.limit:
            return times[0] + WINDOW_MS - now_ms
        times.append(now_ms)
        return 0

    def _forget(self, before_ms: int) -> None:
        self._times = {key: times for key, times in self._times.items() if times[-1] > before_ms}
