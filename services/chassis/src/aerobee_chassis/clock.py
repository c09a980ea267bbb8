"""Define the wall clock and the monotonic clock, as an argument that tests can replace.

A test may advance the time of a whole process, which affects its clocks and its event loop
(`aerobee_suite`). The liveness of peers always uses real time: `Clock.real`, and tasks that are
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
        """Return the milliseconds since the Unix epoch. The value may jump."""

    def monotonic_ms(self) -> int:
        """Return the milliseconds since an unspecified start. The value never goes back."""

    @property
    def real(self) -> Clock:
        """Return the clock for the liveness of peers. Tests do not advance it."""


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
    """Use real time for the tasks and timers that are started inside this context.

    This has an effect only on an event loop whose time a test can advance.
    """
    token = IN_REAL_TIME.set(True)
    try:
        yield
    finally:
        IN_REAL_TIME.reset(token)
