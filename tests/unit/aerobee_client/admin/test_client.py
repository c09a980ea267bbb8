"""Administration through a cluster in memory."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import astuple
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from aerobee.broker.v1 import (
    admin_pb2,
    dead_letter_pb2,
    message_pb2,
    offset_pb2,
    pop_pb2,
    search_pb2,
)
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client.admin.client import AsyncAdminClient
from aerobee_client.admin.descriptions import AlreadyExists, Change
from aerobee_client.errors import BrokerUnreachable, RequestTimeout
from aerobee_wire import properties
from aerobee_wire.retry_policy import ExponentialRetryPolicy
from aerobee_wire.status import Code, MqError
from support.client.memory import NAMESRV, MemoryBroker, MemoryCluster
from support.codes import raises_code

TOPIC = "flights"


@pytest.fixture
def brokers() -> list[MemoryBroker]:
    brokers = [MemoryBroker("a", "10.0.0.11:10911"), MemoryBroker("b", "10.0.0.12:10911")]
    for broker in brokers:
        broker.create(TOPIC, 2)
    return brokers


async def test_topic_is_created_on_every_master(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    created = await admin.create_topic("new", queues=3, message_type="DELAY")
    assert {broker.broker_name: broker.created for broker in created} == {"a": True, "b": True}
    assert [broker.topics["new"] for broker in brokers] == [3, 3]
    (config, _) = [request.topic for request in cluster.requests("PutTopic")]
    assert dict(config.attributes) == {"message.type": "DELAY"}
    assert (config.read_queue_count, config.permission) == (3, 6)
    assert all(request.only_new for request in cluster.requests("PutTopic"))


async def test_the_type_of_a_topic_is_given_once(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    twice = {"message.type": "DELAY"}
    with raises_code(Code.INVALID_PARAMETER):
        await admin.create_topic("new", attributes=twice)
    cluster.answers["UpdateTopic"] = updating()
    with raises_code(Code.INVALID_PARAMETER):
        await admin.update_topic("t", message_type="FIFO", attributes=twice)
    assert not cluster.requests("PutTopic") and not cluster.requests("UpdateTopic")
    await admin.update_topic("t", attributes=twice)


async def test_a_topic_that_exists_is_not_changed(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    """Neither where it differs, nor on the broker that lacks it."""
    brokers[0].create("old", 4)
    cluster.answers["UpdateTopic"] = updating()
    assert [made.created for made in await admin.create_topic("old", queues=4, dry_run=True)] == [
        False,
        True,
    ]
    with pytest.raises(AlreadyExists) as caught:
        await admin.create_topic("old", queues=2, message_type="FIFO")
    assert caught.value.code is Code.TOPIC_EXIST_ALREADY
    assert [astuple(change) for change in caught.value.differences] == [
        ("old", "a", "read_queue_count", 4, 2),
        ("old", "a", "write_queue_count", 4, 2),
        ("old", "a", "attributes.message.type", "NORMAL", "FIFO"),
    ]
    assert not cluster.requests("PutTopic") and "old" not in brokers[1].topics
    assert [made.created for made in await admin.create_topic("old", queues=4)] == [False, True]


@pytest.mark.parametrize(
    ("setting", "before", "after", "text"),
    [
        ("read_queue_count", 4, 8, "read_queues is 4 (requested: 8)"),
        ("permission", 6, 4, "permission is rw (requested: r)"),
        ("order", False, True, "order is false (requested: true)"),
        ("consume_enable", True, False, "consume is true (requested: false)"),
        (
            "attributes.x.y",
            None,
            "24",
            "attributes.x.y is not set (requested: 24)",
        ),
        ("retry_delays_ms", (1_500, 60_000), (), "retry_delays is 1500ms,60s (requested: not set)"),
        (
            "exponential_retry",
            {"initial_ms": 5_000, "max_ms": 7_200_000, "multiplier": 2},
            None,
            "retry is exponential:initial=5s,max=7200s,multiplier=2 (requested: not set)",
        ),
    ],
)
def test_an_existing_setting_is_reported_as_a_user_writes_it(
    setting: str, before: object, after: object, text: str
) -> None:
    change = Change("t", "a", setting, before, after)
    error = AlreadyExists(Code.TOPIC_EXIST_ALREADY, "topic", "t", [change])
    assert f"on a {text}; " in error.message


@pytest.mark.parametrize("kind", ["Topic", "Group"])
async def test_a_dry_run_of_a_creation_lets_each_broker_check_it(
    admin: AsyncAdminClient, cluster: MemoryCluster, kind: str
) -> None:
    create = admin.create_topic if kind == "Topic" else admin.create_group
    absent = Code.TOPIC_NOT_EXIST if kind == "Topic" else Code.SUBSCRIPTION_GROUP_NOT_EXIST
    cluster.answers[f"Get{kind}"] = MqError(absent, "no such name")

    def refuse_at_b(address: str, request: Any) -> Any:
        assert request.dry_run and request.allow_missing
        if cluster.brokers[address].name == "b":
            raise MqError(Code.INVALID_PARAMETER, "unsupported attribute")
        return getattr(admin_pb2, f"Update{kind}Response")()

    cluster.answers[f"Update{kind}"] = refuse_at_b
    with raises_code(Code.INVALID_PARAMETER):
        await create("new", dry_run=True)
    # A broker of version 0.1 does not check it, and must not change anything.
    cluster.answers[f"Update{kind}"] = MqError(absent, "no such name")
    assert all(made.created for made in await create("new", dry_run=True))
    assert not cluster.requests(f"Put{kind}")


def change_of(admin: AsyncAdminClient, name: str) -> Any:
    """Return a call that changes something on each broker; `silent` is its argument."""
    calls = {
        "PutTopic": partial(admin.create_topic, "new"),
        "UpdateTopic": partial(admin.update_topic, "t", queues=5),
        "DeleteTopic": partial(admin.delete_topic, "t"),
        "PutGroup": partial(admin.create_group, "new"),
        "UpdateGroup": partial(admin.update_group, "g", max_attempts=3),
        "DeleteGroup": partial(admin.delete_group, "g"),
        "ForgetConsumerOffsets": partial(admin.forget_offsets, "g", "t"),
        "ResetConsumerOffsets": partial(admin.reset_offsets, "g", TOPIC, timestamp_ms=-1),
        "CancelLetterJob": partial(admin.cancel_letter_job, "job"),
    }
    return calls[name]


@pytest.fixture
def answering(cluster: MemoryCluster) -> MemoryCluster:
    """Brokers that do what a change asks."""
    cluster.answers |= {
        "GetTopic": MqError(Code.TOPIC_NOT_EXIST, "no such topic"),
        "GetGroup": MqError(Code.SUBSCRIPTION_GROUP_NOT_EXIST, "no such group"),
        "UpdateTopic": updating(),
        "DeleteTopic": lambda *_: admin_pb2.DeleteTopicResponse(deleted=True),
        "PutGroup": lambda *_: admin_pb2.PutGroupResponse(created=True),
        "UpdateGroup": lambda *_: admin_pb2.UpdateGroupResponse(),
        "DeleteGroup": lambda *_: admin_pb2.DeleteGroupResponse(deleted=True),
        "ForgetConsumerOffsets": lambda *_: offset_pb2.ForgetConsumerOffsetsResponse(),
        "GetQueueOffsets": lambda *_: offset_pb2.GetQueueOffsetsResponse(),
        "ResetConsumerOffsets": lambda *_: offset_pb2.ResetConsumerOffsetsResponse(),
        "CancelLetterJob": lambda *_: dead_letter_pb2.CancelLetterJobResponse(cancelled=True),
    }
    return cluster


CHANGES = [
    "PutTopic",
    "UpdateTopic",
    "DeleteTopic",
    "PutGroup",
    "UpdateGroup",
    "DeleteGroup",
    "ForgetConsumerOffsets",
    "ResetConsumerOffsets",
    "CancelLetterJob",
]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_names_a_broker_without_an_answer_and_is_made_on_others(
    admin: AsyncAdminClient, answering: MemoryCluster, change: str
) -> None:
    def hang_at_b(given: Any) -> Any:
        def answer(address: str, request: Any) -> Any:
            if address == "10.0.0.12:10911":
                raise RequestTimeout(address, 5.0)
            if isinstance(given, MqError):
                raise given
            return given(address, request) if given else None

        return answer

    for name in {*answering.answers, *CHANGES}:
        answering.answers[name] = hang_at_b(answering.answers.get(name))
    silent: list[MqError] = []
    await change_of(admin, change)(silent=silent)
    assert [(each.broker_name, each.code) for each in silent] == [("b", Code.REQUEST_TIMEOUT)]
    assert "broker b" in silent[0].message
    done = [(at, getattr(asked, "dry_run", False)) for at, name, asked in answering.calls
            if name == change]  # fmt: skip
    assert ("10.0.0.11:10911", False) in done, "the other one is changed"
    with raises_code(Code.REQUEST_TIMEOUT):
        await change_of(admin, change)()


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_names_a_broker_that_is_not_registered_any_more(
    admin: AsyncAdminClient, answering: MemoryCluster, change: str
) -> None:
    def routed_to_a(address: str, request: Any) -> Any:
        response = namesrv_pb2.GetTopicRouteResponse(away_brokers=["b"])
        response.route.queues.add(broker_name="a", read_queue_count=4, write_queue_count=4)
        response.route.brokers.add(broker_name="a", addresses={0: "10.0.0.11:10911"})
        return response

    without_b(answering)
    answering.answers["GetTopicRoute"] = routed_to_a
    silent: list[MqError] = []
    await change_of(admin, change)(silent=silent)
    assert [each.broker_name for each in silent] == ["b"]
    assert answering.requests(change)


def without_b(cluster: MemoryCluster) -> None:
    """Make broker b one that the name server knows and that is not registered any more."""

    def info(address: str, request: Any) -> Any:
        response = namesrv_pb2.GetClusterInfoResponse()
        response.brokers.add(cluster="c", broker_name="a", addresses={0: "10.0.0.11:10911"})
        response.away_brokers.add(cluster="c", broker_name="b")
        return response

    cluster.answers["GetClusterInfo"] = info


async def test_a_message_may_be_at_a_broker_that_is_not_registered_any_more(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    cluster.answers |= {
        "FindMessage": lambda *_: search_pb2.FindMessageResponse(),
        "QueryMessages": lambda *_: message_pb2.QueryMessagesResponse(),
        "ListTopics": lambda *_: namesrv_pb2.ListTopicsResponse(),
    }
    for lookup in (partial(admin.message_copies, silent=[]), admin.get_message):
        with pytest.raises(MqError, match="retention may have deleted it"):
            await lookup("C0000")
    without_b(cluster)
    silent: list[MqError] = []
    for lookup in (partial(admin.message_copies, silent=silent), admin.get_message):
        with pytest.raises(MqError, match="b is not registered any more: start it") as caught:
            await lookup("C0000")
        assert caught.value.code is Code.QUERY_NOT_FOUND
    assert [error.broker_name for error in silent] == ["b"]


async def test_a_broker_that_left_is_named_where_its_name_is_given(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    without_b(cluster)
    for name, reason in (("b", "b is not registered any more: start it"), ("x", "there are a")):
        for call in (admin.broker_status(name), admin.create_topic("new", broker=name)):
            with pytest.raises(MqError, match=reason) as caught:
                await call
            assert caught.value.code is Code.BROKER_NOT_EXIST


async def test_the_last_broker_that_left_is_named(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    left = namesrv_pb2.GetClusterInfoResponse()
    left.away_brokers.add(cluster="c", broker_name="b")
    cluster.answers["GetClusterInfo"] = lambda *_: left
    with pytest.raises(MqError, match="b is not registered any more: start it"):
        await admin.list_topics(silent=[])


async def test_a_series_of_changes_waits_for_a_silent_broker_once(
    admin: AsyncAdminClient, answering: MemoryCluster
) -> None:
    answering.down.add("10.0.0.12:10911")
    silent: list[MqError] = []
    for topic in ("one", "two", "three"):
        made = await admin.create_topic(topic, silent=silent)
        assert [each.broker_name for each in made] == ["a"]
    asked = [at for at, _, _ in answering.calls if at == "10.0.0.12:10911"]
    assert (len(asked), len(silent)) == (1, 1)


@pytest.mark.parametrize("kind", ["Topic", "Group"])
async def test_an_update_can_complete_what_a_broker_lacks(
    admin: AsyncAdminClient, answering: MemoryCluster, kind: str
) -> None:
    absent = Code.TOPIC_NOT_EXIST if kind == "Topic" else Code.SUBSCRIPTION_GROUP_NOT_EXIST

    def absent_at_b(address: str, request: Any) -> Any:
        if address == "10.0.0.12:10911":
            raise MqError(absent, "no such name")
        if kind == "Topic":
            return updating()(address, request)
        after = admin_pb2.GroupConfig(consumer_group="t", retry_max_times=2)
        return admin_pb2.UpdateGroupResponse(before=after, after=after)

    def update(**options: Any) -> Any:
        if kind == "Topic":
            return admin.update_topic("t", read_queues=4, **options)
        return admin.update_group("t", max_attempts=3, **options)

    answering.answers[f"Update{kind}"] = absent_at_b
    assert not (await update()).changes
    would = await update(complete=True, dry_run=True)
    assert [(each.broker_name, each.setting) for each in would.changes] == [("b", "created")]
    assert not answering.requests(f"Put{kind}")
    assert await update(complete=True) == would
    [made] = answering.requests(f"Put{kind}")
    assert made.only_new
    if kind == "Topic":
        assert (made.topic.topic, made.topic.read_queue_count) == ("t", 4)
    else:
        assert (made.group.consumer_group, made.group.retry_max_times) == ("t", 2)


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("kind", ["Topic", "Group"])
async def test_a_completed_creation_is_checked_before_any_change(
    admin: AsyncAdminClient, answering: MemoryCluster, kind: str, dry_run: bool
) -> None:
    absent = Code.TOPIC_NOT_EXIST if kind == "Topic" else Code.SUBSCRIPTION_GROUP_NOT_EXIST

    def refused_at_b(address: str, request: Any) -> Any:
        if address == "10.0.0.12:10911":
            code = Code.FLOW_CONTROL if request.allow_missing else absent
            raise MqError(code, "no room for one more, or no such name")
        assert request.dry_run
        return updating()(address, request) if kind == "Topic" else admin_pb2.UpdateGroupResponse()

    answering.answers[f"Update{kind}"] = refused_at_b
    update: Any = admin.update_topic if kind == "Topic" else admin.update_group
    with raises_code(Code.FLOW_CONTROL):
        await update("t", complete=True, dry_run=dry_run)
    assert not answering.requests(f"Put{kind}")


@pytest.mark.parametrize("kind", ["Topic", "Group"])
async def test_an_update_without_settings_only_completes(
    admin: AsyncAdminClient, answering: MemoryCluster, kind: str
) -> None:
    def absent_at_b(address: str, request: Any) -> Any:
        if address == "10.0.0.12:10911":
            code = Code.TOPIC_NOT_EXIST if kind == "Topic" else Code.SUBSCRIPTION_GROUP_NOT_EXIST
            raise MqError(code, "no such name")
        return updating()(address, request) if kind == "Topic" else admin_pb2.UpdateGroupResponse()

    answering.answers[f"Update{kind}"] = absent_at_b
    update: Any = admin.update_topic if kind == "Topic" else admin.update_group
    with raises_code(Code.INVALID_PARAMETER):
        await update("t")
    done = await update("t", complete=True)
    assert [(each.broker_name, each.setting) for each in done.changes] == [("b", "created")]
    assert not any(request.fields for request in answering.requests(f"Update{kind}"))
    assert len(answering.requests(f"Put{kind}")) == 1


@pytest.mark.parametrize("change", ["UpdateTopic", "UpdateGroup", "ForgetConsumerOffsets"])
async def test_what_a_silent_broker_may_have_is_not_said_to_be_missing(
    admin: AsyncAdminClient, answering: MemoryCluster, change: str
) -> None:
    is_topic = change == "UpdateTopic"
    absent = Code.TOPIC_NOT_EXIST if is_topic else Code.SUBSCRIPTION_GROUP_NOT_EXIST
    answering.answers[change] = MqError(absent, "no such name")
    answering.down.add("10.0.0.12:10911")
    with pytest.raises(MqError, match="on a broker that answers: broker b") as caught:
        await change_of(admin, change)(silent=[])
    assert caught.value.code is absent


async def test_a_refusal_of_one_broker_changes_none(
    admin: AsyncAdminClient, answering: MemoryCluster
) -> None:
    def refuse_at_b(address: str, request: Any) -> Any:
        if address == "10.0.0.12:10911":
            raise MqError(Code.NO_PERMISSION, "not by you")
        return updating()(address, request)

    answering.answers["UpdateTopic"] = refuse_at_b
    with raises_code(Code.NO_PERMISSION):
        await admin.update_topic("t", queues=5, silent=[])
    assert all(request.dry_run for request in answering.requests("UpdateTopic"))


async def test_what_somebody_else_creates_meanwhile_is_not_changed(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    def theirs(address: str, request: Any) -> Any:
        config = namesrv_pb2.TopicConfig()
        config.CopyFrom(request.topic)
        config.permission = 4
        return admin_pb2.PutTopicResponse(topic=config)

    cluster.answers["PutTopic"] = theirs
    with pytest.raises(AlreadyExists) as caught:
        await admin.create_topic("new")
    assert {change.setting for change in caught.value.differences} == {"permission"}


def updating(unreadable_at: str = "") -> Any:
    """A broker's answer to UpdateTopic, of a topic with 4 queues."""

    def update(address: str, request: Any) -> Any:
        response = admin_pb2.UpdateTopicResponse()
        response.before.topic = response.after.topic = request.topic.topic
        response.before.read_queue_count = response.after.read_queue_count = 4
        for name in request.fields:
            if name != "attributes":
                setattr(response.after, name, getattr(request.topic, name))
        if address == unreadable_at:
            response.unreadable.add(queue_id=3, messages=7)
        return response

    return update


async def test_an_update_names_what_changes_and_asks_all_brokers_first(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    cluster.answers["UpdateTopic"] = updating()
    would = await admin.update_topic("t", read_queues=5, dry_run=True)
    assert [astuple(change) for change in would.changes] == [
        ("t", "a", "read_queue_count", 4, 5),
        ("t", "b", "read_queue_count", 4, 5),
    ]
    assert [request.dry_run for request in cluster.requests("UpdateTopic")] == [True, True]
    assert await admin.update_topic("t", read_queues=5) == would
    requests = cluster.requests("UpdateTopic")[2:]
    assert [request.dry_run for request in requests] == [True, True, False, False]
    assert {tuple(request.fields) for request in requests} == {("read_queue_count",)}
    with raises_code(Code.INVALID_PARAMETER):
        await admin.update_topic("t")


async def test_an_update_names_the_name_servers_that_missed_it(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    def update(address: str, request: Any) -> Any:
        response = updating()(address, request)
        if not request.dry_run:
            response.unreachable_namesrvs.append("n:9")
        return response

    cluster.answers["UpdateTopic"] = update
    assert not (await admin.update_topic("t", queues=5, dry_run=True)).unreachable_namesrvs
    assert (await admin.update_topic("t", queues=5)).unreachable_namesrvs == ("n:9",)


async def test_one_broker_with_messages_keeps_all_from_shrinking(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    cluster.answers["UpdateTopic"] = updating(unreadable_at=brokers[1].address)
    with raises_code(Code.ILLEGAL_OPERATION):
        await admin.update_topic("t", queues=3)
    assert all(request.dry_run for request in cluster.requests("UpdateTopic"))
    done = await admin.update_topic("t", queues=3, force=True)
    assert [astuple(queue) for queue in done.unreadable] == [("t", "b", 3, 7)]
    assert [request.force for request in cluster.requests("UpdateTopic")[-2:]] == [True, True]


async def test_a_group_s_kinds_of_retry_replace_each_other(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    cluster.answers["UpdateGroup"] = lambda *_: admin_pb2.UpdateGroupResponse()
    await admin.update_group("g", retry_delays=[timedelta(seconds=1)])
    await admin.update_group("g", exponential_retry=ExponentialRetryPolicy())
    await admin.update_group("g", max_attempts=3)
    # Each update asks both brokers, then tells both.
    first, second, third = cluster.requests("UpdateGroup")[::4]
    assert set(first.fields) == set(second.fields) == {"retry_delays_ms", "exponential_retry"}
    assert list(first.group.retry_delays_ms) == [1000]
    assert not first.group.HasField("exponential_retry")
    assert second.group.HasField("exponential_retry") and not second.group.retry_delays_ms
    assert (list(third.fields), third.group.retry_max_times) == (["retry_max_times"], 2)


async def test_one_broker_that_refuses_is_named(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    cluster.refuse("PutTopic", brokers[1].address, Code.NO_PERMISSION)
    with raises_code(Code.NO_PERMISSION) as caught:
        await admin.create_topic("new")
    assert caught.value.message.startswith("broker b: ")


@pytest.mark.parametrize(
    "arguments", [{"topic": "not legal"}, {"topic": "t", "message_type": "ODD"}]
)
async def test_bad_topic_is_refused_before_anything_is_sent(
    admin: AsyncAdminClient, cluster: MemoryCluster, arguments: dict[str, Any]
) -> None:
    with raises_code(Code.INVALID_PARAMETER):
        await admin.create_topic(**arguments)
    assert not cluster.calls


async def test_route_and_status_of_a_topic(
    admin: AsyncAdminClient, brokers: list[MemoryBroker]
) -> None:
    brokers[0].append(TOPIC, 1, b"x", b"")
    route = await admin.topic_route(TOPIC)
    assert [(q.broker_name, q.write_queue_count) for q in route.queues] == [("a", 2), ("b", 2)]
    assert route.brokers[0].addresses == {0: "10.0.0.11:10911"}
    status = await admin.topic_status(TOPIC)
    ends = [(q.broker_name, q.queue_id, q.max_offset) for q in status]
    assert ends == [("a", 0, 0), ("a", 1, 1), ("b", 0, 0), ("b", 1, 0)]


async def test_topics_of_a_silent_broker_are_left_out_on_request(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    brokers[0].create("only-there", 1)
    cluster.down.add(brokers[0].address)
    silent: list[MqError] = []
    assert [topic.topic for topic in await admin.list_topics(silent=silent)] == [TOPIC]
    assert [error.code for error in silent] == [Code.BROKER_UNREACHABLE]
    with pytest.raises(MqError):
        await admin.list_topics()
    cluster.down.add(brokers[1].address)
    with pytest.raises(MqError):
        await admin.list_topics(silent=[])


async def test_topic_is_deleted_everywhere(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    assert await admin.delete_topic(TOPIC)
    assert not await admin.delete_topic(TOPIC)
    deleted_at = [address for address, name, _ in cluster.calls if name == "DeleteTopic"]
    # The route first: one that a broker registers from then on must stay.
    assert deleted_at[:3] == [NAMESRV, brokers[0].address, brokers[1].address]
    with raises_code(Code.TOPIC_NOT_EXIST):
        await admin.topic_status(TOPIC)


async def test_a_topic_is_deleted_although_a_name_server_is_away(
    brokers: list[MemoryBroker],
) -> None:
    away = "10.0.0.2:9876"
    cluster = MemoryCluster(*brokers, namesrvs=(NAMESRV, away))
    cluster.down.add(away)
    async with AsyncAdminClient([NAMESRV, away], transport=cluster) as admin:
        with raises_code(Code.BROKER_UNREACHABLE):
            await admin.delete_topic(TOPIC)
        assert all(TOPIC in broker.topics for broker in brokers)
        silent: list[MqError] = []
        assert await admin.delete_topic(TOPIC, silent=silent)
        assert [each.broker_name for each in silent] == [away]
        assert not any(TOPIC in broker.topics for broker in brokers)


async def test_a_message_to_skip_may_be_at_a_silent_broker(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    none = pop_pb2.ListBlockedMessageGroupsResponse()
    cluster.answers["ListBlockedMessageGroups"] = lambda *_: none
    with pytest.raises(MqError, match="behind a message 'x': see"):
        await admin.skip_message("g", "x")
    cluster.down.add(brokers[1].address)
    with pytest.raises(MqError, match=r"on a broker that answers: see .*; broker b: ") as caught:
        await admin.skip_message("g", "x", silent=[])
    assert caught.value.code is Code.QUERY_NOT_FOUND


async def test_group_settings_are_sent_whole(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    cluster.answers["PutGroup"] = lambda *_: admin_pb2.PutGroupResponse(created=True)
    await admin.create_group(
        "g", max_attempts=3, retry_delays=[timedelta(seconds=1), timedelta(milliseconds=500)]
    )
    group = cluster.requests("PutGroup")[0].group
    assert (group.retry_max_times, list(group.retry_delays_ms)) == (2, [1000, 500])
    assert group.consume_enable and group.consume_from_min_enable and group.retry_queue_count == 1
    with raises_code(Code.INVALID_PARAMETER):
        await admin.create_group("g", max_attempts=0)


async def test_progress_counts_what_is_stored_and_not_consumed(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    def stats(address: str, request: Any) -> Any:
        if address == brokers[1].address:
            raise MqError(Code.SUBSCRIPTION_GROUP_NOT_EXIST, "never seen")
        response = offset_pb2.GetConsumeStatsResponse()
        response.queues.add(topic=TOPIC, queue_id=1, max_offset=10, consumer_offset=4)
        response.queues.add(topic=TOPIC, queue_id=0, min_offset=5, max_offset=9)
        response.queues.add(topic=TOPIC, queue_id=2, min_offset=5, max_offset=9, consumer_offset=2)
        response.queues.add(
            topic=TOPIC, queue_id=3, min_offset=5, max_offset=9, lag=1
        )  # a parent's
        response.queues.add(topic=TOPIC, queue_id=4, min_offset=5, max_offset=9, lag=0)
        return response

    cluster.answers["GetConsumeStats"] = stats
    progress = await admin.consume_progress("g")
    lags = [(q.queue_id, q.consumer_offset, q.lag) for q in progress]
    assert lags == [(0, None, 4), (1, 4, 6), (2, 2, 4), (3, None, 1), (4, None, 0)]


async def test_an_unknown_group_is_refused(admin: AsyncAdminClient, cluster: MemoryCluster) -> None:
    cluster.answers["GetGroup"] = MqError(Code.SUBSCRIPTION_GROUP_NOT_EXIST, "no such group")
    with raises_code(Code.SUBSCRIPTION_GROUP_NOT_EXIST):
        await admin.get_group("g")


async def test_groups_of_all_brokers_are_merged(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    def groups(address: str, request: Any) -> Any:
        response = admin_pb2.ListGroupsResponse()
        response.groups.add(consumer_group="g", retry_max_times=2)
        if address == brokers[1].address:
            response.groups.add(consumer_group="f", consume_message_orderly=True)
        return response

    cluster.answers["ListGroups"] = groups
    found = await admin.list_groups()
    assert [(g.consumer_group, g.brokers) for g in found] == [("f", ("b",)), ("g", ("a", "b"))]
    assert (found[1].max_attempts, found[0].order, found[1].order) == (3, "on", "auto")


async def test_a_rebalance_creates_nothing_if_a_broker_refuses_a_group(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    """Its dry run reports the refusal too, and a group of another client is not overwritten."""
    brokers[0].create("orders", 2)
    cluster.answers["UpdateTopic"] = updating()
    cluster.answers["GetBrokerStatus"] = lambda address, request: (
        admin_pb2.GetBrokerStatusResponse()
    )

    def groups(address: str, request: Any) -> Any:
        response = admin_pb2.ListGroupsResponse()
        if address == brokers[0].address:
            response.groups.add(consumer_group="g", retry_max_times=2)
        return response

    cluster.answers["ListGroups"] = groups
    cluster.answers["UpdateGroup"] = MqError(Code.INVALID_PARAMETER, "no such attribute")
    for dry_run in (True, False):
        with raises_code(Code.INVALID_PARAMETER):
            await admin.rebalance_topic("orders", dry_run=dry_run)
    assert not cluster.requests("PutGroup") and not cluster.requests("PutTopic")
    cluster.answers["UpdateGroup"] = lambda address, request: admin_pb2.UpdateGroupResponse()
    cluster.answers["PutGroup"] = lambda address, request: admin_pb2.PutGroupResponse()
    (made,) = await admin.rebalance_topic("orders")
    assert (made.broker_name, made.groups) == ("b", ("g",))
    assert [request.only_new for request in cluster.requests("PutGroup")] == [True]


async def test_committed_offsets_go_to_the_brokers_that_have_the_queues(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    stored: list[tuple[str, str, int, int]] = []

    def commit(address: str, request: Any) -> Any:
        stored.extend(
            (address, each.topic, each.queue_id, each.queue_offset) for each in request.offsets
        )
        return offset_pb2.UpdateConsumerOffsetsResponse()

    cluster.answers["UpdateConsumerOffsets"] = commit
    await admin.commit_offsets("g", {(TOPIC, "a", 0): 5, (TOPIC, "b", 1): 7, (TOPIC, "a", 2): 0})
    assert [each[1:] for each in stored] == [(TOPIC, 0, 5), (TOPIC, 2, 0), (TOPIC, 1, 7)]
    assert len({each[0] for each in stored}) == 2
    with raises_code(Code.BROKER_NOT_EXIST):
        await admin.commit_offsets("g", {(TOPIC, "nowhere", 0): 1})
    await admin.commit_offsets("g", {})


async def test_an_offset_beyond_the_end_is_not_committed_in_silence(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    def commit(_: str, request: Any) -> Any:
        answer = offset_pb2.UpdateConsumerOffsetsResponse()
        answer.beyond_end.extend(each for each in request.offsets if each.queue_offset > 9)
        return answer

    cluster.answers["UpdateConsumerOffsets"] = commit
    with pytest.raises(MqError, match="1748736000000 for queue 1 of") as caught:
        await admin.commit_offsets("g", {(TOPIC, "a", 0): 5, (TOPIC, "a", 1): 1_748_736_000_000})
    assert caught.value.code is Code.INVALID_PARAMETER


async def test_reset_needs_one_target(admin: AsyncAdminClient, cluster: MemoryCluster) -> None:
    def reset(address: str, request: Any) -> Any:
        assert request.WhichOneof("to") == "timestamp_ms" and request.timestamp_ms == -1
        response = offset_pb2.ResetConsumerOffsetsResponse()
        response.offsets.add(topic=TOPIC, queue_id=0, queue_offset=8)
        return response

    cluster.answers["ResetConsumerOffsets"] = reset
    moved = await admin.reset_offsets("g", TOPIC, timestamp_ms=-1)
    assert [(o.broker_name, o.queue_offset) for o in moved] == [("a", 8), ("b", 8)]
    for time_ms, offset in ((None, None), (1, 2)):
        with raises_code(Code.INVALID_PARAMETER):
            await admin.reset_offsets("g", TOPIC, timestamp_ms=time_ms, queue_offset=offset)


async def test_a_reset_of_queues_asks_only_their_brokers(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    asked: list[tuple[int, ...]] = []

    def reset(address: str, request: Any) -> Any:
        asked.append(tuple(request.queue_ids))
        response = offset_pb2.ResetConsumerOffsetsResponse()
        response.offsets.add(topic=TOPIC, queue_id=request.queue_ids[0], queue_offset=8)
        return response

    cluster.answers["ResetConsumerOffsets"] = reset
    cluster.answers["GetQueueOffsets"] = lambda *_: offset_pb2.GetQueueOffsetsResponse(
        queues=[offset_pb2.QueueBounds(queue_id=1, max_offset=8)]
    )
    moved = await admin.reset_offsets("g", TOPIC, timestamp_ms=-1, queues=[("b", 1)])
    assert [(each.broker_name, each.queue_id) for each in moved] == [("b", 1)]
    assert asked == [(1,)]
    with raises_code(Code.BROKER_NOT_EXIST, "nowhere"):
        await admin.reset_offsets("g", TOPIC, timestamp_ms=-1, queues=[("b", 1), ("nowhere", 0)])
    with raises_code(Code.INVALID_PARAMETER, "queues"):
        await admin.reset_offsets("g", TOPIC, timestamp_ms=-1, queues=[("b", 1), ("b", 2)])
    assert len(asked) == 1


async def test_broker_is_found_by_name_or_address(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    cluster.answers["GetBrokerStatus"] = lambda address, _: admin_pb2.GetBrokerStatusResponse(
        broker_address=address, delayed_messages={"1s": 2}, messages_in_total=5
    )
    by_name = await admin.broker_status("b")
    assert by_name == await admin.broker_status("10.0.0.12:10911")
    assert json.loads(json.dumps(dataclasses.asdict(by_name)))["delayed_messages"] == {"1s": 2}
    with raises_code(Code.BROKER_NOT_EXIST):
        await admin.broker_status("nobody")


async def test_browsing_reads_and_commits_nothing(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    brokers[0].create("%DLQ%g", 1)
    names = properties.encode({"DLQ_REASON": "ValueError", "RETRY_TOPIC": TOPIC})
    for n in range(5):
        brokers[0].append("%DLQ%g", 0, b"%d" % n, names, reconsume_times=3)
    browsed = await admin.browse("%DLQ%g", "a", 0, 1, max_messages=3)
    assert (browsed.status, browsed.next_begin_offset, browsed.max_offset) == ("FOUND", 4, 5)
    messages = browsed.messages()
    assert [message.body for message in messages] == [b"1", b"2", b"3"]
    assert (messages[0].topic, messages[0].origin_topic) == ("%DLQ%g", TOPIC)
    assert (messages[0].failure_reason, messages[0].broker_name) == ("ValueError", "a")
    end = await admin.browse("%DLQ%g", "a", 0, 5)
    assert end.status == "NO_NEW_MESSAGE" and end.messages() == []
    assert not brokers[0].offsets
    assert all(request.browse for request in cluster.requests("Pull"))


async def test_message_is_fetched_from_the_broker_that_its_id_names(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    stored = message_pb2.StoredMessage(topic=TOPIC, body=b"x", properties={"TAGS": "UA"})
    cluster.answers["GetMessage"] = lambda *_: message_pb2.GetMessageResponse(message=stored)
    message = await admin.get_message("0A00000C00002A9F00000000000003E8")
    assert (message.broker_name, message.tag, message.body) == ("b", "UA", b"x")


async def test_a_message_id_of_an_official_sdk_is_looked_up(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    """It has 34 digits, and is no offset message id."""
    sdk_id = "01" + "0" * 31 + "7"

    def query(address: str, request: Any) -> Any:
        stored = message_pb2.StoredMessage(topic=TOPIC, body=b"x")
        return message_pb2.QueryMessagesResponse(messages=[stored] * (request.key == sdk_id))

    cluster.answers["QueryMessages"] = query
    cluster.answers["ListTopics"] = lambda *_: namesrv_pb2.ListTopicsResponse(
        topics=[] if cluster.requests("ListTopics")[-1].scope else [TOPIC]
    )
    assert (await admin.get_message(sdk_id)).body == b"x"
    with raises_code(Code.QUERY_NOT_FOUND):
        await admin.get_message("nonsense")


async def test_messages_found_on_several_brokers_come_newest_first(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    def query(address: str, request: Any) -> Any:
        assert (request.key, request.unique) == ("UA1545", False)
        time_ms = 1 if address == brokers[0].address else 2
        response = message_pb2.QueryMessagesResponse()
        response.messages.add(topic=TOPIC, store_timestamp_ms=time_ms)
        response.damaged.extend(["the record at physical offset 7"] * (time_ms == 1))
        return response

    cluster.answers["QueryMessages"] = query
    damaged: list[MqError] = []
    found = await admin.query_messages(TOPIC, key="UA1545", damaged=damaged)
    assert [message.broker_name for message in found] == ["b", "a"]
    assert [error.message for error in damaged] == ["a: the record at physical offset 7"]
    assert damaged[0].code is Code.MESSAGE_CORRUPTED
    with raises_code(Code.INVALID_PARAMETER):
        await admin.query_messages(TOPIC)


async def test_offset_is_searched_at_the_broker_of_the_queue(
    admin: AsyncAdminClient, brokers: list[MemoryBroker]
) -> None:
    for n in range(3):
        brokers[1].append(TOPIC, 0, b"%d" % n, b"")
    status = (await admin.browse(TOPIC, "b", 0, 0)).messages()
    assert await admin.search_offset(TOPIC, "b", 0, status[1].store_timestamp_ms) == 1


async def test_a_cluster_without_a_broker_is_refused() -> None:
    async with AsyncAdminClient(NAMESRV, transport=MemoryCluster()) as admin:
        assert (await admin.cluster()).brokers == ()
        with raises_code(Code.BROKER_NOT_EXIST):
            await admin.list_groups()


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("create_topic", {"topic": "t", "queues": 1 << 31}),
        ("create_topic", {"topic": "t", "permission": 1 << 31}),
        ("create_group", {"group": "g", "max_attempts": 1 << 40}),
        (
            "search_offset",
            {"topic": TOPIC, "broker_name": "a", "queue_id": 0, "timestamp_ms": 1 << 63},
        ),
        ("browse", {"topic": TOPIC, "broker_name": "a", "queue_id": 1 << 31, "queue_offset": 0}),
        ("browse", {"topic": TOPIC, "broker_name": "a", "queue_id": 0, "queue_offset": 1 << 63}),
        ("reset_offsets", {"group": "g", "topic": TOPIC, "queue_offset": 1 << 63}),
        ("commit_offsets", {"group": "g", "offsets": {(TOPIC, "a", 0): 1 << 63}}),
        ("query_messages", {"topic": TOPIC, "key": "k", "max_messages": 1 << 31}),
    ],
)
async def test_a_number_out_of_range_is_refused(
    admin: AsyncAdminClient, cluster: MemoryCluster, method: str, arguments: dict[str, Any]
) -> None:
    with raises_code(Code.INVALID_PARAMETER):
        await getattr(admin, method)(**arguments)


async def test_a_broker_that_moved_is_found_by_the_next_browse(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    """Nothing else refreshes the route of an admin client."""
    broker = brokers[0]
    broker.append(TOPIC, 0, b"x", b"")
    assert (await admin.browse(TOPIC, "a", 0, 0)).message_count == 1
    del cluster.brokers[broker.address]
    broker.address = "10.0.0.99:10911"
    cluster.brokers[broker.address] = broker
    with pytest.raises(BrokerUnreachable):
        await admin.browse(TOPIC, "a", 0, 0)
    assert (await admin.browse(TOPIC, "a", 0, 0)).message_count == 1
    assert await admin.search_offset(TOPIC, "a", 0, 0) == 0
