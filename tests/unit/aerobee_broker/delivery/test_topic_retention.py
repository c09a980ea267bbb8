"""A topic with a retention time of its own: what its groups get, what readers and figures show."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_broker.delivery.pull.offsets import QueueOffset
from aerobee_broker.delivery.pull.reading import PullRequest
from aerobee_broker.delivery.tracking.state import Place, State
from aerobee_broker.filter.filter import compile_filter
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.store.messages import ReadStatus
from aerobee_broker.store.options import HOUR_MS
from aerobee_wire.topics import retry_topic
from support.broker.harness import Begin, BrokerHarness
from support.broker.pop_consumer import GROUP, TOPIC, PopConsumer
from support.broker.pop_restarts import copy_store

LONG = "archive"


def limited(topic: str = TOPIC, hours: int = 1) -> TopicConfig:
    return TopicConfig(topic, 1, 1, attributes={"reserve.time": str(hours)})


@pytest.fixture
async def harness(begin: Begin) -> BrokerHarness:
    harness = await begin(deleteWhen="00")
    await harness.broker.topics.put(limited())
    await harness.group(GROUP)
    return harness


async def pass_time(harness: BrokerHarness, hours: float) -> None:
    await asyncio.sleep(hours * 3_600)
    upkeep(harness)


def upkeep(harness: BrokerHarness) -> None:
    now_ms = harness.clock.now_ms()
    harness.broker.topic_retention.refresh(now_ms)
    harness.store.maintain(now_ms)


async def half_expired(harness: BrokerHarness) -> None:
    """Queue offsets 0 and 1 have expired, 2 and 3 have not."""
    for number in range(4):
        body = b"%d" % number
        await harness.send(TOPIC, body, properties={"UNIQ_KEY": f"id{number}", "KEYS": "k"})
        if number == 1:
            await pass_time(harness, 0.6)
    await pass_time(harness, 0.6)


async def test_group_behind_the_minimum_offset_is_moved_up_as_after_a_deletion(
    harness: BrokerHarness,
) -> None:
    await half_expired(harness)
    everything = compile_filter("TAG", "*")
    pull = PullRequest(GROUP, TOPIC, 0, 0, max_messages=32, max_bytes=1_000, filter=everything)
    result, _ = await harness.broker.consuming.pull.pull(pull)
    assert (result.status, result.next_begin_offset) == (ReadStatus.OFFSET_TOO_SMALL, 2)
    assert [each.body for each in await harness.read(TOPIC, 0, 2)] == [b"2", b"3"]


async def test_pop_delivers_what_has_not_expired_also_after_a_crash(
    harness: BrokerHarness, begin: Begin
) -> None:
    consumer = PopConsumer(harness)
    await consumer.put(b"early", b"earlier lease")
    [early, leased] = await consumer.pop(invisible_ms=2 * HOUR_MS)
    await pass_time(harness, 0.6)
    await consumer.put(b"late")
    await pass_time(harness, 0.6)
    harness = consumer.harness = await begin(copy_store(harness))
    assert harness.store.min_offset(TOPIC, 0) == 2
    assert [each.body for each in await consumer.pop()] == [b"late"]
    await asyncio.sleep(2 * 3_600)
    upkeep(harness)
    assert await consumer.pop() == []
    assert (early.body, leased.attempt) == (b"early", 1)


async def test_figures_count_from_the_first_readable_message(harness: BrokerHarness) -> None:
    queries = harness.broker.consuming.offset_queries
    await half_expired(harness)
    [queue] = queries.bounds(TOPIC, []).queues
    assert (queue.min_offset, queue.max_offset) == (2, 4)
    queries.update(GROUP, [QueueOffset(TOPIC, 0, 1)])
    assert queries.lag(GROUP, TOPIC) == 2
    assert queries.expired(GROUP, TOPIC) == 1
    harness.broker.gauges.measure(6)
    labels = {"topic": TOPIC, "consumer_group": GROUP, **harness.metrics.labels}
    name = "rocketmq_consumer_expired_messages"
    assert harness.metrics.registry.get_sample_value(name, labels) == 1
    queries.update(GROUP, [QueueOffset(TOPIC, 0, 3)])
    assert (queries.lag(GROUP, TOPIC), queries.expired(GROUP, TOPIC)) == (1, 0)
    [reset] = await queries.reset(GROUP, TOPIC, [], queue_offset=0)
    assert reset.queue_offset == 2


async def test_track_says_expired_and_search_and_keys_skip_the_message(
    harness: BrokerHarness,
) -> None:
    await half_expired(harness)
    harness.broker.consuming.offset_queries.update(GROUP, [QueueOffset(TOPIC, 0, 0)])
    tracking = harness.broker.consuming.tracking
    [state] = (await tracking.by_place(Place(TOPIC, 0, 1), [GROUP])).groups
    assert state.state is State.EXPIRED
    assert await tracking.by_id("id1", [GROUP]) == []
    assert [each.record for each in await tracking.by_id("id2", [GROUP])]
    found = harness.store.query(TOPIC, "k")
    assert sorted(each.body for each in found) == [b"2", b"3"]


async def test_a_raised_or_removed_time_does_not_bring_messages_back(
    harness: BrokerHarness, begin: Begin
) -> None:
    await half_expired(harness)
    for config in (limited(hours=100), TopicConfig(TOPIC, 1, 1)):
        await harness.broker.topics.put(config)
        await pass_time(harness, 2)
        assert await harness.bodies(TOPIC) == []  # below its minimum offset
        assert harness.store.min_offset(TOPIC, 0) == 2
        harness = await begin(deleteWhen="00")
        assert harness.store.min_offset(TOPIC, 0) == 2
    assert harness.tables.topics.to_json()["topicConfigTable"][TOPIC]["expiredBefore"]


async def test_a_lowered_time_expires_messages_within_seconds(harness: BrokerHarness) -> None:
    await harness.broker.topics.put(limited(hours=100))
    await harness.send(TOPIC, b"old")
    await pass_time(harness, 3)
    await harness.broker.topics.put(limited(hours=2))
    upkeep(harness)
    assert harness.store.min_offset(TOPIC, 0) == 1


async def test_a_retry_topic_keeps_messages_as_long_as_the_longest_topic_of_its_group(
    harness: BrokerHarness,
) -> None:
    retry, offsets = retry_topic(GROUP), harness.broker.consuming.offset_queries
    await harness.broker.topics.for_group(retry)
    await harness.broker.topics.put(limited(LONG, hours=3))
    await harness.send(TOPIC, b"x")
    await harness.send(retry, b"again")
    offsets.update(GROUP, [QueueOffset(TOPIC, 0, 1), QueueOffset(retry, 0, 0)])
    upkeep(harness)
    offsets.update(GROUP, [QueueOffset(LONG, 0, 0)])
    await pass_time(harness, 2)
    assert harness.store.min_offset(retry, 0) == 0
    await pass_time(harness, 2)
    assert harness.store.min_offset(retry, 0) == 1


async def test_a_retry_topic_is_kept_as_the_broker_says_if_a_topic_of_its_group_is(
    harness: BrokerHarness,
) -> None:
    retry, offsets = retry_topic(GROUP), harness.broker.consuming.offset_queries
    await harness.broker.topics.for_group(retry)
    await harness.broker.topics.put(TopicConfig(LONG, 1, 1))
    await harness.send(retry, b"again")
    offsets.update(GROUP, [QueueOffset(TOPIC, 0, 0), QueueOffset(LONG, 0, 0)])
    await pass_time(harness, 50)
    assert harness.store.min_offset(retry, 0) == 0


async def test_a_log_of_short_lived_topics_is_deleted_before_the_time_of_the_broker(
    begin: Begin,
) -> None:
    """The journals of the broker are in each file, and do not keep it."""
    harness = await begin(mappedFileSizeCommitLog=64 << 10, deleteWhen="00")
    await harness.broker.topics.put(limited())
    await harness.group(GROUP)
    consumer = PopConsumer(harness)
    for _ in range(10):
        await consumer.put(bytes(9_000), bytes(9_000))
        await consumer.ack(*await consumer.pop())
    assert harness.store.min_physical_offset == 0
    for _ in range(4):
        await pass_time(harness, 0.6)
    assert harness.store.min_physical_offset >= 2 * (64 << 10)
