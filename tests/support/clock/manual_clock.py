"""A clock that stands until it is told to move. For everything that takes a chassis `Clock`."""

from __future__ import annotations


class ManualClock:
    def __init__(self, now_ms: int = 1_700_000_000_000, monotonic_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    @property
    def real(self) -> ManualClock:
        return self

    def advance(self, milliseconds: int) -> None:
        """Time passes."""
        self._now_ms += milliseconds
        self._monotonic_ms += milliseconds

    def jump(self, milliseconds: int) -> None:
        """Somebody sets the time of day; no time passes."""
        self._now_ms += milliseconds
