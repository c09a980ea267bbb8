"""How far behind a group is over all lite topics of a parent: for those who ask, and as a gauge."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from aerobee.broker.v1 import offset_pb2 as pb

from aerobee_broker.declared_metrics import CONSUMER_LAG_MESSAGES
from aerobee_broker.delivery import gauges
from aerobee_broker.delivery.lite import lag
from aerobee_broker.metrics import lag_labels
from support.broker.handlers import Handlers
from support.broker.harness import Begin, BrokerHarness
from support.lite.broker_client import (
    ADD,
    GROUP,
    PARENT,
    LiteConsumer,
    bind,
    make_parent,
    send_lite,
)
from support.observing.series import series_value


async def progress(harness: BrokerHarness, **fields: str) -> dict[tuple[str, int], int | None]:
    """(topic, queue id) → lag, None where it is not told."""
    request = pb.GetConsumeStatsRequest(consumer_group=GROUP, **fields)
    answer: pb.GetConsumeStatsResponse = await Handlers(harness)("GetConsumeStats", request)
    assert not any(each.HasField("consumer_offset") for each in answer.queues)
    return {
        (each.topic, each.queue_id): each.lag if each.HasField("lag") else None
        for each in answer.queues
    }


def gauge(harness: BrokerHarness) -> float | None:
    labels = dict(zip(CONSUMER_LAG_MESSAGES.labels, lag_labels(GROUP, PARENT), strict=True))
    value = series_value(harness.metrics.registry, "rocketmq_consumer_lag_messages", labels)
    assert value is None or isinstance(value, int)
    return value


async def test_each_queue_of_the_parent_has_its_lag(begin: Begin) -> None:
    """Before the group has received anything, and as it settles; also where nothing lies."""
    harness = await begin()
    await make_parent(harness, queues=3)
    await bind(harness)
    await send_lite(harness, "a", b"0", b"1")
    await send_lite(harness, "b", b"0")
    await send_lite(harness, "c", b"0", queue_id=1)
    assert await progress(harness, topic=PARENT) == {(PARENT, 0): 3, (PARENT, 1): 1, (PARENT, 2): 0}
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a", "c")
    got = await consumer.pop()
    assert (await progress(harness))[PARENT, 0] == 3  # on lease, and not settled
    await consumer.ack(got)
    assert await progress(harness, topic=PARENT) == {(PARENT, 0): 1, (PARENT, 1): 0, (PARENT, 2): 0}
    assert PARENT not in {topic for topic, _ in await progress(harness, topic="%RETRY%agents")}


async def test_what_has_expired_is_no_lag(begin: Begin) -> None:
    harness = await begin()
    await make_parent(harness, lite_topic_expiration="1")
    await bind(harness)
    await send_lite(harness, "a", b"0", b"1")
    await asyncio.sleep(61)
    await harness.broker.lite.ttl.round()
    assert (await progress(harness))[PARENT, 0] == 0


@pytest.mark.parametrize("seed", range(4))
async def test_the_lag_is_that_of_all_lite_topics(
    begin: Begin, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In slices of a few."""
    monkeypatch.setattr(lag, "SLICE", 3)
    rng, harness = random.Random(seed), await begin()
    await make_parent(harness)
    await bind(harness)
    consumer = LiteConsumer(harness)
    names = [f"n{number}" for number in range(20)]
    await consumer.sync(ADD, *names)
    left: Counter[int] = Counter()
    for _ in range(60):
        at = rng.randrange(len(names))
        await send_lite(harness, names[at], b"x", queue_id=at % 2)
        left[at % 2] += 1
        if rng.random() < 0.3:
            got = await consumer.pop(rng.randrange(1, 4))
            await consumer.ack(got)
            left.subtract(each.lease.queue_id for each in got)
    found = await progress(harness, topic=PARENT)
    assert found == {(PARENT, 0): left[0], (PARENT, 1): left[1]}
    await harness.broker.lite_gauges.measure()
    assert gauge(harness) == left.total()


async def test_many_lite_topics_are_looked_at_more_seldom(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many at most in a round, on average."""
    monkeypatch.setattr(gauges, "LITE_TOPICS_A_ROUND", 4)
    harness = await begin()
    await make_parent(harness)
    await bind(harness)
    for number in range(9):
        await send_lite(harness, f"n{number}", b"x")
    seen = []
    for _ in range(4):
        await harness.broker.lite_gauges.measure()
        seen.append(gauge(harness))
        await send_lite(harness, "n0", b"x")
    assert seen == [9, 9, 9, 12]


async def test_a_broker_that_drains_waits_for_lite_topics(begin: Begin) -> None:
    """For what was not received, and for what is on lease."""
    harness = await begin()
    await make_parent(harness)
    await bind(harness)
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a")
    await send_lite(harness, "a", b"0", b"1")
    await send_lite(harness, "b", b"0")
    got = await consumer.pop()
    remaining = await harness.broker.draining.remaining()
    assert (list(remaining.lags), remaining.in_flight) == ([(GROUP, PARENT, 3)], 2)
    assert remaining.unread_topics == {}
    await consumer.ack(got)
    await consumer.sync(ADD, "b")
    await consumer.ack(await consumer.pop())
    remaining = await harness.broker.draining.remaining()
    assert (list(remaining.lags), remaining.in_flight) == ([], 0)
