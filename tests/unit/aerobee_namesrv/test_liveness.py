"""The background coroutines: when they scan and what they remove."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from aerobee_namesrv.app import remove_in_batches, scan_for_expired
from support.clock.polling import until
from support.namesrv.routing_tables import RoutingTables, address_of, key_of


class Stop(Exception):
    """Ends a coroutine that runs for ever."""


class ScriptedSleep:
    """Sleep number n runs step n with the seconds; the sleep after the last step raises Stop."""

    def __init__(self, *steps: Callable[[float], None]) -> None:
        self._steps = iter(steps)
        self.slept: list[float] = []

    async def __call__(self, seconds: float) -> None:
        step = next(self._steps, None)
        if step is None:
            raise Stop
        self.slept.append(seconds)
        step(seconds)


@pytest.mark.parametrize(("interval_ms", "first_s"), [(5_000, 5), (60_000, 5), (1_000, 1)])
async def test_first_scan_is_after_5_s_and_then_every_interval(
    interval_ms: int, first_s: float
) -> None:
    """§1.4: first run after 5 s, then with a fixed delay."""
    tables = RoutingTables()

    def pass_time(seconds: float) -> None:
        tables.clock.advance(int(seconds * 1_000))

    sleep = ScriptedSleep(pass_time, pass_time, pass_time)
    with pytest.raises(Stop):
        await scan_for_expired(tables.live, tables.clock, interval_ms, sleep)
    assert sleep.slept == [first_s, interval_ms / 1_000, interval_ms / 1_000]


async def test_scan_submits_the_silent() -> None:
    tables = RoutingTables()
    tables.register(heartbeat_timeout_ms=4_999)

    def pass_time(seconds: float) -> None:
        tables.clock.advance(int(seconds * 1_000))

    with pytest.raises(Stop):
        await scan_for_expired(tables.live, tables.clock, 5_000, ScriptedSleep(pass_time))
    assert [each.address for each in tables.removals.drain()] == [address_of("broker-a")]


async def test_scan_after_the_process_itself_was_stopped_is_left_out() -> None:
    """SIGSTOP for ten minutes, then SIGCONT: what brokers sent meanwhile has not been read yet."""
    tables = RoutingTables()
    tables.register()
    waiting: list[int] = []

    def stopped(seconds: float) -> None:
        tables.clock.advance(600_000)

    def pass_time(seconds: float) -> None:
        waiting.append(len(tables.removals))
        tables.live.refresh(key_of())
        tables.clock.advance(int(seconds * 1_000))

    with pytest.raises(Stop):
        await scan_for_expired(tables.live, tables.clock, 5_000, ScriptedSleep(stopped, pass_time))
    assert waiting == [0]
    assert len(tables.removals) == 0


async def test_removal_takes_effect_without_a_scan() -> None:
    tables = RoutingTables()
    tables.register()
    task = asyncio.create_task(remove_in_batches(tables.manager, tables.removals))
    tables.live.end_watch(key_of(), tables.watch())
    await until(lambda: not tables.addresses(), "the broker is removed")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
