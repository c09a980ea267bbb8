"""Test the control of a suite: refusals, and time that a test advances."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from aerobee_broker.config import BrokerOptions
from aerobee_chassis.clock import IN_REAL_TIME, SystemClock, real_time
from aerobee_chassis.rpc.call import Call
from aerobee_chassis.rpc.services import Method, Service
from aerobee_suite import broker_runner
from aerobee_suite.broker_runner import BrokerRunner
from aerobee_suite.control.control import Refusals
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

# ---- test refusals ----
#
# Refusals of a test: the next calls of one RPC, and no others.


NO_CALL = cast(Call, None)


async def check(request: HealthCheckRequest, call: Call) -> HealthCheckResponse:
    return HealthCheckResponse()


def guarded(refusals: Refusals) -> Method:
    method = Method("Check", check, HealthCheckRequest, server_streams=False, client_streams=False)
    ((guarded,),) = [each.methods for each in refusals.guard([Service("Health", (method,))])]
    return guarded


async def test_so_many_calls_fail_with_the_code() -> None:
    refusals = Refusals()
    method = guarded(refusals)
    refusals.refuse("Check", Code.FLOW_CONTROL, 2)
    again = guarded(refusals)  # of a broker that was started again
    for each in (method, again):
        with raises_code(Code.FLOW_CONTROL):
            await each.handler(HealthCheckRequest(), NO_CALL)
    assert await method.handler(HealthCheckRequest(), NO_CALL) == HealthCheckResponse()


async def test_zero_times_takes_refusals_back() -> None:
    refusals = Refusals()
    method = guarded(refusals)
    refusals.refuse("Check", Code.FLOW_CONTROL, 100)
    refusals.refuse("Check", Code.FLOW_CONTROL, 0)
    assert await method.handler(HealthCheckRequest(), NO_CALL) == HealthCheckResponse()


@pytest.mark.parametrize("name", ["Chekc", "", "/Health/Check"])
def test_an_rpc_that_there_is_not_is_refused(name: str) -> None:
    refusals = Refusals()
    guarded(refusals)
    with raises_code(Code.INVALID_PARAMETER):
        refusals.refuse(name, Code.FLOW_CONTROL, 1)


# ---- test restarts ----


async def test_a_broker_that_a_call_restarts_keeps_virtual_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keeps_real_time: list[bool] = []

    class App:
        address = "127.0.0.1:1"

        def __init__(self, *_: object, **__: object) -> None: ...

        async def start(self) -> None:
            keeps_real_time.append(IN_REAL_TIME.get())

        async def stop(self) -> None: ...

    monkeypatch.setattr(broker_runner, "BrokerApp", App)
    runner = BrokerRunner(BrokerOptions(), SystemClock(), tuple)
    await runner.start("127.0.0.1:2")
    with real_time():  # as in a call to the name server
        await runner.stop()
        await runner.start()
    assert keeps_real_time == [False, False]


# ---- test time travel ----
#
# The steps in which time goes forward: broker and proxy are due times that the test makes up.


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


# ---- test virtual time ----
#
# Time that a test moves: timers, clocks, and what keeps real time.


def run_on_loop(body: Callable[[VirtualTimeLoop], Awaitable[None]]) -> None:
    async def on_loop() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        await body(loop)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(on_loop())


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_timers_fire_in_the_order_of_their_times_when_time_is_moved() -> None:
    async def body(loop: VirtualTimeLoop) -> None:
        fired: list[str] = []
        loop.call_later(7_200, fired.append, "second")
        loop.call_later(3_600, fired.append, "first")
        loop.call_later(14_400, fired.append, "never")
        sleeper = asyncio.create_task(asyncio.sleep(7_000))
        await turns()
        assert fired == [] and not sleeper.done()
        loop.move(3 * HOUR_MS)
        await turns()
        assert fired == ["first", "second"] and sleeper.done()

    run_on_loop(body)


def test_what_was_started_in_real_time_keeps_it() -> None:
    async def body(loop: VirtualTimeLoop) -> None:
        async def wait_long() -> None:
            await asyncio.sleep(3_600)

        with real_time():
            task = asyncio.create_task(wait_long())
            begin = loop.time()
        soon = asyncio.Event()
        await turns()
        loop.move(5 * HOUR_MS)
        with real_time():
            loop.call_later(0.001, soon.set)  # after a move too
            assert loop.time() - begin < 3_600
        await soon.wait()
        assert not task.done()
        task.cancel()

    run_on_loop(body)


def test_a_real_timeout_is_not_over_by_a_move() -> None:
    async def body(loop: VirtualTimeLoop) -> None:
        async def answer() -> str:
            with real_time():
                timeout = asyncio.timeout(60)
                async with timeout:
                    await turns(10)
            return "answered"

        task = asyncio.create_task(answer())
        await turns()
        loop.move(HOUR_MS)
        assert await task == "answered"

        async def late() -> None:
            async with asyncio.timeout(60):
                loop.move(HOUR_MS)
                await turns(10)

        with pytest.raises(TimeoutError):
            await late()

    run_on_loop(body)


def test_clocks_follow_the_loop_and_the_real_one_does_not() -> None:
    async def body(loop: VirtualTimeLoop) -> None:
        clock = VirtualClock(loop)
        wall, monotonic, real = clock.now_ms(), clock.monotonic_ms(), clock.real.monotonic_ms()
        clock.move(HOUR_MS)
        assert clock.now_ms() - wall >= HOUR_MS
        assert clock.monotonic_ms() - monotonic >= HOUR_MS
        assert clock.real.monotonic_ms() - real < HOUR_MS
        assert clock.offset_ms == HOUR_MS

    run_on_loop(body)
