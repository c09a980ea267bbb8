"""Where queues and groups are: bounds, offsets by time, commits, resets, progress, status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aerobee_broker.delivery.pull.offsets import Position
from aerobee_broker.delivery.pull.pull import Pull
from aerobee_broker.filter.filter import compile_filter
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.registry.clients import Client, Consumer, Subscription
from aerobee_wire.status import Code, MqError
from support.broker.harness import Parts
from support.clock.virtual_loop import START_MS


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    """Queue 0 of topic t has messages stored at 0, 10 and 20 s."""
    parts = await Parts.begin(tmp_path)
    await parts.broker.topics.put(TopicConfig("t", 2, 2))
    await parts.group("g")
    for body in (b"a", b"b", b"c"):
        await parts.send("t", body)
        await asyncio.sleep(10)
    yield parts
    await parts.end()


async def test_bounds_have_offsets_and_times(parts: Parts) -> None:
    full, empty = parts.broker.positions.bounds("t", [])
    assert (full.min_offset, full.max_offset) == (0, 3)
    assert (full.earliest_timestamp_ms, full.latest_timestamp_ms) == (START_MS, START_MS + 20_000)
    assert (empty.queue_id, empty.max_offset, empty.latest_timestamp_ms) == (1, 0, 0)
    assert len(parts.broker.positions.bounds("t", [1])) == 1


@pytest.mark.parametrize(
    ("at_s", "lower", "upper"),
    [(-1, 0, 0), (0, 0, 0), (5, 1, 0), (10, 1, 1), (20, 2, 2), (21, 3, 2)],
)
async def test_an_offset_is_found_by_time(parts: Parts, at_s: int, lower: int, upper: int) -> None:
    at_ms = START_MS + at_s * 1_000
    search = parts.broker.positions.search
    assert search("t", 0, at_ms, upper=False) == lower
    assert search("t", 0, at_ms, upper=True) == upper


async def test_updates_are_all_or_none(parts: Parts) -> None:
    positions = parts.broker.positions
    with pytest.raises(MqError, match="below 0"):
        positions.update("g", [Position("t", 0, 2), Position("t", 1, -1)])
    with pytest.raises(MqError, match="queues 0 to 1"):
        positions.update("g", [Position("t", 0, 2), Position("t", 2, 1)])
    with pytest.raises(MqError) as caught:
        positions.update("g", [Position("t", 0, 2), Position("unknown", 0, 1)])
    assert caught.value.code is Code.TOPIC_NOT_EXIST
    with pytest.raises(MqError) as caught:
        positions.update("nobody", [Position("t", 0, 2)])
    assert caught.value.code is Code.SUBSCRIPTION_GROUP_NOT_EXIST
    assert positions.stored("g", "") == []
    positions.update("g", [Position("t", 0, 2), Position("t", 1, 0)])
    assert positions.stored("g", "t") == [Position("t", 0, 2), Position("t", 1, 0)]


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
async def test_a_group_is_moved_within_the_bounds(
    parts: Parts, to: dict[str, int], offsets: list[int]
) -> None:
    moved = await parts.broker.positions.reset("g", "t", [], **to)
    assert [one.queue_offset for one in moved] == offsets
    assert parts.broker.positions.stored("g", "t") == moved


async def test_progress_covers_offsets_subscriptions_and_the_retry_topic(parts: Parts) -> None:
    await parts.send("u", b"x")
    subscription = Subscription("u", compile_filter("TAG", "*"))
    consumer = Consumer(subscriptions={"u": subscription})
    parts.broker.clients.heartbeat(Client("c", consumers={"g": consumer}))
    parts.broker.positions.update("g", [Position("t", 0, 2)])
    await parts.broker.reader.pull(Pull("g", "u", 0, 0, client_id="c"))
    progress = parts.broker.positions.progress("g")
    assert {one.topic for one in progress} == {"t", "u", "%RETRY%g"}
    assert {(one.topic, one.queue_id) for one in progress if one.client_id == "c"} == {("u", 0)}
    read = next(one for one in progress if (one.topic, one.queue_id) == ("t", 0))
    assert (read.consumer_offset, read.max_offset) == (2, 3)
    assert read.last_timestamp_ms == START_MS + 10_000
    unread = next(one for one in progress if (one.topic, one.queue_id) == ("u", 0))
    assert (unread.consumer_offset, unread.last_timestamp_ms) == (None, 0)
    assert parts.broker.positions.lag("g", "t") == 1


async def test_a_queue_that_was_never_read_counts_from_its_start(parts: Parts) -> None:
    assert parts.broker.positions.lag("g", "t") == 3


async def test_the_status_has_the_numbers_of_the_broker(parts: Parts) -> None:
    status = parts.broker.administration.status()
    assert (status.broker_name, status.messages_in_total) == ("broker-a", 3)
    assert status.max_physical_offset == status.flushed_physical_offset > 0
    assert status.disk_total_bytes > status.disk_free_bytes > 0
    assert status.resident_memory_bytes > 1_000_000
    assert status.read_only_reason == ""


async def test_gauges_follow_what_they_measure(parts: Parts) -> None:
    parts.broker.administration.measure(6)
    registry = parts.meters.registry
    node = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}
    assert registry.get_sample_value("rocketmq_broker_permission", node) == 6
    assert registry.get_sample_value("rocketmq_topic_number", node) == len(parts.tables.topics)
    parts.broker.positions.update("g", [Position("t", 0, 2)])
    parts.tables.offsets.commit("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0, 0)
    parts.broker.administration.measure(6)
    lag = {**node, "topic": "t", "consumer_group": "g", "is_retry": "false"}
    assert registry.get_sample_value("rocketmq_consumer_lag_messages", lag) == 1
    of_system = {**lag, "topic": "RMQ_SYS_TRANS_HALF_TOPIC", "consumer_group": "CID_RMQ_SYS_TRANS"}
    assert registry.get_sample_value("rocketmq_consumer_lag_messages", of_system) is None
    sent = {**node, "topic": "t", "message_type": "NORMAL", "is_system": "false"}
    assert registry.get_sample_value("rocketmq_messages_in_total", sent) == 3


async def test_the_offsets_of_system_groups_are_the_broker_s_own(parts: Parts) -> None:
    """A start would not find open half messages that a reset had passed over."""
    positions, topic = parts.broker.positions, "RMQ_SYS_TRANS_HALF_TOPIC"
    with pytest.raises(MqError) as caught:
        await positions.reset("CID_RMQ_SYS_TRANS", topic, [0])
    assert caught.value.code is Code.NO_PERMISSION
    with pytest.raises(MqError, match="system group"):
        positions.update("CID_RMQ_SYS_TRANS", [Position(topic, 0, 7)])


async def test_a_group_that_nobody_is_a_member_of_commits_after_a_reset(parts: Parts) -> None:
    positions = parts.broker.positions
    await positions.reset("g", "t", [0], queue_offset=1)
    positions.update("g", [Position("t", 0, 3)])
    assert positions.stored("g", "t") == [Position("t", 0, 3)]


async def test_a_commit_of_a_live_member_does_not_undo_a_reset(parts: Parts) -> None:
    consumer = Consumer(subscriptions={"t": Subscription("t", compile_filter("TAG", "*"))})
    parts.broker.clients.heartbeat(Client("c", consumers={"g": consumer}))
    positions = parts.broker.positions
    await positions.reset("g", "t", [0], queue_offset=1)
    positions.update("g", [Position("t", 0, 3)])
    assert positions.stored("g", "t") == [Position("t", 0, 1)]
