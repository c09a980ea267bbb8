"""Advance the virtual time in one call, in steps from one due time to the next.

The services do nothing by themselves between two due times, so a step misses no work. For example,
when a retry becomes visible, its consumer receives it and sends it back. Only then does time
advance to the next retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from aerobee_chassis.clock import real_time
from aerobee_proxy.app import ProxyApp
from aerobee_suite.broker_runner import BrokerRunner
from aerobee_suite.control.settlement import Settlement
from aerobee_suite.control.virtual_time import VirtualClock
from aerobee_wire.status import Code, MqError

LONGEST_MS = 366 * 86_400_000
# Retention depends on the hour of the day (`deleteWhen`), so a step must not skip an hour.
LONGEST_STEP_MS = 30 * 60_000
# Due work may never finish, for example with a failing disk or a killed broker. `advance` waits
# this long for it, in real time. Then it advances without it, by OVERDUE_STEP_MS at first. Each
# later step without it is twice as long.
OVERDUE_WAIT_S = 2.0
OVERDUE_STEP_MS = 10_000
POLL_S = 0.001
QUIET_WAIT_S = 5.0
# The intervals, in milliseconds, of a broker's periodic work that depends on the time: retention,
# checks of transactions, and the TTL of lite topics.
UPKEEP_MS = {"store": 1_000, "transactions": 1_000, "lite ttl": 30_000}
UPKEEP_WAIT_S = 2.0
# The wait for a producer that was asked about a transaction. If the producer does not know the
# outcome, it does not answer.
ANSWER_WAIT_S = 0.25


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

        Raises MqError with the code INVALID_PARAMETER for an invalid duration, and with the code
        REQUEST_TIMEOUT if a group has not settled. After a timeout, time does not advance further.
        """
        if not 0 <= duration_ms <= LONGEST_MS:
            raise MqError(
                Code.INVALID_PARAMETER,
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
        """Return the time in ms until the broker or the proxy has due work.

        The result is 0 or less while due work is unfinished, and None if no work is planned.
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
        """Advance time by `step_ms`, and wait for periodic work that depends on it."""
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
        # Timers that became due fire in the next iteration of the event loop. They wake tasks in
        # the iteration after it.
        for _ in range(3):
            await asyncio.sleep(0)
        if await _until(self._nothing_is_due, 0 if self._overdue_steps else OVERDUE_WAIT_S):
            self._overdue_steps = 0
        await self._until_no_flush_is_awaited()

    def _nothing_is_due(self) -> bool:
        due_in_ms = self._due_in_ms()
        return due_in_ms is None or due_in_ms > 0

    async def _until_no_flush_is_awaited(self) -> None:
        """Wait for running flushes, so that advancing time does not make them time out."""

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
    """Wait in real time for `condition`, and return whether it became true."""
    loop = asyncio.get_running_loop()
    end = loop.time() + at_most_s
    while not condition():
        if loop.time() >= end:
            return False
        await asyncio.sleep(pause_s)
    return True
