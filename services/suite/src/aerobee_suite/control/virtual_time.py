"""Provide clocks and event loops whose time a test can advance, with one common offset.

Timers that become due fire in the next iteration of the event loop. Work that was started inside
`aerobee_chassis.clock.real_time` keeps real time: when time advances, its timers are postponed by
the same amount.

`TimeTravel` advances time in one call, from due time to due time. Nothing happens by itself between
two due times, so a jump misses nothing. For example, when a retry becomes visible, its consumer
gets it and sends it back. Only then does time advance to the next retry.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, TypeVarTuple, cast

from aerobee_chassis.clock import IN_REAL_TIME, Clock, SystemClock, real_time
from aerobee_chassis.rpc.http2.loop import ServiceLoop
from aerobee_proxy.app import ProxyApp
from aerobee_suite.broker_runner import BrokerRunner
from aerobee_suite.control.settlement import Settlement
from aerobee_wire.status import Code, MqError, invalid_parameter

LONGEST_MS = 366 * 86_400_000
# Retention looks at the hour of the day (`deleteWhen`), so a step must not skip an hour.
LONGEST_STEP_MS = 30 * 60_000
# Due work may fail to finish, for example on a failing disk or at a killed broker. Time waits this
# long for it, in real time. Then time advances without it, by OVERDUE_STEP_MS at first. Each later
# step without it is twice as long.
OVERDUE_WAIT_S = 2.0
OVERDUE_STEP_MS = 10_000
POLL_S = 0.001
QUIET_WAIT_S = 5.0
# The intervals, in milliseconds, of a broker's periodic work that depends on the time: retention,
# checks of transactions, and the TTL of lite topics.
UPKEEP_MS = {"store": 1_000, "transactions": 1_000, "lite ttl": 30_000}
UPKEEP_WAIT_S = 2.0
# The wait for a producer that was asked about a transaction: if it does not know, it does not
# answer.
ANSWER_WAIT_S = 0.25

Arguments = TypeVarTuple("Arguments")


class VirtualTimeLoop(ServiceLoop):
    """The event loop of a service, in virtual time."""

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


@dataclass(slots=True, eq=False)
class TimeTravel:
    clock: VirtualClock
    runner: BrokerRunner
    proxy: Callable[[], ProxyApp | None]
    settlement: Settlement
    _alone: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _overdue_steps: int = field(default=0, init=False)  # since nothing was overdue

    async def advance(self, duration_ms: int, *, settle: bool, settle_timeout_ms: int) -> int:
        """Advance time and return the number of steps.

        Raises MqError: INVALID_PARAMETER for a bad duration, and REQUEST_TIMEOUT when a group has
        not settled. After a timeout, time stays where it is.
        """
        if not 0 <= duration_ms <= LONGEST_MS:
            raise invalid_parameter(
                f"cannot advance time by {duration_ms} ms: give 0 to {LONGEST_MS} ms (a year)",
                about="duration",
            )
        steps, left_ms = 0, duration_ms
        async with self._alone:
            with real_time():
                while True:
                    await self._until_nothing_is_due()
                    if settle:
                        await self.settlement.wait(timeout_ms=settle_timeout_ms)
                    if not left_ms:
                        return steps
                    await self._until_no_flush_is_awaited()
                    step_ms = min(left_ms, self._next_step_ms())
                    await self._step(step_ms)
                    left_ms -= step_ms
                    steps += 1

    def _due_in_ms(self) -> float | None:
        """Return the time until broker or proxy has due work.

        0 or less while due work is unfinished. None if neither has any planned.
        """
        broker, proxy = self.runner.running, self.proxy()
        waits = (
            broker.due_in_ms() if broker is not None else None,
            proxy.proxy.lease_renewal.due_in_ms() if proxy is not None else None,
        )
        return min((wait for wait in waits if wait is not None), default=None)

    def _next_step_ms(self) -> int:
        due_in_ms = self._due_in_ms()
        if due_in_ms is None:
            return LONGEST_STEP_MS
        if due_in_ms <= 0:
            self._overdue_steps += 1
            return min(LONGEST_STEP_MS, OVERDUE_STEP_MS << min(self._overdue_steps - 1, 10))
        return min(LONGEST_STEP_MS, int(due_in_ms) + 1)

    async def _step(self, step_ms: int) -> None:
        """Move time, and wait for periodic work that depends on it."""
        asks = self._asks_producers(step_ms)
        rounds = [
            (task, task.rounds)
            for task in self.runner.upkeep
            if step_ms >= UPKEEP_MS.get(task.name, LONGEST_MS)
        ]
        self.clock.move(step_ms)
        if rounds:
            await _until(lambda: all(task.rounds > seen for task, seen in rounds), UPKEEP_WAIT_S)
        if asks:
            broker = self.runner.running
            await _until(lambda: broker is None or not len(broker.transactions), ANSWER_WAIT_S)

    def _asks_producers(self, step_ms: int) -> bool:
        """Return whether a producer is asked about its transaction in this step."""
        broker = self.runner.running
        if broker is None or not len(broker.transactions) or not broker.clients.producers():
            return False
        due_in_ms = broker.transaction_checks.schedule.due_in_ms()
        return due_in_ms is not None and due_in_ms <= step_ms

    async def _until_nothing_is_due(self) -> None:
        """Wait until all due work is done."""
        # Timers that a move made due fire in the next turn of the loop. They wake tasks in the turn
        # after it.
        for _ in range(3):
            await asyncio.sleep(0)
        if await _until(self._nothing_is_due, 0 if self._overdue_steps else OVERDUE_WAIT_S):
            self._overdue_steps = 0
        await self._until_no_flush_is_awaited()

    def _nothing_is_due(self) -> bool:
        due_in_ms = self._due_in_ms()
        return due_in_ms is None or due_in_ms > 0

    async def _until_no_flush_is_awaited(self) -> None:
        """Wait for flushes to end, so that a move does not make a flush exceed its timeout."""

        def is_quiet() -> bool:
            broker = self.runner.running
            return broker is None or not broker.commit.is_awaited

        if not await _until(is_quiet, QUIET_WAIT_S, pause_s=0):
            raise MqError(
                Code.REQUEST_TIMEOUT,
                f"messages were stored all the time for {QUIET_WAIT_S:g} s: pause what sends "
                "before time is advanced",
            )


async def _until(
    condition: Callable[[], bool], at_most_s: float, *, pause_s: float = POLL_S
) -> bool:
    """Wait in real time; return whether the condition became true."""
    loop = asyncio.get_running_loop()
    end = loop.time() + at_most_s
    while not condition():
        if loop.time() >= end:
            return False
        await asyncio.sleep(pause_s)
    return True
