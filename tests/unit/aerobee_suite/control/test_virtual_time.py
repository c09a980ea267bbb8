"""Time that a test moves: timers, clocks, and what keeps real time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from aerobee_chassis.clock import real_time
from aerobee_suite.control.virtual_time import VirtualClock, VirtualTimeLoop

HOUR_MS = 3_600_000


def run(body: Callable[[VirtualTimeLoop], Awaitable[None]]) -> None:
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

    run(body)


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

    run(body)


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

    run(body)


def test_clocks_follow_the_loop_and_the_real_one_does_not() -> None:
    async def body(loop: VirtualTimeLoop) -> None:
        clock = VirtualClock(loop)
        wall, monotonic, real = clock.now_ms(), clock.monotonic_ms(), clock.real.monotonic_ms()
        clock.move(HOUR_MS)
        assert clock.now_ms() - wall >= HOUR_MS
        assert clock.monotonic_ms() - monotonic >= HOUR_MS
        assert clock.real.monotonic_ms() - real < HOUR_MS
        assert clock.offset_ms == HOUR_MS

    run(body)
