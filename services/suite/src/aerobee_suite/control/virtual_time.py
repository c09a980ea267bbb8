"""Provide clocks and event loops whose time a test can advance, with one common offset.

Timers that become due fire in the next iteration of the event loop. Work that was started inside
`aerobee_chassis.clock.real_time` keeps real time: when time advances, its timers are postponed by
the same amount.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVarTuple, cast

from aerobee_chassis.clock import IN_REAL_TIME, Clock, SystemClock
from aerobee_chassis.rpc.completion_queue.loop import CompletionQueueLoop
from aerobee_chassis.rpc.loops import LoopKinds

Arguments = TypeVarTuple("Arguments")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    offset_ms = 0

    def time(self) -> float:
        """Return virtual time, or real time inside `real_time`."""
        now = super().time()
        return now if IN_REAL_TIME.get() else now + self.offset_ms / 1_000

    def call_at(
        self,
        when: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if IN_REAL_TIME.get():
            when += self.offset_ms / 1_000
        return super().call_at(when, callback, *args, context=context)

    def move(self, milliseconds: int) -> None:
        """Advance the time of all work that does not keep real time."""
        self.offset_ms += milliseconds
        # asyncio keeps a heap of timers in virtual time. Postpone the timers that keep real time.
        timers = cast("list[Any]", self._scheduled)  # type: ignore[attr-defined]
        for timer in timers:
            if timer._context is not None and timer._context.get(IN_REAL_TIME, False):
                timer._when += milliseconds / 1_000
        heapq.heapify(timers)


class VirtualCompletionQueueLoop(VirtualTimeLoop, CompletionQueueLoop):
    """The event loop on the completion queue, in virtual time."""


VIRTUAL_LOOPS = LoopKinds(VirtualCompletionQueueLoop, VirtualTimeLoop)


class VirtualClock:
    """Implement the chassis `Clock` with the virtual time of an event loop."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop
        self._system = SystemClock()

    def now_ms(self) -> int:
        return self._system.now_ms() + self._loop.offset_ms

    def monotonic_ms(self) -> int:
        return self._system.monotonic_ms() + self._loop.offset_ms

    @property
    def real(self) -> Clock:
        return self._system

    @property
    def offset_ms(self) -> int:
        """Return by how many milliseconds this clock is ahead of real time."""
        return self._loop.offset_ms

    def move(self, milliseconds: int) -> None:
        self._loop.move(milliseconds)
