"""Limit the rate of sends. Pure."""

from __future__ import annotations


class Pace:
    """Spaces events so that there are at most `rate` per second."""

    def __init__(self, rate: float | None, now_s: float) -> None:
        self._interval_s = 1 / rate if rate else 0.0
        self._due_s = now_s

    def next_wait(self, now_s: float) -> float:
        """Return the seconds to wait before the next event."""
        due_s = max(self._due_s, now_s)
        self._due_s = due_s + self._interval_s
        return due_s - now_s
