"""Wall clock and monotonic clock, as an argument that tests replace."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch. May jump."""

    def monotonic_ms(self) -> int:
        """Milliseconds since an unspecified start. Never goes back."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


def deadline_in(seconds: float) -> float:
    """A deadline as gRPC has it: by the wall clock, in seconds since the Unix epoch."""
    return time.time() + seconds


def seconds_until(deadline: float) -> float:
    """Seconds until a deadline of `deadline_in`; negative after it."""
    return deadline - time.time()
