"""Lists of topics and groups by page, and their descriptions, over a broker without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from aerobee.broker.v1 import admin_pb2 as pb
from aerobee.broker.v1 import client_pb2

from aerobee_broker.delivery.pull.offsets import QueueOffset
from aerobee_broker.delivery.pull.reading import PullRequest
from aerobee_broker.filter.filter import compile_filter
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.registry.clients import Client
from aerobee_broker.registry.consumers import (
    Consumer,
    ConsumeType,
    MessageModel,
    Subscription,
)
from aerobee_wire.status import Code
from support.broker.handlers import Handlers
from support.broker.harness import Begin, BrokerHarness
from support.broker.pop_consumer import PopConsumer
from support.clock.virtual_loop import START_MS

TOPICS = ("apples", "Pears", "plums")


@pytest.fixture
async def harness(begin: Begin) -> BrokerHarness:
    """Topic number n has n + 1 messages, stored 10 s apart. Group g has read the first plum."""
    harness = await begin()
    for number, topic in enumerate(TOPICS):
        attributes = {"message.type": "FIFO"} if topic == "Pears" else {}
        await harness.broker.topics.put(TopicConfig(topic, 2, 2, attributes=attributes))
        for _ in range(number + 1):
            await harness.send(topic, b"body")
            await asyncio.sleep(10)
    for group in ("f", "g", "h"):
        await harness.group(group)
    harness.broker.consuming.offset_queries.update("g", [QueueOffset("plums", 0, 1)])
    return harness


@pytest.fixture
def handlers(harness: BrokerHarness) -> Handlers:
    return Handlers(harness)


async def topics(handlers: Handlers, **request: Any) -> list[str]:
    answer = await handlers("ListTopics", pb.ListTopicsRequest(exclude_derived=True, **request))
    return [config.topic for config in answer.topics]


async def groups(handlers: Handlers, **request: Any) -> list[str]:
    answer = await handlers("ListGroups", pb.ListGroupsRequest(**request))
    return [group.consumer_group for group in answer.groups]


def subscribe(
    harness: BrokerHarness, client_id: str, group: str, topic: str, **fields: Any
) -> None:
    subscription = Subscription(topic, compile_filter("TAG", "*"))
    consumer = Consumer(subscriptions={topic: subscription}, **fields)
    harness.broker.clients.heartbeat(Client(client_id, consumers={group: consumer}))


async def sample(harness: BrokerHarness, seconds: int = 1) -> None:
    for _ in range(seconds):
        await asyncio.sleep(1)
        await harness.broker.sampler.sample()


async def test_topics_are_filtered(handlers: Handlers) -> None:
    assert await topics(handlers) == ["Pears", "apples", "plums"]
    assert await topics(handlers, name_part="P") == ["Pears", "apples", "plums"]
    assert await topics(handlers, name_part="pl") == ["apples", "plums"]
    assert await topics(handlers, message_types=["FIFO"]) == ["Pears"]
    answer = await handlers("ListTopics", pb.ListTopicsRequest(name_part="%RETRY%"))
    assert [config.topic for config in answer.topics] == ["%RETRY%f", "%RETRY%g", "%RETRY%h"]


@pytest.mark.parametrize(
    ("order", "ascending"),
    [
        (pb.TOPIC_ORDER_NAME, ["Pears", "apples", "plums"]),
        (pb.TOPIC_ORDER_STORED_MESSAGES, ["apples", "Pears", "plums"]),
        (pb.TOPIC_ORDER_LAG, ["Pears", "apples", "plums"]),
        # Equal values are sorted by name in both directions.
        (pb.TOPIC_ORDER_MESSAGES_IN_RATE, ["Pears", "apples", "plums"]),
        (pb.TOPIC_ORDER_MESSAGES_OUT_RATE, ["Pears", "apples", "plums"]),
    ],
)
async def test_topics_are_sorted(
    handlers: Handlers, order: pb.TopicOrder, ascending: Sequence[str]
) -> None:
    assert await topics(handlers, order=order) == ascending
    descending = await topics(handlers, order=order, descending=True)
    if order in (pb.TOPIC_ORDER_NAME, pb.TOPIC_ORDER_STORED_MESSAGES):
        assert descending == list(reversed(ascending))
    elif order == pb.TOPIC_ORDER_LAG:
        assert descending == ["plums", "Pears", "apples"]
    else:
        assert descending == ascending


async def test_a_page_says_how_many_there_are(handlers: Handlers) -> None:
    request = pb.ListTopicsRequest(
        exclude_derived=True, offset=1, limit=1, with_names=True, with_statistics=True
    )
    answer = await handlers("ListTopics", request)
    assert [config.topic for config in answer.topics] == ["apples"]
    assert (answer.total, list(answer.names)) == (3, ["Pears", "apples", "plums"])
    assert len(answer.statistics) == 1
    request.order, request.descending = pb.TOPIC_ORDER_STORED_MESSAGES, True
    answer = await handlers("ListTopics", request)
    assert [config.topic for config in answer.topics] == ["Pears"]
    assert answer.statistics[0].stored_messages == 2
    beyond = await handlers("ListTopics", pb.ListTopicsRequest(offset=99, limit=5))
    assert not beyond.topics and beyond.total == 6


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("ListTopics", pb.ListTopicsRequest(offset=-1)),
        ("ListTopics", pb.ListTopicsRequest(limit=-1)),
        ("ListTopics", pb.ListTopicsRequest(order=99)),  # type: ignore[arg-type]
        ("ListGroups", pb.ListGroupsRequest(order=99)),  # type: ignore[arg-type]
        ("ListGroups", pb.ListGroupsRequest(consume_types=[0])),  # type: ignore[list-item]
    ],
)
async def test_a_bad_page_is_refused(handlers: Handlers, name: str, request_: Any) -> None:
    assert (await handlers.refused(name, request_)).code is Code.INVALID_PARAMETER


async def test_the_statistics_of_a_topic(harness: BrokerHarness, handlers: Handlers) -> None:
    subscribe(harness, "c", "h", "plums")
    request = pb.ListTopicsRequest(name_part="plums", with_statistics=True)
    (before,) = (await handlers("ListTopics", request)).statistics
    assert not before.HasField("messages_in_rate")
    await sample(harness)
    await harness.send("plums", b"body", b"body")
    wanted = compile_filter("TAG", "*")
    pull = PullRequest("g", "plums", 0, 1, client_id="c", max_messages=2, filter=wanted)
    await harness.broker.consuming.pull.pull(pull)
    await sample(harness, 2)
    (found,) = (await handlers("ListTopics", request)).statistics
    assert (found.messages_in, found.bytes_in, found.messages_out) == (5, 20, 2)
    assert (found.messages_in_rate, found.bytes_in_rate) == (1, 4)
    assert (found.messages_out_rate, found.stored_messages) == (1, 5)
    # Group h has no offset: all messages are new to it.
    assert (found.lag, found.groups, found.members) == (4 + 5, 2, 1)


async def test_a_topic_is_described(harness: BrokerHarness, handlers: Handlers) -> None:
    subscribe(harness, "c", "g", "plums")
    harness.broker.clients.heartbeat(Client("p", published_topics=frozenset({"plums"})))
    found = await handlers("DescribeTopic", pb.DescribeTopicRequest(topic="plums"))
    assert (found.topic.topic, found.statistics.stored_messages) == ("plums", 3)
    assert [queue.max_offset for queue in found.queues] == [3, 0]
    (group,) = found.groups
    assert (group.consumer_group, group.lag, group.members) == ("g", 2, 1)
    assert group.oldest_timestamp_ms == START_MS + 40_000  # 3 messages before it, 1 consumed
    assert list(found.producers) == ["p"]
    unknown = pb.DescribeTopicRequest(topic="unknown")
    assert (await handlers.refused("DescribeTopic", unknown)).code is Code.TOPIC_NOT_EXIST


async def test_what_a_broadcasting_group_lags_is_unknown(
    harness: BrokerHarness, handlers: Handlers
) -> None:
    subscribe(harness, "c", "g", "plums", message_model=MessageModel.BROADCASTING)
    (group,) = (await handlers("DescribeTopic", pb.DescribeTopicRequest(topic="plums"))).groups
    assert not group.HasField("lag") and not group.HasField("oldest_timestamp_ms")
    request = pb.ListGroupsRequest(name_part="g", with_statistics=True)
    (found,) = (await handlers("ListGroups", request)).statistics
    assert found.broadcasting and not found.HasField("lag")
    (topic,) = (
        await handlers("ListTopics", pb.ListTopicsRequest(name_part="plums", with_statistics=True))
    ).statistics
    assert topic.lag == 0  # of the groups that have one


async def test_groups_are_filtered_and_sorted(harness: BrokerHarness, handlers: Handlers) -> None:
    subscribe(harness, "c1", "h", "apples", consume_type=ConsumeType.POP)
    assert await groups(handlers) == ["f", "g", "h"]
    assert await groups(handlers, name_part="G") == ["g"]
    assert await groups(handlers, consume_types=[client_pb2.POP]) == ["h"]
    assert await groups(handlers, consume_types=[client_pb2.PULL]) == []
    assert await groups(handlers, order=pb.GROUP_ORDER_LAG, descending=True) == ["g", "h", "f"]
    members = await groups(handlers, order=pb.GROUP_ORDER_MEMBERS, descending=True)
    assert members == ["h", "f", "g"]
    assert "TOOLS_CONSUMER" in await groups(handlers, include_system=True)


async def test_the_statistics_of_a_group(harness: BrokerHarness, handlers: Handlers) -> None:
    consumer = PopConsumer(harness, group="g", topic="plums")
    await consumer.pop(2)
    subscribe(harness, "c", "g", "plums", consume_type=ConsumeType.POP)
    harness.metrics.dead_lettered("g", 3)
    request = pb.ListGroupsRequest(name_part="g", with_statistics=True)
    (found,) = (await handlers("ListGroups", request)).statistics
    assert (found.messages_out, found.in_flight, found.dead_lettered) == (2, 2, 3)
    assert (found.lag, found.retries, found.dead_letters) == (2, 0, 0)
    assert (found.members, list(found.consume_types), found.topics) == (1, [client_pb2.POP], 1)


GROUP_FIGURES = [name.removeprefix("GROUP_ORDER_") for name in pb.GroupOrder.keys()[1:]]


@pytest.mark.parametrize("figure", GROUP_FIGURES)
async def test_groups_are_sorted_by_the_figures_of_their_rows(
    figure: str, harness: BrokerHarness, handlers: Handlers
) -> None:
    await sample(harness)
    await PopConsumer(harness, group="h", topic="plums").pop(2)
    subscribe(harness, "c", "h", "plums")
    await harness.send("%RETRY%g", b"1", b"2")
    await harness.send("%DLQ%f", b"3")
    await sample(harness)
    order = f"GROUP_ORDER_{figure}"
    given = pb.ListGroupsRequest(with_statistics=True, order=order, descending=True)
    page = await handlers("ListGroups", given)
    shown = {
        group.consumer_group: getattr(row, figure.lower())
        for group, row in zip(page.groups, page.statistics, strict=True)
    }
    given.with_values = True
    for only in ((), ("h",)):
        del given.only[:]
        given.only.extend(only)
        answer = await handlers("ListGroups", given)
        values = dict(zip(answer.names, answer.values, strict=True))
        assert values == {name: shown[name] for name in only or shown}
    assert list(shown.values()) == sorted(shown.values(), reverse=True)
    assert len(set(shown.values())) > 1


async def test_a_group_is_described(harness: BrokerHarness, handlers: Handlers) -> None:
    consumer = PopConsumer(harness, group="g", topic="plums")
    await consumer.pop(1)
    subscribe(harness, "c", "g", "plums", consume_type=ConsumeType.POP)
    found = await handlers("DescribeGroup", pb.DescribeGroupRequest(consumer_group="g"))
    assert (found.group.consumer_group, found.statistics.lag) == ("g", 2)
    assert [member.client_id for member in found.members] == ["c"]
    assert (found.leased, found.waiting, found.blocked_message_groups) == (1, 0, 0)
    behind = {
        (queue.progress.topic, queue.progress.queue_id): queue.oldest_timestamp_ms
        for queue in found.queues
        if queue.HasField("oldest_timestamp_ms")
    }
    assert behind == {("plums", 0): START_MS + 40_000}
    unknown = pb.DescribeGroupRequest(consumer_group="unknown")
    refused = await handlers.refused("DescribeGroup", unknown)
    assert refused.code is Code.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_a_long_list_lets_others_run(harness: BrokerHarness, handlers: Handlers) -> None:
    for number in range(250):
        await harness.broker.topics.put(TopicConfig(f"many-{number}", 1, 1))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count_turns())
    request = pb.ListTopicsRequest(order=pb.TOPIC_ORDER_LAG, with_statistics=True, limit=10)
    assert len((await handlers("ListTopics", request)).topics) == 10
    other.cancel()
    assert turns >= 2
