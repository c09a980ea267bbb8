"""Pages and descriptions merged over two brokers, of which one may not answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from aerobee.broker.v1 import admin_pb2 as pb
from aerobee.broker.v1 import client_pb2, offset_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client import AsyncAdminClient
from aerobee_wire.status import Code, MqError
from support.client.memory import MemoryBroker, MemoryCluster
from support.codes import raises_code

# Topic → stored messages, by broker.
STORED = {"a": {"t1": 5, "t2": 1, "t4": 7}, "b": {"t1": 1, "t3": 9, "t4": 7}}


@pytest.fixture
def brokers() -> list[MemoryBroker]:
    return [MemoryBroker("a", "10.0.0.11:10911"), MemoryBroker("b", "10.0.0.12:10911")]


def listed(topics: Iterable[tuple[str, int]], request: Any) -> pb.ListTopicsResponse:
    """Answers as a broker does, sorted by name or by the number of stored messages."""
    rows = sorted(row for row in topics if not request.only or row[0] in request.only)
    if request.with_values:
        names, values = zip(*rows, strict=True)
        return pb.ListTopicsResponse(total=len(rows), names=names, values=values)
    if request.order:
        rows.sort(key=lambda row: -row[1] if request.descending else row[1])
    answer = pb.ListTopicsResponse(total=len(rows), names=sorted(name for name, _ in rows))
    for topic, stored in rows[request.offset :][: request.limit or None]:
        answer.topics.add(topic=topic, write_queue_count=stored)
        answer.statistics.add(stored_messages=stored, lag=stored, messages_in_rate=0.5, groups=2)
    return answer


@pytest.fixture(autouse=True)
def answering(cluster: MemoryCluster) -> None:
    def list_topics(address: str, request: Any) -> Any:
        return listed(STORED[cluster.brokers[address].name].items(), request)

    cluster.answers["ListTopics"] = list_topics


async def test_a_page_by_name_is_merged(admin: AsyncAdminClient, cluster: MemoryCluster) -> None:
    page = await admin.topic_page(limit=2)
    assert [(row.topic, row.statistics.stored_messages) for row in page.rows] == [
        ("t1", 6),
        ("t2", 1),
    ]
    assert (page.total, page.unanswered) == (4, {})
    first = page.rows[0]
    assert (first.statistics.messages_in_rate, first.statistics.groups) == (1, 2)
    assert {name: each.lag for name, each in first.by_broker.items()} == {"a": 5, "b": 1}
    assert [on.broker_name for on in first.settings.brokers] == ["a", "b"]
    assert [request.limit for request in cluster.requests("ListTopics")] == [2, 2]
    page = await admin.topic_page(offset=2, limit=2)
    assert [row.topic for row in page.rows] == ["t3", "t4"]
    # One call for each broker and page.
    assert len(cluster.requests("ListTopics")) == 4


async def test_a_page_by_a_sum_needs_the_values_of_each_broker(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    """t1 is not among the first two of either broker's own order."""
    page = await admin.topic_page(sort="stored_messages", descending=True, limit=3)
    assert [row.topic for row in page.rows] == ["t4", "t3", "t1"]
    page = await admin.topic_page(sort="stored_messages", offset=1, limit=2)
    assert [row.topic for row in page.rows] == ["t1", "t3"]
    assert page.total == 4
    # Values of all topics, and then rows of the page.
    requests = cluster.requests("ListTopics")
    assert [(each.with_values, sorted(each.only)) for each in requests[4:]] == [
        *[(True, [])] * 2,
        *[(False, ["t1", "t3"])] * 2,
    ]


async def test_nothing_of_the_cluster_is_known_without_a_broker(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    cluster.down.add(brokers[1].address)
    page = await admin.topic_page(sort="stored_messages", descending=True)
    assert [row.topic for row in page.rows] == ["t4", "t1", "t2"]
    assert [row.statistics.stored_messages for row in page.rows] == [None] * 3
    assert page.rows[0].by_broker["a"].stored_messages == 7
    assert page.total is None
    assert brokers[1].address in page.unanswered["b"]
    cluster.down.add(brokers[0].address)
    with raises_code(Code.BROKER_UNREACHABLE):
        await admin.topic_page()


async def test_a_broker_without_a_master_is_named(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    def info(address: str, request: Any) -> Any:
        answer = namesrv_pb2.GetClusterInfoResponse()
        answer.brokers.add(broker_name="a", addresses={0: brokers[0].address})
        answer.brokers.add(broker_name="b", addresses={1: brokers[1].address})
        answer.away_brokers.add(broker_name="c")
        return answer

    cluster.answers["GetClusterInfo"] = info
    page = await admin.topic_page()
    assert list(page.unanswered) == ["b", "c"] and page.total is None


async def test_a_broker_of_an_earlier_version_is_named(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    """It ignores the page and answers all topics without statistics."""

    def list_topics(address: str, request: Any) -> Any:
        name = cluster.brokers[address].name
        if name == "a":
            topics = [namesrv_pb2.TopicConfig(topic=topic) for topic in STORED["a"]]
            return pb.ListTopicsResponse(topics=topics)
        return listed(STORED[name].items(), request)

    cluster.answers["ListTopics"] = list_topics
    page = await admin.topic_page()
    assert list(page.unanswered) == ["a"]
    assert [row.topic for row in page.rows] == ["t1", "t3", "t4"]


@pytest.mark.parametrize(
    "arguments", [{"sort": "lags"}, {"offset": -1}, {"limit": -1}, {"limit": 1 << 40}]
)
async def test_a_bad_page_is_refused(
    admin: AsyncAdminClient, cluster: MemoryCluster, arguments: dict[str, Any]
) -> None:
    with raises_code(Code.INVALID_PARAMETER):
        await admin.topic_page(**arguments)
    with raises_code(Code.INVALID_PARAMETER):
        await admin.group_page(**arguments)
    assert not cluster.requests("ListTopics")


async def test_groups_are_merged(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    def list_groups(address: str, request: Any) -> Any:
        if request.with_values:
            return pb.ListGroupsResponse(total=1, names=["g"], values=[3])
        answer = pb.ListGroupsResponse(total=1, names=["g"])
        answer.groups.add(consumer_group="g", retry_max_times=2)
        at_a = address == brokers[0].address
        statistics = answer.statistics.add(
            lag=4, members=3 if at_a else 2, consume_types=[client_pb2.POP], retries=1
        )
        if not at_a:
            statistics.ClearField("lag")
            statistics.consume_types.append(client_pb2.PULL)
        return answer

    cluster.answers["ListGroups"] = list_groups
    page = await admin.group_page(consume_types=["pop"], sort="members")
    (row,) = page.rows
    assert (row.settings.max_attempts, row.settings.brokers) == (3, ("a", "b"))
    assert (row.statistics.members, row.statistics.retries) == (3, 2)
    assert row.statistics.consume_types == ("pop", "pull")
    assert row.statistics.lag is None and row.by_broker["a"].lag == 4
    (request, *_) = cluster.requests("ListGroups")
    assert (list(request.consume_types), request.order) == (
        [client_pb2.POP],
        pb.GROUP_ORDER_MEMBERS,
    )
    with raises_code(Code.INVALID_PARAMETER):
        await admin.group_page(consume_types=["grab"])


def describe_topic(address: str, request: Any) -> Any:
    answer = pb.DescribeTopicResponse(topic={"topic": "t"}, producers=["p1"])
    answer.statistics.stored_messages = 3
    answer.queues.add(queue_id=0, max_offset=3)
    answer.groups.add(
        consumer_group="g", lag=2, oldest_timestamp_ms=len(address), members=1, messages_out=1
    )
    return answer


async def test_a_topic_is_described(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    cluster.answers["DescribeTopic"] = describe_topic
    found = await admin.describe_topic("t")
    assert (found.statistics.stored_messages, found.producers) == (6, ("p1",))
    assert [(queue.broker_name, queue.max_offset) for queue in found.queues] == [("a", 3), ("b", 3)]
    (group,) = found.groups
    assert (group.lag, group.members, group.messages_out) == (4, 1, 2)
    cluster.down.add(brokers[1].address)
    found = await admin.describe_topic("t")
    assert list(found.unanswered) == ["b"]
    (group,) = found.groups
    assert (found.statistics.stored_messages, group.lag, group.oldest_timestamp_ms) == (
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("rpc", "method", "code"),
    [
        ("DescribeTopic", "describe_topic", Code.TOPIC_NOT_EXIST),
        ("DescribeGroup", "describe_group", Code.SUBSCRIPTION_GROUP_NOT_EXIST),
    ],
)
async def test_a_silent_broker_may_have_what_the_others_lack(
    admin: AsyncAdminClient, cluster: MemoryCluster, rpc: str, method: str, code: Code
) -> None:
    cluster.answers[rpc] = MqError(code, "no such name")
    with raises_code(code):
        await getattr(admin, method)("x")
    cluster.down.add("10.0.0.12:10911")
    with raises_code(Code.BROKER_UNREACHABLE):
        await getattr(admin, method)("x")


async def test_a_group_is_described(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    def describe_group(address: str, request: Any) -> Any:
        answer = pb.DescribeGroupResponse(
            group={"consumer_group": "g"}, leased=2, waiting=1, blocked_message_groups=1
        )
        answer.statistics.lag = 5
        progress = offset_pb2.QueueConsumeStats(topic="t", queue_id=1, max_offset=5)
        answer.queues.add(progress=progress, oldest_timestamp_ms=17)
        answer.queues.add(progress=offset_pb2.QueueConsumeStats(topic="t", queue_id=0))
        answer.members.add(client_id="c")
        return answer

    cluster.answers["DescribeGroup"] = describe_group
    found = await admin.describe_group("g")
    assert (found.statistics.lag, found.leased, found.waiting) == (10, 4, 2)
    assert found.blocked_message_groups == 2
    assert [
        (each.progress.broker_name, each.progress.queue_id, each.progress.lag)
        for each in found.queues
    ] == [("a", 0, 0), ("a", 1, 5), ("b", 0, 0), ("b", 1, 5)]
    assert [each.oldest_timestamp_ms for each in found.queues] == [None, 17, None, 17]
    (member,) = found.members
    assert (member.client_id, member.brokers) == ("c", ("a", "b"))
    cluster.down.add(brokers[0].address)
    found = await admin.describe_group("g")
    assert (found.statistics.lag, found.leased, list(found.unanswered)) == (None, None, ["a"])
    assert found.by_broker["b"].lag == 5
