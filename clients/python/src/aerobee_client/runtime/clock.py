"""Define the clock, which all code of the client gets as an argument."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return the time of the wall clock, in milliseconds since the epoch."""

    def monotonic_ms(self) -> int:
        """Return the time of a clock for durations and deadlines, in milliseconds.

        The value never decreases, and its start is unspecified.
        """


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
