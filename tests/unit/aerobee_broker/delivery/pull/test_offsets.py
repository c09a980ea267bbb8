"""Queue offsets: bounds, search by time, commits, resets, progress and lag of groups; status."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.declared_metrics import CONSUMER_LAG_MESSAGES
from aerobee_broker.delivery.pull.offsets import QueueOffset
from aerobee_broker.delivery.pull.reading import PullRequest
from aerobee_broker.errors import GroupNotExist, InvalidParameter, NoPermission, TopicNotExist
from aerobee_broker.filter.filter import compile_filter
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.registry.clients import Client
from aerobee_broker.registry.consumers import Consumer, Subscription
from aerobee_wire.status import Code
from support.broker.harness import Begin, BrokerHarness
from support.broker.pop_consumer import PopConsumer
from support.broker.pop_restarts import copy_store
from support.clock.virtual_loop import START_MS
from support.codes import raises_code
from support.observing.series import series_value


@pytest.fixture
async def harness(begin: Begin) -> BrokerHarness:
    """Queue 0 of topic t has messages stored at 0, 10 and 20 s."""
    harness = await begin()
    await harness.broker.topics.put(TopicConfig("t", 2, 2))
    await harness.group("g")
    for body in (b"a", b"b", b"c"):
        await harness.send("t", body)
        await asyncio.sleep(10)
    return harness


async def test_bounds_have_offsets_and_times(harness: BrokerHarness) -> None:
    full, empty = harness.broker.consuming.offset_queries.bounds("t", []).queues
    assert (full.min_offset, full.max_offset) == (0, 3)
    assert (full.earliest_timestamp_ms, full.latest_timestamp_ms) == (START_MS, START_MS + 20_000)
    assert (empty.queue_id, empty.max_offset, empty.latest_timestamp_ms) == (1, 0, 0)
    assert len(harness.broker.consuming.offset_queries.bounds("t", [1]).queues) == 1


@pytest.mark.parametrize(
    ("at_s", "lower", "upper"),
    [(-1, 0, 0), (0, 0, 0), (5, 1, 0), (10, 1, 1), (20, 2, 2), (21, 3, 2)],
)
async def test_an_offset_is_found_by_time(
    harness: BrokerHarness, at_s: int, lower: int, upper: int
) -> None:
    at_ms = START_MS + at_s * 1_000
    search = harness.broker.consuming.offset_queries.search
    assert search("t", 0, at_ms, upper=False) == lower
    assert search("t", 0, at_ms, upper=True) == upper


async def test_updates_are_all_or_none(harness: BrokerHarness) -> None:
    queries = harness.broker.consuming.offset_queries
    with pytest.raises(InvalidParameter):
        queries.update("g", [QueueOffset("t", 0, 2), QueueOffset("t", 1, -1)])
    with pytest.raises(InvalidParameter):
        queries.update("g", [QueueOffset("t", 0, 2), QueueOffset("t", 2, 1)])
    with pytest.raises(TopicNotExist):
        queries.update("g", [QueueOffset("t", 0, 2), QueueOffset("unknown", 0, 1)])
    with pytest.raises(GroupNotExist):
        queries.update("nobody", [QueueOffset("t", 0, 2)])
    assert queries.stored("g", "") == []
    queries.update("g", [QueueOffset("t", 0, 2), QueueOffset("t", 1, 0)])
    assert queries.stored("g", "t") == [QueueOffset("t", 0, 2), QueueOffset("t", 1, 0)]


@pytest.mark.parametrize(
    ("to", "offsets"),
    [
        ({"timestamp_ms": START_MS + 5_000}, [1, 0]),
        ({"timestamp_ms": -1}, [3, 0]),
        ({"queue_offset": 2}, [2, 0]),
        ({"queue_offset": 99}, [3, 0]),
        ({"queue_offset": -5}, [0, 0]),
    ],
)
async def test_a_reset_stays_within_the_bounds(
    harness: BrokerHarness, to: dict[str, Any], offsets: list[int]
) -> None:
    reset = await harness.broker.consuming.offset_queries.reset("g", "t", [], **to)
    assert [one.queue_offset for one in reset] == offsets
    assert harness.broker.consuming.offset_queries.stored("g", "t") == reset


async def test_progress_covers_subscriptions_and_the_retry_topic(harness: BrokerHarness) -> None:
    await harness.send("u", b"x")
    subscription = Subscription("u", compile_filter("TAG", "*"))
    consumer = Consumer(subscriptions={"u": subscription})
    harness.broker.clients.heartbeat(Client("c", consumers={"g": consumer}))
    harness.broker.consuming.offset_queries.update("g", [QueueOffset("t", 0, 2)])
    await harness.broker.consuming.pull.pull(PullRequest("g", "u", 0, 0, client_id="c"))
    progress = harness.broker.consuming.offset_queries.progress("g")
    assert {one.topic for one in progress} == {"t", "u", "%RETRY%g"}
    assert {(one.topic, one.queue_id) for one in progress if one.client_id == "c"} == {("u", 0)}
    read = next(one for one in progress if (one.topic, one.queue_id) == ("t", 0))
    assert (read.consumer_offset, read.max_offset) == (2, 3)
    assert read.last_timestamp_ms == START_MS + 10_000
    unread = next(one for one in progress if (one.topic, one.queue_id) == ("u", 0))
    assert (unread.consumer_offset, unread.last_timestamp_ms) == (None, 0)
    assert harness.broker.consuming.offset_queries.lag("g", "t") == 1


async def test_the_lag_of_an_unread_queue_is_all_of_it(harness: BrokerHarness) -> None:
    assert harness.broker.consuming.offset_queries.lag("g", "t") == 3


async def test_the_status_has_the_numbers_of_the_broker(harness: BrokerHarness) -> None:
    status = harness.broker.report.status()
    assert (status.broker_name, status.messages_in_total) == ("broker-a", 3)
    assert status.max_physical_offset == status.flushed_physical_offset > 0
    assert status.disk_total_bytes > status.disk_free_bytes > 0
    assert status.resident_memory_bytes > 1_000_000
    assert status.read_only_reason == ""


async def test_the_gauges_have_the_numbers_of_the_broker(harness: BrokerHarness) -> None:
    harness.broker.gauges.measure(6)
    registry = harness.metrics.registry
    assert series_value(registry, "rocketmq_broker_permission") == 6
    assert series_value(registry, "rocketmq_topic_number") == len(harness.tables.topics)
    harness.broker.consuming.offset_queries.update("g", [QueueOffset("t", 0, 2)])
    harness.tables.offsets.commit("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0, 0)
    await harness.broker.consumer_gauges.measure()
    lag = {"topic": "t", "consumer_group": "g", "is_retry": "false", "is_system": "false"}
    assert series_value(registry, "rocketmq_consumer_lag_messages", lag) == 1
    assert [
        labels
        for metric, items in registry.collect()
        for labels, _ in items
        if metric is CONSUMER_LAG_MESSAGES
    ] == [("g", "t", "false", "false")]
    sent = {"topic": "t", "message_type": "normal", "is_system": "false"}
    assert series_value(registry, "rocketmq_messages_in_total", sent) == 3


async def test_offsets_of_system_groups_cannot_be_changed(harness: BrokerHarness) -> None:
    """A start reads half messages from these offsets on: a reset would hide some."""
    queries, topic = harness.broker.consuming.offset_queries, "RMQ_SYS_TRANS_HALF_TOPIC"
    with pytest.raises(NoPermission):
        await queries.reset("CID_RMQ_SYS_TRANS", topic, [0])
    with pytest.raises(NoPermission):
        queries.update("CID_RMQ_SYS_TRANS", [QueueOffset(topic, 0, 7)])


async def test_a_group_without_members_commits_after_a_reset(harness: BrokerHarness) -> None:
    queries = harness.broker.consuming.offset_queries
    await queries.reset("g", "t", [0], queue_offset=1)
    queries.update("g", [QueueOffset("t", 0, 3)])
    assert queries.stored("g", "t") == [QueueOffset("t", 0, 3)]


async def test_a_commit_of_a_live_member_does_not_undo_a_reset(harness: BrokerHarness) -> None:
    consumer = Consumer(subscriptions={"t": Subscription("t", compile_filter("TAG", "*"))})
    harness.broker.clients.heartbeat(Client("c", consumers={"g": consumer}))
    queries = harness.broker.consuming.offset_queries
    await queries.reset("g", "t", [0], queue_offset=1)
    queries.update("g", [QueueOffset("t", 0, 3)])
    assert queries.stored("g", "t") == [QueueOffset("t", 0, 1)]


def member(harness: BrokerHarness, topic: str) -> None:
    consumer = Consumer(subscriptions={topic: Subscription(topic, compile_filter("TAG", "*"))})
    harness.broker.clients.heartbeat(Client("c", consumers={"g": consumer}))


async def test_a_group_is_forgotten_in_one_topic(harness: BrokerHarness) -> None:
    """Others of the topic, and its other topics, keep their offsets."""
    queries = harness.broker.consuming.offset_queries
    await harness.group("h")
    await harness.send("u", b"x")
    queries.update("g", [QueueOffset("t", 0, 2), QueueOffset("t", 1, 0), QueueOffset("u", 0, 1)])
    queries.update("h", [QueueOffset("t", 0, 1)])
    gone = [QueueOffset("t", 0, 2), QueueOffset("t", 1, 0)]
    assert await queries.forget("g", "t", dry_run=True) == gone
    assert queries.stored("g", "t") == gone
    assert await queries.forget("g", "t", dry_run=False) == gone
    assert queries.stored("g", "") == [QueueOffset("u", 0, 1)]
    assert queries.stored("h", "") == [QueueOffset("t", 0, 1)]
    assert await queries.forget("g", "t", dry_run=False) == []


async def test_a_forgotten_group_begins_as_a_new_one(harness: BrokerHarness) -> None:
    consumer = PopConsumer(harness, "g", "t")
    assert len(await consumer.pop(8)) == 3
    assert await consumer.pop(8) == []
    await harness.broker.consuming.offset_queries.forget("g", "t", dry_run=False)
    assert [message.body for message in await consumer.pop(8)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_forgotten_group_is_forgotten_after_a_restart(
    tmp_path: Path, is_killed: bool
) -> None:
    """Its leases are in a journal, from which a start takes its offsets, too."""
    harness = await BrokerHarness.begin(tmp_path)
    await harness.group("g")
    await harness.group("h")
    await harness.send("t", b"a", b"b")
    await harness.send("u", b"c")
    for group, topic in (("g", "t"), ("g", "u"), ("h", "t")):
        consumer = PopConsumer(harness, group, topic)
        await consumer.ack(*await consumer.pop(1))
    await harness.broker.consuming.offset_queries.forget("g", "t", dry_run=False)
    path = copy_store(harness) if is_killed else tmp_path
    await harness.end()
    again = await BrokerHarness.begin(path, clock=harness.clock)
    left = [len(await PopConsumer(again, *each).pop(8)) for each in (("g", "t"), ("h", "t"))]
    assert left == [2, 1]
    assert await PopConsumer(again, "g", "u").pop(8) == []
    await again.end()


async def test_a_topic_that_a_member_consumes_is_not_forgotten(harness: BrokerHarness) -> None:
    queries = harness.broker.consuming.offset_queries
    queries.update("g", [QueueOffset("t", 0, 2)])
    member(harness, "t")
    for dry_run in (True, False):
        with raises_code(Code.ILLEGAL_OPERATION):
            await queries.forget("g", "t", dry_run=dry_run)
    assert queries.stored("g", "t") == [QueueOffset("t", 0, 2)]
    member(harness, "u")
    assert await queries.forget("g", "t", dry_run=False) == [QueueOffset("t", 0, 2)]


async def test_a_queue_that_a_member_assigned_itself_is_not_forgotten(
    harness: BrokerHarness,
) -> None:
    queries = harness.broker.consuming.offset_queries
    harness.broker.clients.heartbeat(Client("c", consumers={"g": Consumer()}))
    queries.update("g", [QueueOffset("t", 0, 2)])
    harness.broker.clients.note_pull("c", "g", "t", 0)
    with raises_code(Code.ILLEGAL_OPERATION):
        await queries.forget("g", "t", dry_run=False)


async def test_what_is_not_an_offset_of_a_topic_is_not_forgotten(harness: BrokerHarness) -> None:
    queries = harness.broker.consuming.offset_queries
    await harness.broker.topics.put(
        TopicConfig("parent", 1, 1, attributes={"message.type": "LITE"})
    )
    for topic in ("parent", "%RETRY%g"):
        with pytest.raises(InvalidParameter):
            await queries.forget("g", topic, dry_run=False)
    with pytest.raises(GroupNotExist):
        await queries.forget("nobody", "t", dry_run=False)
    with pytest.raises(NoPermission):
        await queries.forget("CID_RMQ_SYS_TRANS", "t", dry_run=False)
