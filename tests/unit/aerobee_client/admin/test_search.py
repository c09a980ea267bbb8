"""A search over two brokers: merged, continued, with a broker that does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.metadata.topics import TopicConfig
from aerobee_client import AsyncAdminClient, Sql
from aerobee_client.admin.descriptions import QueueRange
from aerobee_wire.status import Code, MqError
from support.broker.harness import BrokerHarness
from support.broker.in_process import InProcess
from support.client.memory import NAMESRV
from support.clock.manual_clock import ManualClock
from support.clock.polling import until
from support.codes import raises_code


class Pair:
    """Two brokers with the topic "t", whose clock the test sets."""

    def __init__(self, a: BrokerHarness, b: BrokerHarness, clock: ManualClock) -> None:
        self.brokers, self.clock = {"a": a, "b": b}, clock
        self.transport = InProcess(self.brokers)
        self.admin = AsyncAdminClient(NAMESRV, transport=self.transport)

    async def send(self, count: int) -> list[bytes]:
        """Send to both brokers in turn, a second apart."""
        bodies = [b"%d" % number for number in range(count)]
        for number, body in enumerate(bodies):
            self.clock.advance(1_000)
            keys = {"KEYS": "odd"} if number % 2 else {}
            broker = self.brokers["ab"[number % 2]]
            await broker.send("t", body, queue_id=number // 2 % 2, properties=keys)
        return bodies

    async def bodies(self, **given: Any) -> list[bytes]:
        return [each.body for each in (await self.admin.search_messages("t", **given)).messages]


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    clock = ManualClock()
    a = await BrokerHarness.begin(tmp_path / "a", clock=clock, brokerName="a")
    b = await BrokerHarness.begin(tmp_path / "b", clock=clock, brokerName="b")
    for broker in (a, b):
        await broker.broker.topics.put(TopicConfig("t", 2, 2))
    yield Pair(a, b, clock)
    for broker in (a, b):
        await broker.end()


async def test_messages_of_two_brokers_are_merged_by_store_time(pair: Pair) -> None:
    sent = await pair.send(10)
    assert await pair.bodies() == sent
    assert await pair.bodies(newest_first=True, max_messages=3) == sent[:-4:-1]
    assert await pair.bodies(key="odd") == sent[1::2]
    assert await pair.bodies(expression=Sql("KEYS = 'odd'")) == sent[1::2]
    assert await pair.bodies(text="7") == [b"7"]


@pytest.mark.parametrize("newest_first", [False, True])
async def test_a_search_continues_with_what_it_left(pair: Pair, newest_first: bool) -> None:
    sent = await pair.send(23)
    read: list[bytes] = []
    result = await pair.admin.search_messages("t", newest_first=newest_first, max_messages=5)
    read += [each.body for each in result.messages]
    while not result.is_complete:
        result = await pair.admin.search_messages(
            "t", newest_first=newest_first, max_messages=5, ranges=result.left
        )
        read += [each.body for each in result.messages]
    assert read == (sent[::-1] if newest_first else sent)


async def test_only_the_given_ranges_are_searched(pair: Pair) -> None:
    await pair.send(8)
    assert await pair.bodies(ranges=[QueueRange("b", 0)]) == [b"1", b"5"]
    assert await pair.bodies(ranges=[QueueRange("a", 1, 1, 2)]) == [b"6"]
    with raises_code(Code.INVALID_PARAMETER):
        await pair.bodies(ranges=[QueueRange("c", 0)])


async def test_a_broker_that_does_not_answer_is_named(pair: Pair) -> None:
    sent = await pair.send(4)
    pair.transport.away.add("b")
    result = await pair.admin.search_messages("t")
    assert [each.body for each in result.messages] == sent[::2]
    assert list(result.silent) == ["b"] and not result.is_complete
    pair.transport.away.add("a")
    with raises_code(Code.BROKER_UNREACHABLE):
        await pair.admin.search_messages("t")


async def test_a_broker_that_the_name_server_lost_is_named(pair: Pair) -> None:
    await pair.send(2)
    pair.transport.gone.add("c")
    assert list((await pair.admin.search_messages("t")).silent) == ["c"]
    assert list((await pair.admin.search_messages("t", ranges=[QueueRange("a", 0)])).silent) == []
    with raises_code(Code.BROKER_UNREACHABLE):
        await pair.admin.search_messages("t", ranges=[QueueRange("c", 0)])


async def test_a_broker_that_leaves_between_two_looks_at_the_route_is_named(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges = (await pair.admin.search_messages("t")).ends
    answer = pair.transport._namesrv

    def answer_and_lose_b(rpc: Any, request: Any) -> Any:
        response = answer(rpc, request)
        for brokers in (pair.transport.away, pair.transport.gone, pair.transport.unregistered):
            brokers.add("b")
        return response

    monkeypatch.setattr(pair.transport, "_namesrv", answer_and_lose_b)
    assert list((await pair.admin.search_messages("t", ranges=ranges)).silent) == ["b"]


async def test_messages_are_followed_as_they_arrive(pair: Pair) -> None:
    await pair.send(2)
    ranges = (await pair.admin.search_messages("t")).ends
    messages = pair.admin.follow_messages("t", key="odd", ranges=ranges)
    async with aclosing(messages) as arriving:
        await pair.send(4)
        assert [(await anext(arriving)).body for _ in range(2)] == [b"1", b"3"]


async def test_a_broker_that_cannot_be_followed_is_named(pair: Pair) -> None:
    pair.transport.gone.add("c")
    silent: list[MqError] = []
    messages = pair.admin.follow_messages("t", on_error=silent.append)
    async with aclosing(messages) as arriving:
        first = asyncio.ensure_future(anext(arriving))
        polls = [broker.broker.polls for broker in pair.brokers.values()]
        await until(lambda: all(each.parked_pulls for each in polls))
        sent = await pair.send(1)
        assert (await first).body == sent[0]
    assert [error.code for error in silent] == [Code.BROKER_UNREACHABLE]


async def test_the_last_broker_that_ends_a_search_ends_the_following(pair: Pair) -> None:
    ranges = (await pair.admin.search_messages("t")).ends
    silent: list[MqError] = []
    arriving = pair.admin.follow_messages("t", ranges=ranges, on_error=silent.append)
    await pair.send(1)
    assert (await anext(arriving)).body == b"0"
    for broker in pair.brokers.values():
        broker.broker.end_long_calls()
    with raises_code(Code.BROKER_UNREACHABLE):
        await anext(arriving)
    assert len(silent) == 1


async def test_an_invalid_search_is_refused(pair: Pair) -> None:
    for given in ({"max_messages": 0}, {"max_messages": 10_001}, {"begin_timestamp_ms": -1}):
        with raises_code(Code.INVALID_PARAMETER):
            await pair.bodies(**given)
    with raises_code(Code.SUBSCRIPTION_PARSE_FAILED):
        await pair.bodies(expression=Sql("KEYS ="))
