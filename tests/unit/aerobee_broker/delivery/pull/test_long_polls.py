"""Long polls: woken by what they wait for, by nothing else, and never for ever."""

from __future__ import annotations

import asyncio

from aerobee_broker.delivery.pull.long_polls import LongPolls
from aerobee_broker.store.messages import UNIT, Arrival


def arrival(first: int, *codes: int, topic: str = "t", queue_id: int = 0) -> Arrival:
    units = b"".join(UNIT.pack(0, 100, code) for code in codes)
    return Arrival(topic, queue_id, first, first + len(codes), units)


async def parked(polls: LongPolls, **fields: object) -> asyncio.Task[bool]:
    wish: dict[str, object] = {
        "topic": "t",
        "queue_id": 0,
        "queue_offset": 5,
        "tags_codes": None,
        "timeout_ms": 10_000,
    }
    task = asyncio.create_task(polls.wait(**{**wish, **fields}))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    return task


async def test_a_message_at_the_offset_wakes() -> None:
    polls = LongPolls()
    task = await parked(polls)
    polls.arrived([arrival(5, 1)])
    assert await task
    assert polls.count == 0


async def test_messages_elsewhere_do_not_wake() -> None:
    polls = LongPolls()
    task = await parked(polls)
    polls.arrived(
        [arrival(5, 1, topic="u"), arrival(5, 1, queue_id=1), arrival(3, 1, 1)]  # 3 and 4
    )
    await asyncio.sleep(1)
    assert not task.done() and polls.count == 1
    task.cancel()


async def test_only_a_wanted_tag_wakes() -> None:
    polls = LongPolls()
    task = await parked(polls, tags_codes=frozenset({7, 9}))
    polls.arrived([arrival(5, 1, 2, 3)])
    await asyncio.sleep(1)
    assert not task.done()
    polls.arrived([arrival(8, 4, 9)])
    assert await task


async def test_the_time_is_over_for_each_by_itself() -> None:
    polls = LongPolls()
    short, long = await parked(polls, timeout_ms=1_000), await parked(polls, timeout_ms=3_000)
    await asyncio.sleep(2)
    assert short.done() and not await short
    assert not long.done()
    assert not await long
    assert asyncio.get_running_loop().time() == 3


async def test_one_arrival_wakes_everybody_whom_it_serves() -> None:
    polls = LongPolls()
    tasks = [await parked(polls, queue_offset=offset) for offset in (4, 5, 6)]
    polls.arrived([arrival(5, 1)])
    await asyncio.sleep(0.1)
    assert [task.done() for task in tasks] == [True, True, False]
    tasks[2].cancel()


async def test_who_goes_away_is_forgotten() -> None:
    polls = LongPolls()
    task = await parked(polls)
    task.cancel()
    await asyncio.wait([task])
    assert polls.count == 0
    polls.arrived([arrival(5, 1)])


async def test_closing_sends_everybody_home_and_takes_nobody_in() -> None:
    polls = LongPolls()
    task = await parked(polls)
    polls.close()
    assert not await task
    assert not await polls.wait("t", 0, 5, None, 10_000)
