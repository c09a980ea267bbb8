"""A topic with a retention time of its own: what its groups get, what readers and figures show."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest

from aerobee_broker.delivery.pull.offsets import QueueOffset
from aerobee_broker.delivery.pull.reading import PullRequest
from aerobee_broker.delivery.topic_retention import TopicRetention
from aerobee_broker.delivery.tracking.state import Place, State
from aerobee_broker.filter.filter import compile_filter
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metadata.topics import TopicConfig, Topics
from aerobee_broker.store.messages import ReadStatus
from aerobee_broker.store.options import HOUR_MS
from aerobee_wire.topics import dead_letter_topic, retry_topic
from support.broker.harness import Begin, BrokerHarness
from support.broker.pop_consumer import GROUP, TOPIC, PopConsumer
from support.broker.pop_restarts import copy_store
from support.observing.series import series_value

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
    await upkeep(harness)


async def upkeep(harness: BrokerHarness) -> None:
    now_ms = harness.clock.now_ms()
    await harness.broker.topic_retention.inherit(now_ms)
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
    await upkeep(harness)
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
    await harness.broker.consumer_gauges.measure()
    labels = {"topic": TOPIC, "consumer_group": GROUP}
    assert series_value(harness.metrics.registry, "aerobee_consumer_expired_messages", labels) == 1
    queries.update(GROUP, [QueueOffset(TOPIC, 0, 3)])
    assert queries.lag(GROUP, TOPIC) == 1
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
    await upkeep(harness)
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
    await upkeep(harness)
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


async def raise_time(harness: BrokerHarness) -> None:
    await harness.broker.topics.put(limited(hours=48))


async def remove_time(harness: BrokerHarness) -> None:
    await harness.broker.topics.put(TopicConfig(TOPIC, 1, 1))


async def consume_longer(harness: BrokerHarness) -> None:
    await harness.broker.topics.put(limited(LONG, hours=48))
    harness.broker.consuming.offset_queries.update(GROUP, [QueueOffset(LONG, 0, 0)])


async def consume_without_time(harness: BrokerHarness) -> None:
    await harness.broker.topics.put(TopicConfig(LONG, 1, 1))
    harness.broker.consuming.offset_queries.update(GROUP, [QueueOffset(LONG, 0, 0)])


async def delete_offsets(harness: BrokerHarness) -> None:
    await harness.broker.consuming.offset_queries.forget(GROUP, TOPIC, dry_run=False)


@pytest.mark.parametrize(
    "change", [raise_time, remove_time, consume_longer, consume_without_time, delete_offsets]
)
async def test_expired_retries_stay_expired_when_the_inherited_time_grows_or_ends(
    harness: BrokerHarness, begin: Begin, change: Callable[[BrokerHarness], Awaitable[None]]
) -> None:
    """At once, after a restart, and on a slave, which reads the rows and inherits nothing."""
    retry, offsets = retry_topic(GROUP), harness.broker.consuming.offset_queries
    await harness.broker.topics.for_group(retry)
    offsets.update(GROUP, [QueueOffset(TOPIC, 0, 0)])
    await harness.send(retry, b"expired")
    await pass_time(harness, 0.6)
    await harness.send(retry, b"kept")
    await pass_time(harness, 0.6)
    assert harness.store.min_offset(retry, 0) == 1
    await change(harness)
    await pass_time(harness, 0.1)
    await pass_time(harness, 5)
    assert harness.store.min_offset(retry, 0) == 1
    await harness.broker.topics.for_group(retry, 2)  # a change of the queues keeps the time
    await harness.broker.save_tables()
    rows = harness.tables.topics.to_json()
    assert rows["topicConfigTable"][retry]["expiredBefore"]
    harness = await begin(copy_store(harness))
    assert harness.store.min_offset(retry, 0) == 1
    await upkeep(harness)
    assert harness.store.min_offset(retry, 0) == 1
    slave_topics = Topics(harness.clock)
    slave_topics.take_rows(rows["topicConfigTable"], (), slave_topics.version, anew=True)
    slave = TopicRetention(harness.store, slave_topics, ConsumerOffsets(harness.clock))
    slave.restore(harness.clock.now_ms())
    assert harness.store.min_offset(retry, 0) == 1


async def test_a_change_shortly_before_a_crash_does_not_bring_retries_back(
    harness: BrokerHarness, begin: Begin
) -> None:
    """The row of the retry topic keeps the time until a master has seen the change."""
    retry = retry_topic(GROUP)
    await harness.broker.topics.for_group(retry)
    harness.broker.consuming.offset_queries.update(GROUP, [QueueOffset(TOPIC, 0, 0)])
    await harness.send(retry, b"expired")
    await pass_time(harness, 2)
    await harness.broker.save_tables()
    await remove_time(harness)
    harness = await begin(copy_store(harness))
    assert harness.store.min_offset(retry, 0) == 1
    await upkeep(harness)
    assert harness.store.min_offset(retry, 0) == 1


async def test_no_row_is_examined_while_no_topic_has_a_time(begin: Begin) -> None:
    harness = await begin()
    examined: list[str] = []

    class Watched(Topics):
        def all(self) -> list[TopicConfig]:
            examined.append("topics")
            return super().all()

    class WatchedOffsets(ConsumerOffsets):
        def rows(self) -> Mapping[tuple[str, str], Mapping[int, int]]:
            examined.append("offsets")
            return super().rows()

    topics, offsets = Watched(harness.clock), WatchedOffsets(harness.clock)
    retention = TopicRetention(harness.store, topics, offsets)
    for number in range(5):
        topics.put(TopicConfig(f"t{number}", 1, 1))
        await retention.inherit(number * 60_000)
        retention.refresh(number * 60_000)
    assert examined == []
    topics.put(limited())
    offsets.commit(GROUP, TOPIC, 0, 1)
    examined.clear()
    await retention.inherit(300_000)
    assert examined == ["offsets"]
    await retention.inherit(301_000)
    assert examined == ["offsets"]


async def test_other_work_runs_while_the_offsets_of_many_groups_are_examined(
    begin: Begin,
) -> None:
    harness = await begin()
    topics, offsets = Topics(harness.clock), ConsumerOffsets(harness.clock)
    topics.put(limited())
    for number in range(3_500):
        offsets.commit(f"g{number}", TOPIC, 0, 1)
    inheriting = asyncio.create_task(
        TopicRetention(harness.store, topics, offsets).inherit(harness.clock.now_ms())
    )
    steps = 0
    while not inheriting.done():
        await asyncio.sleep(0)
        steps += 1
    assert steps >= 6  # 3 pauses in the offsets and 3 in the retry topics


async def test_dead_letters_have_a_time_of_their_own_if_their_topic_has_one(
    harness: BrokerHarness,
) -> None:
    dead = dead_letter_topic(GROUP)
    await harness.broker.topics.for_group(dead)
    change = harness.broker.administration.update_topic
    await change(limited(dead, hours=3), ["attributes"], dry_run=False, force=False)
    await harness.send(dead, b"letter")
    await pass_time(harness, 2)
    assert harness.store.min_offset(dead, 0) == 0
    await pass_time(harness, 2)
    assert harness.store.min_offset(dead, 0) == 1


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
