"""Long polls: woken by an arrival that serves the call, by nothing else, and always ended."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable
from types import FrameType

import pytest

from aerobee_broker.delivery.pull.long_polls import LongPolls
from aerobee_broker.store.messages import UNIT, Arrival
from aerobee_wire.status import Code
from support.codes import raises_code

Codes = frozenset[int] | None
Park = Callable[..., Awaitable[asyncio.Task[bool]]]


def arrival(first: int, *codes: int, topic: str = "t", queue_id: int = 0) -> Arrival:
    units = b"".join(UNIT.pack(0, 100, code) for code in codes)
    return Arrival(topic, queue_id, first, first + len(codes), units)


async def pull(
    polls: LongPolls, queue_offset: int = 5, codes: Codes = None, timeout_s: float = 10
) -> asyncio.Task[bool]:
    """Parked at an offset of queue 0 of topic t."""
    task = asyncio.create_task(polls.park_pull("t", 0, queue_offset, codes, timeout_s))
    await asyncio.sleep(0)
    return task


async def pop(
    polls: LongPolls,
    group: str = "g",
    queue_id: int | None = None,
    codes: Codes = None,
    topic: str = "t",
) -> asyncio.Task[bool]:
    task = asyncio.create_task(polls.park_pop(group, topic, queue_id, codes, 10))
    await asyncio.sleep(0)
    return task


async def done(*tasks: asyncio.Task[bool]) -> list[bool]:
    await asyncio.sleep(0.1)
    return [task.done() for task in tasks]


@pytest.fixture
def polls() -> LongPolls:
    return LongPolls()


async def test_a_message_at_the_offset_wakes_a_pull(polls: LongPolls) -> None:
    task = await pull(polls)
    assert polls.parked_pulls == 1
    polls.arrived([arrival(5, 1)])
    assert await task
    assert polls.count == 0


async def test_messages_elsewhere_do_not_wake_a_pull(polls: LongPolls) -> None:
    task = await pull(polls)
    below = arrival(3, 1, 1)  # offsets 3 and 4
    polls.arrived([arrival(5, 1, topic="u"), arrival(5, 1, queue_id=1), below])
    assert await done(task) == [False]
    task.cancel()


@pytest.mark.parametrize("park", [pull, pop])
async def test_only_a_tag_of_the_filter_wakes(polls: LongPolls, park: Park) -> None:
    task = await park(polls, codes=frozenset({7, 9}))
    polls.arrived([arrival(5, 1, 2, 3)])
    assert await done(task) == [False]
    polls.arrived([arrival(8, 4, 9)])
    assert await task


async def test_each_pull_has_its_own_timeout(polls: LongPolls) -> None:
    short, long = await pull(polls, timeout_s=1), await pull(polls, timeout_s=3)
    await asyncio.sleep(2)
    assert short.done() and not await short
    assert not long.done()
    assert not await long
    assert asyncio.get_running_loop().time() == 3


async def test_an_arrival_wakes_every_pull_it_serves(polls: LongPolls) -> None:
    tasks = [await pull(polls, offset) for offset in (4, 5, 6)]
    polls.arrived([arrival(5, 1)])
    assert await done(*tasks) == [True, True, False]
    tasks[2].cancel()


async def test_an_arrival_wakes_a_pop_of_each_group_per_message(polls: LongPolls) -> None:
    tasks = [await pop(polls, group) for group in ("g", "g", "g", "h")]
    polls.arrived([arrival(0, 1, 1)])
    assert await done(*tasks) == [True, True, False, True]
    polls.wake_pop("g", "t")
    assert await tasks[2]


async def test_a_pop_of_one_queue_is_not_woken_by_another(polls: LongPolls) -> None:
    one, both = await pop(polls, queue_id=1), await pop(polls)
    polls.arrived([arrival(0, 1)])
    polls.wake_pop("g", "t", 0)
    assert await done(one, both) == [False, True]
    polls.wake_pop("g", "t", 1)
    assert await one


async def test_a_pop_cancelled_after_its_wake_wakes_the_next(polls: LongPolls) -> None:
    first, second = await pop(polls), await pop(polls)
    polls.arrived([arrival(0, 1)])
    first.cancel()
    assert await second


async def test_a_deleted_or_reset_topic_wakes_its_pops_and_pulls(polls: LongPolls) -> None:
    tasks = [await pull(polls), await pop(polls), await pop(polls, "h")]
    polls.wake_pulls("t", 0)
    assert await done(*tasks) == [True, False, False]
    polls.wake_pops("t")
    assert await done(*tasks) == [True, True, True]


async def test_too_many_parked_pops_are_refused() -> None:
    polls = LongPolls(max_parked_pops=1)
    task = await pop(polls)
    with raises_code(Code.POLLING_FULL):
        await polls.park_pop("g", "t", None, None, 10)
    task.cancel()


@pytest.mark.parametrize("park", [pull, pop])
async def test_a_cancelled_call_is_forgotten(polls: LongPolls, park: Park) -> None:
    task = await park(polls)
    task.cancel()
    await asyncio.wait([task])
    assert polls.count == 0 and not polls._pulls.topics and not polls._pops.topics
    polls.arrived([arrival(5, 1)])


async def test_closing_ends_every_wait_now_and_later(polls: LongPolls) -> None:
    tasks = [await pull(polls), await pop(polls)]
    polls.close()
    assert [await task for task in tasks] == [False, False]
    assert not await polls.park_pull("t", 0, 5, None, 10)
    assert not await polls.park_pop("g", "t", None, None, 10)


def calls_of(work: Callable[[], None]) -> int:
    """Return how many functions a piece of work calls, also those written in C.

    Finalizers of other tests' objects, which a garbage collection would call, do not count.
    """
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    earlier = sys.getprofile()
    gc.disable()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(earlier)
        gc.enable()
    return count


async def test_a_retry_costs_the_same_whatever_waits_elsewhere_or_needs_no_wake(
    polls: LongPolls,
) -> None:
    def retry() -> None:
        polls.wake_pop("g", "%RETRY%g")

    none_waits = calls_of(retry)
    others = [await pop(polls, group="other", topic=f"t{number}") for number in range(50)]
    others.append(asyncio.create_task(polls.park_notification("other", "t", None, 10)))
    await asyncio.sleep(0)
    assert calls_of(retry) == none_waits
    own = [await pop(polls, topic=f"t{number}") for number in range(3)]
    most = calls_of(retry)
    own += [await pop(polls, topic=f"t{number}") for number in range(3, 50)]
    assert calls_of(retry) == most
    await asyncio.sleep(0)
    assert [task.done() for task in own] == [True, True] + 48 * [False]
    polls.close()
    await asyncio.gather(*own, *others)
    assert not polls._pops.groups and not polls._notifications.groups


async def test_a_notification_waits_for_retries_that_no_pop_takes(polls: LongPolls) -> None:
    notified = asyncio.create_task(polls.park_notification("g", "t", None, 10))
    popping = await pop(polls, topic="u")
    polls.arrived([arrival(0, 1, topic="%RETRY%g")])
    assert await done(popping, notified) == [True, False]
    polls.arrived([arrival(1, 1, topic="%RETRY%g")])
    assert await notified
