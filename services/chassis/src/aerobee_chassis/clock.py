"""Wall clock and monotonic clock, as an argument that tests replace.

A test may move the time of a whole process (`aerobee_suite`): its clocks and the time of its loop.
Whether a peer is alive is judged by real time all the same: by `Clock.real`, and in tasks that are
started inside `real_time`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch. May jump."""

    def monotonic_ms(self) -> int:
        """Milliseconds since an unspecified start. Never goes back."""

    @property
    def real(self) -> Clock:
        """The clock by which the liveness of peers is judged: moved by no test of their users."""


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
    """Tasks and timers that are started inside keep real time on a loop whose time is moved. On
    every other loop it changes nothing."""
    token = IN_REAL_TIME.set(True)
    try:
        yield
    finally:
        IN_REAL_TIME.reset(token)


def deadline_in(seconds: float) -> float:
    """A deadline as gRPC has it: by the wall clock, in seconds since the Unix epoch."""
    return time.time() + seconds


def seconds_until(deadline: float) -> float:
    """Seconds until a deadline of `deadline_in`; negative after it."""
    return deadline - time.time()
