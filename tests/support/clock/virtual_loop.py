"""An asyncio loop whose time is made up: it jumps to the next timer whenever nothing else is to do.

A test that waits 30 minutes takes a millisecond, and what depends on time becomes exact. Not for
tests with sockets or threads: time would run away from them. A directory of tests takes it by
`pytest_asyncio_loop_factories` in its conftest.py.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

START_MS = 1_700_000_000_000


class _Selector(selectors.DefaultSelector):
    """Never waits: what it was to wait for is added to the time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout == 0:  # callbacks are ready, and only this thread wakes the loop
            return []
        events = super().select(0)
        if not events and timeout is None:
            raise RuntimeError("every task waits for something that nobody will do")
        if not events and timeout is not None and timeout > 0:
            self.now_s += timeout
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


class LoopClock:
    """A chassis `Clock` that goes with the running loop. `jump` sets the time of day."""

    def __init__(self) -> None:
        self._offset_ms = START_MS

    def now_ms(self) -> int:
        return self._offset_ms + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        # Rounded: 0.1 + 0.2 s are 300 ms, not 299.
        return round(asyncio.get_running_loop().time() * 1000)

    @property
    def real(self) -> LoopClock:
        return self

    def jump(self, milliseconds: int) -> None:
        self._offset_ms += milliseconds


async def run_ready_tasks() -> None:
    """On a virtual loop: returns when every task waits for a timer, or for another task."""
    await asyncio.sleep(1e-6)
