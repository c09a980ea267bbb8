"""Search: order, conditions, bounds, limits and where it stopped; slices that block no call."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from typing import Any

import pytest

from aerobee_broker.delivery.search.matching import Conditions
from aerobee_broker.delivery.search.pace import Pace
from aerobee_broker.delivery.search.search import STEP_BYTES, QueueRange, Request, Search, Stop
from aerobee_broker.filter.filter import compile_filter
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire.compression import SYS_FLAGS, ZLIB, decompress
from aerobee_wire.record import Record
from aerobee_wire.status import Code
from support.broker.harness import Begin, BrokerHarness
from support.codes import raises_code

ALL = compile_filter("TAG", "*")


@pytest.fixture
async def harness(begin: Begin) -> BrokerHarness:
    harness = await begin()
    await harness.broker.topics.put(TopicConfig("t", 4, 4))
    return harness


def make(harness: BrokerHarness, **given: Any) -> Search:
    names = ("filter", "key", "text", "begin_ms", "end_ms")
    conditions = {name: given.pop(name) for name in names if name in given}
    request = Request("t", Conditions(**{"filter": ALL, **conditions}), **given)
    return harness.broker.consuming.searches.search(request)


async def records_of(search: Search) -> list[Record]:
    return [record async for step in search.run() for record in step]


async def found(harness: BrokerHarness, **given: Any) -> list[bytes]:
    return [record.body for record in await records_of(make(harness, **given))]


async def fill(harness: BrokerHarness, count: int, queues: Sequence[int] = (0, 1, 2, 3)) -> None:
    """Send the bodies 0, 1, … to the queues in turn."""
    for number in range(count):
        await harness.send("t", b"%d" % number, queue_id=queues[number % len(queues)])


async def test_messages_of_all_queues_come_in_the_order_of_their_arrival(
    harness: BrokerHarness,
) -> None:
    await fill(harness, 50)
    expected = [b"%d" % number for number in range(50)]
    assert await found(harness) == expected
    assert await found(harness, newest_first=True) == expected[::-1]


async def test_a_queue_that_was_filled_last_does_not_come_first(harness: BrokerHarness) -> None:
    await fill(harness, 600, queues=(1,))
    await harness.send("t", b"last", queue_id=0)
    assert (await found(harness, max_messages=10_000))[-1] == b"last"
    assert await found(harness, newest_first=True, max_messages=1) == [b"last"]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"filter": compile_filter("TAG", "b")}, [b"two"]),
        ({"filter": compile_filter("SQL92", "region = 'eu'")}, [b"one"]),
        ({"key": "k2"}, [b"two"]),
        ({"key": "U1"}, [b"one"]),
        ({"key": "k"}, []),
        ({"text": b"wo"}, [b"two"]),
        ({"text": b"packed"}, [b"packed " * 20]),
        ({"filter": compile_filter("TAG", "a"), "text": b"wo"}, []),
        ({"queues": {1: QueueRange()}}, [b"two"]),
        ({"queues": {0: QueueRange(1)}}, [b"packed " * 20]),
        ({"queues": {0: QueueRange(0, 1)}}, [b"one"]),
        ({"queues": {1: QueueRange()}, "key": "k1"}, []),
    ],
)
async def test_a_message_must_meet_all_conditions(
    harness: BrokerHarness, conditions: dict[str, Any], expected: list[bytes]
) -> None:
    one = {"TAGS": "a", "KEYS": "k1 x", "UNIQ_KEY": "U1", "region": "eu"}
    await harness.send("t", b"one", properties=one)
    await harness.send("t", b"two", queue_id=1, properties={"TAGS": "b", "KEYS": "k2"})
    packed = zlib.compress(b"packed " * 20)
    await harness.send("t", packed, sys_flag=SYS_FLAGS[ZLIB])
    records = await records_of(make(harness, **conditions))
    bodies = [zlib.decompress(each.body) if each.sys_flag else each.body for each in records]
    assert bodies == expected


async def test_a_key_is_found_without_an_index_too(begin: Begin) -> None:
    harness = await begin(messageIndexEnable=False)
    await harness.broker.topics.put(TopicConfig("t", 1, 1))
    await harness.send("t", b"a", b"b", properties={"KEYS": "k1"})
    search = make(harness, key="k1")
    assert [record.body for record in await records_of(search)] == [b"a", b"b"]
    assert search.scanned == 2


async def test_the_index_finds_a_key_in_either_order(harness: BrokerHarness) -> None:
    await fill(harness, 20)
    for number in range(3):
        await harness.send("t", b"k%d" % number, queue_id=number, properties={"KEYS": "k"})
    search = make(harness, key="k")
    assert [record.body for record in await records_of(search)] == [b"k0", b"k1", b"k2"]
    assert (search.scanned, search.remaining, search.positions()) == (3, -1, [])
    assert await found(harness, key="k", newest_first=True, max_messages=2) == [b"k2", b"k1"]


async def test_times_are_bounds(harness: BrokerHarness) -> None:
    times = []
    for number in range(6):
        times.append(harness.clock.now_ms())
        await harness.send("t", b"%d" % number, queue_id=number % 2)
        await asyncio.sleep(10)
    assert await found(harness, begin_ms=times[2], end_ms=times[4]) == [b"2", b"3", b"4"]
    assert await found(harness, begin_ms=times[5] + 1) == []


@pytest.mark.parametrize("newest_first", [False, True])
async def test_a_search_that_stopped_continues_where_it_stopped(
    harness: BrokerHarness, newest_first: bool
) -> None:
    await fill(harness, 100)
    queues: dict[int, QueueRange] = {}
    read: list[bytes] = []
    for _ in range(11):
        search = make(harness, queues=queues, newest_first=newest_first, max_messages=10)
        read += [record.body for record in await records_of(search)]
        queues = {each.queue_id: QueueRange(each.begin, each.end) for each in search.positions()}
        if search.stop is Stop.COMPLETE:
            break
        assert search.stop is Stop.MESSAGE_LIMIT
    expected = [b"%d" % number for number in range(100)]
    assert read == (expected[::-1] if newest_first else expected)


async def test_an_end_that_is_reached_with_the_last_message_is_complete(
    harness: BrokerHarness,
) -> None:
    await fill(harness, 4)
    search = make(harness, max_messages=4)
    assert len(await records_of(search)) == 4
    assert search.stop is Stop.COMPLETE


async def test_a_limited_search_says_what_it_has_left(harness: BrokerHarness) -> None:
    await fill(harness, 1_000)
    search = make(harness, text=b"nowhere", max_scanned=300)
    assert await records_of(search) == []
    assert (search.stop, search.scanned, search.remaining) == (Stop.SCAN_LIMIT, 300, 700)
    assert sum(each.end - each.begin for each in search.positions()) == 700


async def test_bytes_are_a_limit_and_the_first_message_exceeds_it(harness: BrokerHarness) -> None:
    await harness.send("t", b"x" * 1_000, b"y")
    search = make(harness, max_bytes=100)
    assert [len(record.body) for record in await records_of(search)] == [1_000]
    assert search.stop is Stop.BYTE_LIMIT


async def test_a_damaged_message_is_counted_and_left_out(harness: BrokerHarness) -> None:
    await harness.send("t", b"whole", b"damaged-one", b"whole too")
    log = harness.store.path / "commitlog" / ("0" * 20)
    log.write_bytes(log.read_bytes().replace(b"damaged-one", b"damagedXone", 1))
    search = make(harness)
    assert [record.body for record in await records_of(search)] == [b"whole", b"whole too"]
    assert search.unreadable == 1


async def test_a_body_that_cannot_be_decompressed_is_counted(harness: BrokerHarness) -> None:
    await harness.send("t", b"not zlib", sys_flag=SYS_FLAGS[ZLIB])
    search = make(harness, text=b"zlib")
    assert (await records_of(search), search.unreadable) == ([], 1)


async def test_a_step_examines_a_bounded_number_of_messages(harness: BrokerHarness) -> None:
    await fill(harness, 2_000, queues=(0,))
    search = make(harness, text=b"nowhere")
    before = 0
    async for _ in search.run():
        assert search.scanned - before <= 256
        before = search.scanned
    assert before == 2_000


@pytest.mark.parametrize("key", ["", "k"], ids=["read", "indexed"])
async def test_a_step_decompresses_a_bounded_amount(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Small records may have large bodies."""
    sizes: list[int] = []

    def counted(*given: Any) -> bytes:
        body = decompress(*given)
        sizes.append(len(body))
        return body

    monkeypatch.setattr("aerobee_broker.delivery.search.matching.decompress", counted)
    body = zlib.compress(b"x" * 500_000)
    message = {"queue_id": 0, "sys_flag": SYS_FLAGS[ZLIB], "properties": {"KEYS": "k"}}
    await harness.send("t", *[body] * 30, **message)
    search = make(harness, text=b"x", key=key)
    records = 0
    async for step in search.run():
        records += len(step)
        assert sum(sizes) < STEP_BYTES + 500_000
        sizes.clear()
        if not key:
            (left,) = [each for each in search.positions() if each.queue_id == 0]
            assert left.begin == records, "a search that resumes here skips no message"
    assert records == 30


async def test_other_calls_run_between_the_steps(harness: BrokerHarness) -> None:
    await fill(harness, 2_000, queues=(0,))
    search = make(harness, text=b"nowhere")
    task = asyncio.ensure_future(records_of(search))
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 2_000 // 256


async def test_a_following_search_returns_messages_as_they_arrive(harness: BrokerHarness) -> None:
    await fill(harness, 3)
    search = make(harness, follow=True)
    arrived: list[bytes] = []

    async def follow() -> None:
        async for step in search.run():
            arrived.extend(record.body for record in step)

    task = asyncio.ensure_future(follow())
    await asyncio.sleep(1)
    assert arrived == [b"0", b"1", b"2"]
    await harness.send("t", b"new", queue_id=3)
    await asyncio.sleep(1)
    assert arrived[3:] == [b"new"]
    await asyncio.sleep(100)  # longer than one wait
    await harness.send("t", b"newer", queue_id=1)
    await asyncio.sleep(1)
    assert arrived[4:] == [b"newer"]
    harness.broker.end_long_calls()
    await task
    assert search.stop is Stop.BROKER_STOPS


async def test_a_cancelled_follower_leaves_no_parked_pull(harness: BrokerHarness) -> None:
    task = asyncio.ensure_future(records_of(make(harness, follow=True)))
    await asyncio.sleep(1)
    assert harness.broker.polls.parked_pulls == 4
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert harness.broker.polls.parked_pulls == 0


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"queues": {4: QueueRange()}}, Code.INVALID_PARAMETER),
        ({"queues": {0: QueueRange(3, 1)}}, Code.INVALID_PARAMETER),
        ({"max_messages": 10_001}, Code.INVALID_PARAMETER),
        ({"max_scanned": -1}, Code.INVALID_PARAMETER),
        ({"follow": True, "newest_first": True}, Code.INVALID_PARAMETER),
    ],
)
async def test_an_invalid_search_is_refused(
    harness: BrokerHarness, given: dict[str, Any], code: Code
) -> None:
    with raises_code(code):
        await records_of(make(harness, **given))


async def test_sql_is_refused_where_the_broker_does_not_filter_by_it(begin: Begin) -> None:
    harness = await begin(enablePropertyFilter=False)
    await harness.broker.topics.put(TopicConfig("t", 1, 1))
    with raises_code(Code.SUBSCRIPTION_PARSE_FAILED):
        await records_of(make(harness, filter=compile_filter("SQL92", "a = 1")))


async def test_too_many_searches_are_refused_and_ended_ones_do_not_count() -> None:
    pace = Pace(max_searches=1)
    with pace.search(), raises_code(Code.FLOW_CONTROL), pace.search():
        pass
    with pace.search():
        pass
