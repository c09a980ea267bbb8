"""Wall clock and monotonic clock, as an argument that tests replace.

A test may advance the time of a whole process (`aerobee_suite`): its clocks and its loop. However,
the liveness of peers is always judged in real time: by `Clock.real`, and in tasks that are started
inside `real_time`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch. May jump."""

    def monotonic_ms(self) -> int:
        """Return milliseconds since an unspecified start. Never goes back."""

    @property
    def real(self) -> Clock:
        """Return the clock for the liveness of peers, which tests do not advance."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    @property
    def real(self) -> Clock:
        return self


IN_REAL_TIME: ContextVar[bool] = ContextVar("in_real_time", default=False)


@contextlib.contextmanager
def real_time() -> Iterator[None]:
    """Keep real time for the tasks and timers that are started inside.

    Has no effect on a loop whose time is not advanced.
    """
    token = IN_REAL_TIME.set(True)
    try:
        yield
    finally:
        IN_REAL_TIME.reset(token)


def deadline_in(seconds: float) -> float:
    """Return a deadline for gRPC: by the wall clock, in seconds since the Unix epoch."""
    return time.time() + seconds


def seconds_until(deadline: float) -> float:
    """Return the seconds until a deadline of `deadline_in`; negative after it."""
    return deadline - time.time()
