"""Back off exponentially: waits that double with each failure. Pure."""

from __future__ import annotations


class Backoff:
    """A series of waits in seconds. `next_s()` returns `first_s`, twice that, … up to `limit_s`.

    Call `reset()` after a success.
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
