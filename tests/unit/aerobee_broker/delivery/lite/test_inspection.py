"""What lite topics hold and who gets them, as a broker tells it: it changes nothing."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from aerobee.broker.v1 import lite_pb2 as pb

from aerobee_broker.delivery.lite import inspection
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire.status import Code
from support.broker.handlers import Handlers
from support.broker.harness import Begin, BrokerHarness
from support.codes import raises_code
from support.lite.broker_client import (
    ADD,
    GROUP,
    PARENT,
    REPLACE,
    LiteConsumer,
    bind,
    make_parent,
    send_lite,
)


async def topics(harness: BrokerHarness, **fields: Any) -> pb.ListLiteTopicsResponse:
    request = pb.ListLiteTopicsRequest(parent=PARENT, **fields)
    answer: pb.ListLiteTopicsResponse = await Handlers(harness)("ListLiteTopics", request)
    return answer


async def clients(harness: BrokerHarness, **fields: Any) -> list[pb.LiteClientInfo]:
    request = pb.ListLiteClientsRequest(parent=PARENT, **fields)
    return list((await Handlers(harness)("ListLiteClients", request)).clients)


def counts(answer: pb.ListLiteTopicsResponse) -> list[tuple[str, int, int]]:
    return [(each.lite_topic, each.messages, each.lag) for each in answer.lite_topics]


async def test_the_lag_is_what_a_group_has_not_settled(begin: Begin) -> None:
    """Also before it has received anything; a message on lease is not settled."""
    harness = await begin()
    await make_parent(harness)
    await bind(harness)
    consumer = LiteConsumer(harness)
    await send_lite(harness, "a", b"a0", b"a1", b"a2")
    await send_lite(harness, "b", b"b0", queue_id=1)
    assert counts(await topics(harness)) == [("a", 3, 0), ("b", 1, 0)]
    assert counts(await topics(harness, consumer_group=GROUP)) == [("a", 3, 3), ("b", 1, 1)]
    await consumer.sync(ADD, "a")
    got = await consumer.pop(2)
    assert counts(await topics(harness, consumer_group=GROUP)) == [("a", 3, 3), ("b", 1, 1)]
    assert await consumer.ack(got) == [0, 0]
    answer = await topics(harness, consumer_group=GROUP)
    assert counts(answer) == [("a", 3, 1), ("b", 1, 1)]
    assert [(each.queue_id, each.subscribers) for each in answer.lite_topics] == [(0, 1), (1, 0)]
    assert await consumer.ack(await consumer.pop()) == [0]
    answer = await topics(harness, consumer_group=GROUP)
    assert (counts(answer), answer.total) == ([("b", 1, 1), ("a", 3, 0)], 2)
    assert counts(await topics(harness)) == [("a", 3, 0), ("b", 1, 0)]  # consumed, and stored


async def test_times_are_those_of_what_waits(begin: Begin) -> None:
    harness = await begin()
    await make_parent(harness)
    await bind(harness)
    consumer = LiteConsumer(harness)
    stored: list[int] = []
    for body in (b"0", b"1", b"2"):
        stored.append(harness.clock.now_ms())
        await send_lite(harness, "a", body)
        await asyncio.sleep(1)
    await consumer.sync(ADD, "a")
    await consumer.ack(await consumer.pop(1))
    for fields, oldest in (({}, stored[0]), ({"consumer_group": GROUP}, stored[1])):
        (found,) = (await topics(harness, **fields)).lite_topics
        assert (found.oldest_timestamp_ms, found.newest_timestamp_ms) == (oldest, stored[2])


@pytest.mark.parametrize("limit", [1, 7, 40])
async def test_the_first_are_the_largest(
    begin: Begin, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any numbers, in slices of a few, against a count of all."""
    monkeypatch.setattr(inspection, "SLICE", 3)
    rng = random.Random(limit)
    harness = await begin()
    await make_parent(harness)
    await bind(harness)
    consumer = LiteConsumer(harness)
    sent = Counter(f"s{rng.randrange(30)}" for _ in range(120))
    for name, count in sent.items():
        await send_lite(harness, name, *[b"x"] * count)
    await consumer.sync(ADD, *rng.sample(sorted(sent), 12))
    settled: Counter[str] = Counter()
    for _ in range(9):
        got = await consumer.pop(3)
        settled.update(each.lite_topic for each in got)
        await consumer.ack(got)
    assert sum(settled.values()) > 10
    answer = await topics(harness, limit=limit)
    sizes = [each.messages for each in answer.lite_topics]
    assert sizes == sorted(sent.values(), reverse=True)[:limit]
    assert all(sent[each.lite_topic] == each.messages for each in answer.lite_topics)
    assert answer.total == len(sent)
    answer = await topics(harness, limit=limit, consumer_group=GROUP)
    lags = [each.lag for each in answer.lite_topics]
    assert lags == sorted((sent - settled).values(), reverse=True)[:limit] + [0] * (
        min(limit, len(sent)) - min(limit, len(sent - settled))
    )


async def test_one_lite_topic_by_its_name(begin: Begin) -> None:
    harness = await begin()
    await make_parent(harness)
    await send_lite(harness, "a", b"0")
    await send_lite(harness, "ab", b"0")
    answer = await topics(harness, lite_topic="a")
    assert (counts(answer), answer.total) == ([("a", 1, 0)], 1)
    answer = await topics(harness, lite_topic="none")
    assert (counts(answer), answer.total) == ([], 0)


async def test_clients_with_what_they_subscribe_to(begin: Begin) -> None:
    harness = await begin()
    await make_parent(harness)
    await bind(harness)
    await bind(harness, "watchers", wildcard="true")
    await LiteConsumer(harness, "c1").sync(ADD, "a", "b")
    await asyncio.sleep(2)
    await LiteConsumer(harness, "c2").sync(ADD, "b")
    await LiteConsumer(harness, "w", "watchers").sync(REPLACE)
    await send_lite(harness, "a", b"0")
    found = {each.client_id: each for each in await clients(harness)}
    assert {name: each.consumer_group for name, each in found.items()} == {
        "c1": GROUP, "c2": GROUP, "w": "watchers"
    }  # fmt: skip
    assert [(found[name].lite_topics, found[name].ready) for name in ("c1", "c2", "w")] == [
        (2, 1), (1, 0), (0, 1)
    ]  # fmt: skip
    assert found["w"].wildcard and not found["c1"].wildcard
    assert found["c1"].silent_ms - found["c2"].silent_ms == 2_000
    assert {each.client_id for each in await clients(harness, lite_topic="a")} == {"c1", "w"}
    (a,) = (await topics(harness, lite_topic="a")).lite_topics
    assert a.subscribers == 2


async def test_what_cannot_be_listed_is_refused(begin: Begin) -> None:
    harness = await begin()
    with raises_code(Code.TOPIC_NOT_EXIST):
        await topics(harness)
    with raises_code(Code.TOPIC_NOT_EXIST):
        await clients(harness)
    await make_parent(harness)
    await harness.group("free")
    for fields, code in (
        ({"consumer_group": "free"}, Code.INVALID_PARAMETER),
        ({"consumer_group": "none"}, Code.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"limit": -1}, Code.INVALID_PARAMETER),
        ({"limit": 1_001}, Code.INVALID_PARAMETER),
    ):
        with raises_code(code):
            await topics(harness, **fields)
    await harness.broker.topics.put(TopicConfig("plain", 1, 1))
    for listed, request in (
        ("ListLiteTopics", pb.ListLiteTopicsRequest(parent="plain")),
        ("ListLiteClients", pb.ListLiteClientsRequest(parent="plain")),
    ):
        with raises_code(Code.INVALID_PARAMETER):
            await Handlers(harness)(listed, request)
