"""Background work: a defect ends neither the work nor the process."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from aerobee_chassis.background import (
    RESTART_S,
    BackgroundTask,
    PeriodicTask,
    pause,
    until_one_ends,
)


class Work:
    """Fails in its first run; `runs`: when each began, in the loop's time."""

    def __init__(self) -> None:
        self.runs: list[float] = []

    async def __call__(self) -> None:
        self.runs.append(asyncio.get_running_loop().time())
        if len(self.runs) == 1:
            raise ZeroDivisionError


async def test_work_runs_every_interval_though_a_round_fails() -> None:
    work = Work()
    task = PeriodicTask("sample", 5.0, work)
    began = asyncio.get_running_loop().time()
    with structlog.testing.capture_logs() as logs:
        await task.start()
        await asyncio.sleep(16)
        await task.stop()
    assert [time - began for time in work.runs] == [5, 10, 15]
    assert [(line["event"], line["work"]) for line in logs] == [
        ("background_work_failed", "sample")
    ]


async def test_pauses_of_a_second_or_more_end_together_at_whole_seconds() -> None:
    loop, ends = asyncio.get_running_loop(), []

    async def paused(start_s: float, seconds: float) -> None:
        await asyncio.sleep(start_s)
        await pause(seconds)
        ends.append(round(loop.time(), 3))

    began = loop.time()
    assert began == int(began)
    await asyncio.gather(paused(0.1, 1), paused(0.4, 1), paused(0.7, 1), paused(0.3, 0.2))
    assert [end - began for end in ends] == [0.5, 1, 1, 2]


async def test_work_that_fails_is_restarted_after_a_pause() -> None:
    failing = Work()

    async def endless() -> None:
        await failing()
        await asyncio.Event().wait()

    task = BackgroundTask("sample", endless)
    began = asyncio.get_running_loop().time()
    with structlog.testing.capture_logs():
        await task.start()
        await asyncio.sleep(10)
        await task.stop()
    assert [time - began for time in failing.runs] == [0, RESTART_S]


async def test_work_that_returns_has_ended() -> None:
    runs: list[int] = []

    async def end() -> None:
        runs.append(len(runs))
        if len(runs) > 1:  # otherwise, a restart without a pause would not end
            await asyncio.Event().wait()

    task = BackgroundTask("sample", end)
    await task.start()
    await asyncio.sleep(10)
    await task.stop()
    assert runs == [0]


async def test_stop_without_start_does_nothing() -> None:
    await BackgroundTask("sample", Work()).stop()


async def test_of_works_that_end_at_once_the_failure_is_raised() -> None:
    async def end() -> None:
        pass

    async def fail() -> None:
        raise ZeroDivisionError

    for _ in range(20):  # the order of those that are done is any
        with pytest.raises(ZeroDivisionError):
            await until_one_ends(end(), fail(), end())


async def test_the_others_are_cancelled_and_over_when_one_has_ended() -> None:
    steps = []

    async def end() -> None:
        await asyncio.sleep(1)

    async def go_on() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            steps.append("over")

    await until_one_ends(go_on(), end())
    assert steps == ["over"]
