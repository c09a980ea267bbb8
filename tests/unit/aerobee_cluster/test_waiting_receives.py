"""Waiting receives: which one gets an outcome, and the outcome that no receive takes."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from aerobee_cluster.waiting_receives import WaitingReceives

LONG_S = 1_000.0


class Line:
    """Waits that want their own name. `back`: outcomes of receives that were cancelled."""

    def __init__(self) -> None:
        self.back: list[str] = []
        self.receives: WaitingReceives[str, str] = WaitingReceives(self.back.append)
        self.tasks: dict[str, asyncio.Task[str | None]] = {}

    async def start(self, *names: str, prefers: str = "", after_s: float = LONG_S) -> None:
        deadline_s = asyncio.get_running_loop().time() + after_s
        for name in names:
            waiting = self.receives.wait(name, deadline_s, prefers=prefers)
            self.tasks[name] = asyncio.create_task(waiting)
        await asyncio.sleep(0)

    async def outcomes(self) -> dict[str, str | None]:
        """The outcome of each receive that has ended."""
        await asyncio.sleep(0.01)
        return {name: task.result() for name, task in self.tasks.items() if task.done()}


@pytest.fixture
async def line() -> Line:
    return Line()


async def test_the_longest_wait_gets_the_outcome(line: Line) -> None:
    assert not line.receives.give("too early")
    await line.start("a", "b", "c")
    assert (line.receives.longest(), line.receives.wanted()) == ("a", ["a", "b", "c"])
    assert line.receives.give("1") and line.receives.give("2")
    assert (line.receives.longest(), line.receives.wanted()) == ("c", ["c"])
    assert await line.outcomes() == {"a": "1", "b": "2"}
    assert len(line.receives) == 1


async def test_an_outcome_goes_first_to_those_that_prefer_its_name(line: Line) -> None:
    await line.start("a", prefers="x")
    await line.start("b", prefers="y")
    await line.start("c", prefers="y")
    await line.start("d", prefers="x")
    assert (line.receives.preferring("y"), line.receives.preferring("z")) == (2, 0)
    assert line.receives.longest("y") == "b"
    for outcome in "1234":
        assert line.receives.give(outcome, "y")
    assert not line.receives.give("5", "y")
    assert await line.outcomes() == {"b": "1", "c": "2", "a": "3", "d": "4"}
    assert line.receives.preferring("y") == 0


async def test_without_a_preference_the_order_is_that_of_all_waits(line: Line) -> None:
    await line.start("a", prefers="x")
    await line.start("b", prefers="y")
    await line.start("c", prefers="x")
    for outcome in "123":
        line.receives.give(outcome, "z")
    assert await line.outcomes() == {"a": "1", "b": "2", "c": "3"}


async def test_a_wait_ends_at_its_deadline(line: Line) -> None:
    await line.start("a", after_s=5)
    await line.start("b", after_s=9)
    await asyncio.sleep(6)
    assert await line.outcomes() == {"a": None}
    assert line.receives.give("1")
    assert await line.outcomes() == {"a": None, "b": "1"}


async def test_the_outcome_of_a_cancelled_receive_is_handed_over(line: Line) -> None:
    await line.start("a", "b")
    line.receives.give("1")
    line.tasks["a"].cancel()
    with pytest.raises(asyncio.CancelledError):
        await line.tasks["a"]
    assert (line.back, len(line.receives)) == (["1"], 1)


async def test_a_cancelled_receive_without_an_outcome_is_only_forgotten(line: Line) -> None:
    await line.start("a", "b")
    line.tasks["a"].cancel()
    await asyncio.sleep(0.01)
    assert (line.back, line.receives.wanted()) == ([], ["b"])
    assert line.receives.give("1")


async def test_a_receive_with_an_outcome_is_there_until_it_takes_it(line: Line) -> None:
    await line.start("a")
    line.receives.give("1")
    assert (line.receives.any_waits, len(line.receives)) == (False, 1)
    await line.outcomes()
    assert len(line.receives) == 0


async def test_all_waits_can_be_ended(line: Line) -> None:
    await line.start("a", "b", "c")
    line.receives.give("1")
    line.receives.end()
    assert await line.outcomes() == {"a": "1", "b": None, "c": None}
    assert not line.receives.any_waits


@pytest.mark.parametrize("name", ["x", "other"])
async def test_an_outcome_costs_the_same_however_many_have_one_already(
    line: Line, name: str
) -> None:
    """Receives that were served in this turn of the loop have not left yet."""
    count = 500
    await line.start(*map(str, range(count)), prefers="x")
    looked = 0

    def look(_frame: Any, event: str, argument: Any) -> None:
        nonlocal looked
        looked += event == "c_call" and argument.__name__ == "done"

    sys.setprofile(look)
    try:
        assert all(line.receives.give("1", name) for _ in range(count))
    finally:
        sys.setprofile(None)
    assert looked <= 3 * count
    assert len(line.receives) == count and not line.receives.any_waits
    assert len(await line.outcomes()) == count and not len(line.receives)
