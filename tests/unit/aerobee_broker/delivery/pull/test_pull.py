"""Pull: checks, answers, the group's offset, long polls."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.delivery.pull.offsets import QueueOffset
from aerobee_broker.delivery.pull.reading import PullRequest
from aerobee_broker.delivery.retry.send_back import Entry
from aerobee_broker.errors import NoPermission, SubscriptionNotExist
from aerobee_broker.filter.filter import compile_filter
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.registry.clients import Client
from aerobee_broker.registry.consumers import Consumer, MessageModel, Subscription
from aerobee_broker.store.messages import ReadResult, ReadStatus
from aerobee_wire.record import iter_records
from aerobee_wire.status import Code
from support.broker.harness import Begin, BrokerHarness
from support.codes import raises_code

ALL = compile_filter("TAG", "*")


@pytest.fixture
async def harness(begin: Begin) -> BrokerHarness:
    harness = await begin(pullBatchMaxMessageCount=50)
    await harness.broker.topics.put(TopicConfig("t", 2, 2))
    await harness.group("g")
    return harness


async def pull(harness: BrokerHarness, **fields: Any) -> ReadResult:
    request = {"consumer_group": "g", "topic": "t", "queue_id": 0, "queue_offset": 0, "filter": ALL}
    result, _ = await harness.broker.consuming.pull.pull(PullRequest(**{**request, **fields}))
    return result


def bodies(result: ReadResult) -> list[bytes]:
    return [record.body for record in iter_records(result.records)]


async def test_messages_come_in_order_with_the_next_offset(harness: BrokerHarness) -> None:
    await harness.send("t", b"a", b"b", b"c")
    result = await pull(harness, max_messages=2)
    assert (result.status, bodies(result)) == (ReadStatus.FOUND, [b"a", b"b"])
    assert (result.next_begin_offset, result.min_offset, result.max_offset) == (2, 0, 3)
    assert bodies(await pull(harness, queue_offset=2)) == [b"c"]


async def test_a_pull_without_limit_gets_32_messages(harness: BrokerHarness) -> None:
    await harness.send("t", *[b"x"] * 60)
    assert (await pull(harness)).message_count == 32
    assert (await pull(harness, max_messages=1_000)).message_count == 50


async def test_the_first_message_may_exceed_max_bytes(harness: BrokerHarness) -> None:
    await harness.send("t", b"x" * 5_000, b"y")
    assert (await pull(harness, max_bytes=100)).message_count == 1


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "unknown"}, Code.TOPIC_NOT_EXIST),
        ({"queue_id": 2}, Code.INVALID_PARAMETER),
        ({"queue_id": -1}, Code.INVALID_PARAMETER),
        ({"queue_offset": -1}, Code.INVALID_PARAMETER),
        ({"filter": None}, Code.SUBSCRIPTION_NOT_EXIST),
        ({"consumer_group": "a b"}, Code.INVALID_PARAMETER),
    ],
)
async def test_an_invalid_pull_is_refused(
    harness: BrokerHarness, fields: dict[str, Any], code: Code
) -> None:
    with raises_code(code):
        await pull(harness, **fields)


async def test_an_unreadable_topic_group_or_broker_is_refused(
    harness: BrokerHarness, begin: Begin, tmp_path: Path
) -> None:
    await harness.broker.topics.put(TopicConfig("t", 2, 2, permission=2))
    with pytest.raises(NoPermission):
        await pull(harness)
    await harness.broker.topics.put(TopicConfig("t", 2, 2))
    await harness.group("g", consume_enable=False)
    with pytest.raises(NoPermission):
        await pull(harness)
    closed = await begin(tmp_path / "closed", brokerPermission=2)
    with pytest.raises(NoPermission):
        await pull(closed, topic="TBW102")


async def test_an_unknown_group_is_created_or_refused(
    harness: BrokerHarness, begin: Begin, tmp_path: Path
) -> None:
    await pull(harness, consumer_group="new")
    assert harness.broker.groups.get("new").retry_max_times == 16
    strict = await begin(tmp_path / "strict", autoCreateSubscriptionGroup=False)
    with raises_code(Code.SUBSCRIPTION_GROUP_NOT_EXIST):
        await pull(strict, topic="TBW102")


async def test_a_pull_without_filter_uses_the_subscription(harness: BrokerHarness) -> None:
    for tag in "ab":
        await harness.send("t", tag.encode(), properties={"TAGS": tag})
    subscription = Subscription("t", compile_filter("TAG", "b"))
    consumer = Consumer(subscriptions={"t": subscription})
    harness.broker.clients.heartbeat(Client("c", consumers={"g": consumer}))
    assert bodies(await pull(harness, filter=None)) == [b"b"]
    await harness.send("other", b"x")
    with pytest.raises(SubscriptionNotExist):
        await pull(harness, topic="other", filter=None)


async def test_broadcasting_in_a_group_without_it_is_refused(harness: BrokerHarness) -> None:
    await harness.group("g", consume_broadcast_enable=False)
    consumer = Consumer(message_model=MessageModel.BROADCASTING)
    harness.broker.clients.heartbeat(Client("c", consumers={"g": consumer}))
    with pytest.raises(NoPermission):
        await pull(harness)


async def test_the_offset_of_a_pull_is_committed(harness: BrokerHarness) -> None:
    await harness.send("t", b"a")
    await pull(harness, commit_offset=0)
    assert harness.tables.offsets.get("g", "t", 0) == 0
    await pull(harness, commit_offset=1)
    assert harness.tables.offsets.get("g", "t", 0) == 1
    await pull(harness)
    assert harness.tables.offsets.get("g", "t", 0) == 1


async def test_browsing_needs_no_group_and_commits_nothing(harness: BrokerHarness) -> None:
    await harness.send("t", b"a")
    result = await pull(
        harness, consumer_group="", browse=True, filter=None, commit_offset=1, queue_offset=0
    )
    assert bodies(result) == [b"a"]
    assert harness.tables.offsets.to_json()["offsetTable"] == {}
    assert harness.broker.groups.table.get("") is None
    assert harness.metrics.messages_out == 0


async def test_the_next_pull_after_a_reset_gets_the_new_offset(harness: BrokerHarness) -> None:
    await harness.send("t", b"a", b"b", b"c")
    await harness.broker.consuming.offset_queries.reset("g", "t", [0], queue_offset=1)
    result = await pull(harness, queue_offset=3, commit_offset=3)
    assert (result.status, result.next_begin_offset) == (ReadStatus.OFFSET_TOO_LARGE, 1)
    assert harness.tables.offsets.get("g", "t", 0) == 1, (
        "the pull's own commit does not undo the reset"
    )
    assert bodies(await pull(harness, queue_offset=1)) == [b"b", b"c"]


async def test_who_saw_what_an_unclean_election_gave_up_goes_on_at_the_groups_offset(
    harness: BrokerHarness,
) -> None:
    """And neither its pull nor its commit moves the group past what comes to the queue since."""
    await harness.send("t", b"a", b"b", b"c")
    await pull(harness, queue_offset=1, commit_offset=1)
    ahead = await pull(harness, queue_offset=5, commit_offset=5)
    assert (ahead.status, ahead.next_begin_offset) == (ReadStatus.OFFSET_TOO_LARGE, 1)
    harness.broker.consuming.offset_queries.update("g", [QueueOffset("t", 0, 4)])
    assert harness.tables.offsets.get("g", "t", 0) == 1
    without = await pull(harness, consumer_group="", browse=True, filter=None, queue_offset=5)
    assert (without.status, without.next_begin_offset) == (ReadStatus.OFFSET_TOO_LARGE, 3)


async def test_a_reset_wakes_a_parked_pull(harness: BrokerHarness) -> None:
    await harness.send("t", b"a")
    waiting = asyncio.create_task(pull(harness, queue_offset=1, suspend_timeout_ms=20_000))
    await asyncio.sleep(1)
    await harness.broker.consuming.offset_queries.reset("g", "t", [], queue_offset=0)
    result = await waiting
    assert (result.status, result.next_begin_offset) == (ReadStatus.OFFSET_TOO_LARGE, 0)


# ---- long polling ----


async def test_a_parked_pull_gets_the_next_message(harness: BrokerHarness) -> None:
    waiting = asyncio.create_task(pull(harness, suspend_timeout_ms=15_000))
    await asyncio.sleep(5)
    assert not waiting.done() and harness.broker.polls.count == 1
    await harness.send("t", b"a")
    assert bodies(await waiting) == [b"a"]
    assert asyncio.get_running_loop().time() == 5


async def test_a_parked_pull_times_out_with_no_new(harness: BrokerHarness) -> None:
    result = await pull(harness, suspend_timeout_ms=15_000)
    assert (result.status, result.next_begin_offset) == (ReadStatus.NO_NEW, 0)
    assert asyncio.get_running_loop().time() == 15


async def test_a_pull_is_parked_for_30_s_at_most(harness: BrokerHarness) -> None:
    await pull(harness, suspend_timeout_ms=3_600_000)
    assert asyncio.get_running_loop().time() == 30


async def test_a_message_of_another_tag_wakes_no_pull(harness: BrokerHarness) -> None:
    wanted = compile_filter("TAG", "b")
    waiting = asyncio.create_task(pull(harness, filter=wanted, suspend_timeout_ms=15_000))
    await asyncio.sleep(1)
    await harness.send("t", b"x", properties={"TAGS": "a"})
    await asyncio.sleep(1)
    assert not waiting.done()
    await harness.send("t", b"y", properties={"TAGS": "b"})
    result = await waiting
    assert (bodies(result), result.next_begin_offset) == ([b"y"], 2)


async def test_a_timeout_skips_messages_of_other_tags(harness: BrokerHarness) -> None:
    wanted = compile_filter("TAG", "b")
    waiting = asyncio.create_task(pull(harness, filter=wanted, suspend_timeout_ms=2_000))
    await asyncio.sleep(1)
    await harness.send("t", b"x", properties={"TAGS": "a"})
    result = await waiting
    assert (result.status, result.next_begin_offset) == (ReadStatus.NO_MATCHED, 1)


async def test_no_pull_is_parked_when_long_polling_is_off(begin: Begin) -> None:
    harness = await begin(longPollingEnable=False)
    await pull(harness, topic="TBW102", suspend_timeout_ms=15_000)
    assert asyncio.get_running_loop().time() == 0


async def test_a_retry_wakes_a_pull_of_the_retry_topic(harness: BrokerHarness) -> None:
    await harness.group("g", retry_delays_ms=(700,))
    stored = await harness.send("t", b"a")
    waiting = asyncio.create_task(pull(harness, topic="%RETRY%g", suspend_timeout_ms=15_000))
    await harness.broker.sending.send_back.send_back("g", [Entry(stored[0].physical_offset)])
    assert bodies(await waiting) == [b"a"]
    assert asyncio.get_running_loop().time() == pytest.approx(0.7)
