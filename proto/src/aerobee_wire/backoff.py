"""Compute the pauses of an exponential backoff. This module uses no clock and no I/O."""

from __future__ import annotations


class Backoff:
    """Returns pauses between retries, in seconds: `first_s`, then twice that, … up to `limit_s`.

    `next_s()` returns the next pause. Call `reset()` after a success.
    """

    def __init__(self, first_s: float, limit_s: float) -> None:
        self._first_s = first_s
        self._limit_s = limit_s
        self._wait_s = first_s

    def next_s(self) -> float:
        wait_s, self._wait_s = self._wait_s, min(self._wait_s * 2, self._limit_s)
        return wait_s

    def reset(self) -> None:
        self._wait_s = self._first_s
