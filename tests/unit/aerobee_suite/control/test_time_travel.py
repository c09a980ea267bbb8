"""The steps in which time goes forward: broker and proxy are due times that the test makes up."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aerobee_suite.broker_runner import BrokerRunner
from aerobee_suite.control.settlement import Settlement
from aerobee_suite.control.virtual_time import (
    LONGEST_STEP_MS,
    OVERDUE_STEP_MS,
    TimeTravel,
    VirtualClock,
    VirtualTimeLoop,
)
from aerobee_wire.status import Code
from support.codes import raises_code

HOUR_MS = 3_600_000


class Due:
    """A broker of which only due times are known: absolute, in ms of the offset. One that is
    reached is done by a task, unless it is stuck."""

    def __init__(self, clock: VirtualClock, *times_ms: int, stuck: bool = False) -> None:
        self.clock = clock
        self.times_ms = sorted(times_ms)
        self.stuck = stuck
        self.seen_ms: list[int] = []
        self.commit = SimpleNamespace(is_awaited=False)
        self.transactions: list[Any] = []

    def due_in_ms(self) -> float | None:
        now_ms = self.clock.offset_ms
        while self.times_ms and self.times_ms[0] <= now_ms and not self.stuck:
            self.seen_ms.append(now_ms)
            del self.times_ms[0]
        return self.times_ms[0] - now_ms if self.times_ms else None


class Settled:
    """Each group has settled everything, at each of these offsets."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.at_ms: list[int] = []

    async def wait(self, consumer_group: str = "", timeout_ms: int = 0) -> None:
        self.at_ms.append(self.clock.offset_ms)


async def travel(
    duration_ms: int, *times_ms: int, stuck: bool = False, settle: bool = True
) -> tuple[Due, list[int], int]:
    """The broker, the offsets at which groups were waited for, and the number of steps."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    clock = VirtualClock(loop)
    broker, settled = Due(clock, *times_ms, stuck=stuck), Settled(clock)
    runner = cast(BrokerRunner, SimpleNamespace(running=broker, upkeep=()))
    time_travel = TimeTravel(clock, runner, lambda: None, cast(Settlement, settled))
    steps = await time_travel.advance(duration_ms, settle=settle, settle_timeout_ms=0)
    assert clock.offset_ms == duration_ms
    return broker, settled.at_ms, steps


def run(coroutine: Any) -> Any:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(coroutine)


def test_time_stops_at_each_due_time_and_waits_there() -> None:
    broker, waited_ms, _ = run(travel(60_000, 10_000, 10_500, 45_000, 70_000))
    assert [round(at, -2) for at in broker.seen_ms] == [10_000, 10_500, 45_000]
    assert waited_ms == [0, *broker.seen_ms, 60_000]


def test_no_hour_is_jumped_over() -> None:
    _, waited_ms, steps = run(travel(24 * HOUR_MS))
    gaps = [after - before for before, after in itertools.pairwise(waited_ms)]
    assert max(gaps) == LONGEST_STEP_MS and steps == 48


def test_without_settling_nobody_is_waited_for() -> None:
    _, waited_ms, _ = run(travel(60_000, 10_000, settle=False))
    assert waited_ms == []


def test_what_is_overdue_holds_time_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aerobee_suite.control.virtual_time.OVERDUE_WAIT_S", 0.01)
    _, waited_ms, steps = run(travel(5 * HOUR_MS, 1_000, stuck=True))
    assert waited_ms[2] - waited_ms[1] == OVERDUE_STEP_MS
    assert waited_ms[3] - waited_ms[2] == 2 * OVERDUE_STEP_MS
    assert steps < 30


@pytest.mark.parametrize("duration_ms", [-1, 367 * 24 * HOUR_MS])
def test_a_duration_out_of_bounds_is_refused(duration_ms: int) -> None:
    with raises_code(Code.INVALID_PARAMETER):
        run(travel(duration_ms))
