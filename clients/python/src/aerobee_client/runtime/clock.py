"""Define the clock. All code in the client that needs the time gets it as an argument."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return the time of the wall clock in milliseconds since the epoch."""

    def monotonic_ms(self) -> int:
        """Return the time of a monotonic clock in milliseconds, for durations and deadlines."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
