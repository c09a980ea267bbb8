"""What the gauges show of groups, leases and delayed messages; what is unknown is missing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aerobee_broker import declared_metrics as declared
from aerobee_broker.delivery.pull.offsets import QueueOffset
from aerobee_broker.delivery.pull.reading import PullRequest
from aerobee_broker.filter.filter import compile_filter
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.metrics import STORAGE, lag_labels
from aerobee_broker.registry.clients import Client
from aerobee_broker.registry.consumers import Consumer, Subscription
from aerobee_chassis.metrics.series import Distribution, Labels, Metric
from support.broker.delayed import timed
from support.broker.harness import Begin, BrokerHarness
from support.broker.pop_consumer import PopConsumer

LAGS = (
    declared.CONSUMER_LAG_MESSAGES,
    declared.CONSUMER_INFLIGHT_MESSAGES,
    declared.CONSUMER_READY_MESSAGES,
)
AGES = (declared.CONSUMER_LAG_LATENCY, declared.CONSUMER_QUEUEING_LATENCY)


def values(harness: BrokerHarness, metric: Metric) -> dict[Labels, object]:
    found = dict(harness.metrics.registry.collect())
    return dict(found.get(metric, []))


async def measured(
    harness: BrokerHarness, group: str, topic: str, metrics: tuple[Metric, ...]
) -> list[object]:
    await harness.broker.consumer_gauges.measure()
    return [values(harness, metric).get(lag_labels(group, topic)) for metric in metrics]


def member(harness: BrokerHarness, *topics: str) -> None:
    tag = compile_filter("TAG", "*")
    consumer = Consumer(subscriptions={topic: Subscription(topic, tag) for topic in topics})
    harness.broker.clients.heartbeat(Client("c", consumers={"g": consumer}, language="PYTHON"))


async def test_what_a_member_has_pulled_is_in_flight_until_it_is_committed(begin: Begin) -> None:
    harness = await begin()
    await harness.broker.topics.put(TopicConfig("t", 2, 2))
    await harness.group("g")
    member(harness, "t")
    for body in (b"a", b"b", b"c"):
        await harness.send("t", body)
        await asyncio.sleep(10)
    pull = PullRequest("g", "t", 0, 0, client_id="c", max_messages=2)
    await harness.broker.consuming.pull.pull(pull)
    harness.broker.consuming.offset_queries.update("g", [QueueOffset("t", 0, 1)])
    assert await measured(harness, "g", "t", LAGS) == [2, 1, 1]
    assert await measured(harness, "g", "t", AGES) == [20_000, 10_000]
    queues = {labels[2]: lag for labels, lag in values(harness, declared.QUEUE_LAG).items()}
    assert queues == {"0": 2, "1": 0}
    harness.broker.consuming.offset_queries.update("g", [QueueOffset("t", 0, 3)])
    assert await measured(harness, "g", "t", (*LAGS, *AGES)) == [0, 0, 0, 0, 0]


async def pulled(harness: BrokerHarness, count: int) -> None:
    await harness.broker.consuming.pull.pull(
        PullRequest("g", "t", 0, 0, client_id="c", max_messages=count)
    )


@pytest.fixture
async def pulling(begin: Begin) -> BrokerHarness:
    """Return a broker whose group g has pulled and committed 2 messages."""
    harness = await begin()
    await harness.broker.topics.put(TopicConfig("t", 1, 1))
    await harness.group("g")
    member(harness, "t")
    await harness.send("t", b"a")
    await harness.send("t", b"b")
    await pulled(harness, 2)
    harness.broker.consuming.offset_queries.update("g", [QueueOffset("t", 0, 2)])
    return harness


async def test_nothing_is_in_flight_after_a_reset_until_the_next_pull(
    pulling: BrokerHarness,
) -> None:
    await pulling.broker.consuming.offset_queries.reset("g", "t", [], queue_offset=0)
    assert await measured(pulling, "g", "t", LAGS) == [2, 0, 2]
    await pulled(pulling, 1)  # gets the new offset
    await pulled(pulling, 1)
    assert await measured(pulling, "g", "t", LAGS) == [2, 1, 1]


async def test_nothing_is_in_flight_in_a_topic_that_is_created_again(
    pulling: BrokerHarness,
) -> None:
    await pulling.broker.administration.delete_topic("t")
    await pulling.broker.topics.put(TopicConfig("t", 1, 1))
    for body in (b"c", b"d", b"e"):
        await pulling.send("t", body)
    pulling.broker.consuming.offset_queries.update("g", [QueueOffset("t", 0, 0)])
    assert await measured(pulling, "g", "t", LAGS) == [3, 0, 3]


async def test_nothing_is_in_flight_in_a_group_that_is_created_again(
    pulling: BrokerHarness,
) -> None:
    await pulling.broker.administration.delete_group("g", remove_offsets=True)
    await pulling.group("g")
    pulling.broker.consuming.offset_queries.update("g", [QueueOffset("t", 0, 0)])
    assert await measured(pulling, "g", "t", LAGS) == [2, 0, 2]


async def test_leased_messages_are_in_flight(begin: Begin) -> None:
    harness = await begin()
    consumer = PopConsumer(harness)
    await harness.broker.topics.put(TopicConfig(consumer.topic, 1, 1))
    await harness.group(consumer.group)
    await consumer.put(b"a", b"b", b"c")
    await consumer.pop(2, invisible_ms=10_000)
    assert await measured(harness, consumer.group, consumer.topic, LAGS) == [3, 2, 1]
    await asyncio.sleep(11)
    assert await measured(harness, consumer.group, consumer.topic, LAGS) == [3, 0, 3]
    retries = values(harness, declared.POP_REVIVE_RETRIES)
    assert retries == {(consumer.group, consumer.topic, "PUT_OK"): 2}
    harness.broker.gauges.measure(6)
    assert values(harness, declared.POP_CHECKPOINTS) == {(): 2}
    assert values(harness, declared.POP_REVIVE_LAG) == {(): 0}


async def test_an_age_that_cannot_be_read_is_missing(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = await begin()
    await harness.broker.topics.put(TopicConfig("t", 1, 1))
    await harness.group("g")
    await harness.send("t", b"a")
    harness.broker.consuming.offset_queries.update("g", [QueueOffset("t", 0, 0)])

    def unreadable(*place: object) -> int:
        raise OSError(5, "input/output error")

    monkeypatch.setattr(harness.store, "store_timestamp", unreadable)
    assert await measured(harness, "g", "t", (*LAGS, *AGES)) == [1, 0, 1, None, None]


async def test_the_series_of_a_topic_deleted_during_a_measurement_do_not_come_back(
    begin: Begin,
) -> None:
    harness = await begin()
    await harness.group("g")
    await harness.broker.topics.put(TopicConfig("t", 1, 1))
    await harness.send("t", b"a")
    harness.broker.consuming.offset_queries.update("g", [QueueOffset("t", 0, 0)])
    measuring = asyncio.create_task(measured(harness, "g", "t", LAGS))
    await harness.broker.administration.delete_topic("t")
    assert await measuring == [None, None, None]


async def test_timers_are_counted_and_by_how_long_they_wait(begin: Begin) -> None:
    harness = await begin()
    await harness.broker.topics.put(TopicConfig("t", 1, 1))
    for delay_ms in (1_000, 30_000, 3_000_000, 80_000_000):
        await timed(harness, b"a", delay_ms)
    await asyncio.sleep(2)
    await harness.broker.consumer_gauges.measure()
    snapshot = values(harness, declared.TIMER_SNAPSHOT)
    assert {labels[0]: count for labels, count in snapshot.items() if count} == {
        "60": 1,
        "3600": 1,
        "86400": 1,
    }
    assert values(harness, declared.TIMER_ENQUEUE_TOTAL) == {("t", *STORAGE): 4}
    assert values(harness, declared.TIMER_DEQUEUE_TOTAL) == {("t", *STORAGE): 1}
    delays = values(harness, declared.DELAY_MESSAGE_LATENCY)["t", *STORAGE]
    assert isinstance(delays, Distribution) and delays.counts == [2, 0, 1, 0, 1, 0, 0]
    harness.broker.gauges.measure(6)
    assert values(harness, declared.TIMER_DEQUEUE_LAG) == {STORAGE: 0}
    assert values(harness, declared.TIMER_ENQUEUE_LAG) == {STORAGE: 0}


async def test_clients_are_counted_by_sdk(begin: Begin) -> None:
    harness = await begin()
    await harness.group("g")
    member(harness, "t")
    harness.broker.gauges.measure(6)
    consumers = values(harness, declared.CONSUMER_CONNECTIONS)
    assert consumers == {("g", "python", "unknown", "push", "grpc", "false"): 1}
    assert values(harness, declared.GROUP_MEMBERS)["g",] == 1
    await harness.broker.gauges.clear()
    assert values(harness, declared.CONSUMER_CONNECTIONS) == {}


@pytest.mark.parametrize(("topics", "queues"), [(1, 60), (20, 3)])
async def test_other_work_runs_after_a_few_reads_of_a_measurement(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, topics: int, queues: int
) -> None:
    harness = await begin()
    await harness.group("g")
    offsets, tables = harness.broker.consuming.offset_queries, harness.tables
    for topic in (f"t{number}" for number in range(topics)):
        tables.topics.put(TopicConfig(topic, queues, queues))
        for queue_id in range(queues):
            await harness.send(topic, b"a", queue_id=queue_id)
        offsets.update("g", [QueueOffset(topic, queue_id, 0) for queue_id in range(queues)])
    reads, read = 0, harness.store.store_timestamp

    def counted(*place: Any) -> int:
        nonlocal reads
        reads += 1
        return read(*place)

    monkeypatch.setattr(harness.store, "store_timestamp", counted)
    measuring = asyncio.create_task(harness.broker.consumer_gauges.measure())
    most = total = 0
    while not measuring.done():
        await asyncio.sleep(0)
        most, total, reads = max(most, reads), total + reads, 0
    assert total == 2 * topics * queues
    assert most <= 16
