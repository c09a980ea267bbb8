"""AdminService over a broker without sockets, and how errors cross the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aerobee.broker.v1 import admin_pb2, message_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_broker.store.damage import DamagedRange
from aerobee_chassis.rpc.in_flight import failure_of
from aerobee_wire.status import Code, MqError, error_from
from support.broker.handlers import Handlers
from support.codes import raises_code


async def test_topics_are_put_listed_and_deleted(handlers: Handlers) -> None:
    config = namesrv_pb2.TopicConfig(
        topic="t",
        read_queue_count=2,
        write_queue_count=2,
        permission=6,
        attributes={"message.type": "FIFO"},
    )
    put = admin_pb2.PutTopicRequest(topic=config)
    handlers.harness.unreachable = ["n:1"]
    response = await handlers("PutTopic", put)
    assert (response.created, list(response.unreachable_namesrvs)) == (True, ["n:1"])
    assert (await handlers("GetTopic", admin_pb2.GetTopicRequest(topic="t"))).topic == config
    listed = await handlers("ListTopics", admin_pb2.ListTopicsRequest())
    assert [config.topic for config in listed.topics] == ["t"]
    everything = await handlers("ListTopics", admin_pb2.ListTopicsRequest(include_system=True))
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX"} <= {config.topic for config in everything.topics}
    delete = admin_pb2.DeleteTopicRequest(topic="t")
    assert [(await handlers("DeleteTopic", delete)).deleted for _ in range(2)] == [True, False]
    assert (await handlers.refused("GetTopic", admin_pb2.GetTopicRequest(topic="t"))).code is (
        Code.TOPIC_NOT_EXIST
    )


async def test_a_topic_and_a_group_are_updated(handlers: Handlers) -> None:
    config = namesrv_pb2.TopicConfig(
        topic="t", read_queue_count=2, write_queue_count=2, permission=6
    )
    put = admin_pb2.PutTopicRequest(topic=config, only_new=True)
    assert (await handlers("PutTopic", put)).topic == config
    put.topic.permission = 4
    assert (await handlers("PutTopic", put)).topic == config
    request = admin_pb2.UpdateTopicRequest(topic=put.topic, fields=["permission"])
    updated = await handlers("UpdateTopic", request)
    assert (updated.before, updated.after) == (config, put.topic)
    request = admin_pb2.UpdateTopicRequest(
        topic={"topic": "t", "write_queue_count": 9}, fields=["write_queue_count"], dry_run=True
    )
    unreadable = (await handlers("UpdateTopic", request)).unreadable
    assert [(queue.queue_id, queue.messages) for queue in unreadable] == [
        (queue_id, 0) for queue_id in range(2, 9)
    ]

    request.topic.MergeFrom(namesrv_pb2.TopicConfig(topic="u", read_queue_count=1, permission=6))
    request.allow_missing = True
    would = await handlers("UpdateTopic", request)
    assert (would.HasField("before"), would.after.write_queue_count) == (False, 9)

    group = admin_pb2.GroupConfig(consumer_group="g", retry_max_times=3)
    first = admin_pb2.UpdateGroupRequest(group=group, dry_run=True, allow_missing=True)
    would = await handlers("UpdateGroup", first)
    assert (would.HasField("before"), would.after.retry_max_times) == (False, 3)
    asked = admin_pb2.PutGroupRequest(group=group, only_new=True)
    before = (await handlers("PutGroup", asked)).group
    asked.group.retry_max_times = 4
    assert (await handlers("PutGroup", asked)).group == before
    ordered = admin_pb2.GroupConfig(
        consumer_group="g", order="CONSUME_ORDER_ON", consume_message_orderly=True
    )
    change = admin_pb2.UpdateGroupRequest(
        group=ordered, fields=["order", "consume_message_orderly"]
    )
    answer = await handlers("UpdateGroup", change)
    assert (answer.before, answer.after.order) == (before, admin_pb2.CONSUME_ORDER_ON)
    assert answer.after.retry_max_times == 3


async def test_groups_are_put_listed_and_deleted(handlers: Handlers) -> None:
    config = admin_pb2.GroupConfig(
        consumer_group="g",
        consume_enable=True,
        retry_queue_count=1,
        retry_max_times=2,
        retry_delays_ms=[100, 200],
        consume_timeout_minutes=15,
        attributes={"priority.factor": "100"},
    )
    assert (await handlers("PutGroup", admin_pb2.PutGroupRequest(group=config))).created
    get = admin_pb2.GetGroupRequest(consumer_group="g")
    assert (await handlers("GetGroup", get)).group == config
    listed = await handlers("ListGroups", admin_pb2.ListGroupsRequest())
    assert [group.consumer_group for group in listed.groups] == ["g"]
    everything = await handlers("ListGroups", admin_pb2.ListGroupsRequest(include_system=True))
    assert "TOOLS_CONSUMER" in {group.consumer_group for group in everything.groups}
    delete = admin_pb2.DeleteGroupRequest(consumer_group="g", remove_offsets=True)
    assert [(await handlers("DeleteGroup", delete)).deleted for _ in range(2)] == [True, False]
    assert (await handlers.refused("GetGroup", get)).code is Code.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize(
    ("orderly", "order", "stored"),
    [
        (False, admin_pb2.CONSUME_ORDER_AUTO, admin_pb2.CONSUME_ORDER_AUTO),
        (False, admin_pb2.CONSUME_ORDER_ON, admin_pb2.CONSUME_ORDER_ON),
        (False, admin_pb2.CONSUME_ORDER_OFF, admin_pb2.CONSUME_ORDER_OFF),
        (True, admin_pb2.CONSUME_ORDER_AUTO, admin_pb2.CONSUME_ORDER_ON),  # of version 0.1
        (True, admin_pb2.CONSUME_ORDER_ON, admin_pb2.CONSUME_ORDER_ON),
        (True, admin_pb2.CONSUME_ORDER_OFF, None),
        (False, 9, None),
    ],
)
async def test_the_order_of_a_group(
    handlers: Handlers, orderly: bool, order: Any, stored: Any
) -> None:
    config = admin_pb2.GroupConfig(consumer_group="g", consume_message_orderly=orderly, order=order)
    put = admin_pb2.PutGroupRequest(group=config)
    if stored is None:
        assert (await handlers.refused("PutGroup", put)).code is Code.INVALID_PARAMETER
        return
    await handlers("PutGroup", put)
    found = (await handlers("GetGroup", admin_pb2.GetGroupRequest(consumer_group="g"))).group
    on = admin_pb2.CONSUME_ORDER_ON
    assert (found.order, found.consume_message_orderly) == (stored, stored == on)


async def test_an_exponential_retry_of_a_group(handlers: Handlers) -> None:
    config = admin_pb2.GroupConfig(consumer_group="g")
    retry = admin_pb2.ExponentialRetry(initial_ms=100, max_ms=900, multiplier=3)
    config.exponential_retry.CopyFrom(retry)
    await handlers("PutGroup", admin_pb2.PutGroupRequest(group=config))
    found = (await handlers("GetGroup", admin_pb2.GetGroupRequest(consumer_group="g"))).group
    assert found.exponential_retry == retry


async def test_the_status_counts_messages_in_and_out(handlers: Handlers) -> None:
    await handlers.harness.group("g")
    await handlers.harness.send("t", b"a", b"b")
    await handlers.harness.send("t", b"c", properties={"DELAY": "18"})
    subscription = message_pb2.Subscription(topic="t", expression="*")
    pull = message_pb2.PullRequest(topic="t", consumer_group="g", subscription=subscription)
    await handlers("Pull", pull)
    status = await handlers("GetBrokerStatus", admin_pb2.GetBrokerStatusRequest())
    assert (status.messages_in_total, status.messages_out_total) == (3, 2)
    assert status.delayed_messages == {"level 18 (7200 s)": 1}
    assert status.flushed_physical_offset == status.max_physical_offset > 0


async def test_the_status_reports_when_records_expire(handlers: Handlers) -> None:
    await handlers.harness.send("t", b"a", b"b")
    asked = admin_pb2.GetBrokerStatusRequest(physical_offsets=[0, 0, 5])
    status = await handlers("GetBrokerStatus", asked)
    expiries = list(status.expiry_timestamps_ms)
    assert len(expiries) == 3 and len(set(expiries)) == 1
    assert expiries[0] >= status.now_timestamp_ms + status.file_reserved_time_ms
    assert (status.file_reserved_time_ms, list(status.delete_when)) == (72 * 3_600_000, [4])
    assert status.commit_log_file_bytes > 0
    with raises_code(Code.INVALID_PARAMETER):
        await handlers(
            "GetBrokerStatus", admin_pb2.GetBrokerStatusRequest(physical_offsets=[0] * 4097)
        )


async def test_the_status_shows_damage_until_it_is_repaired(handlers: Handlers) -> None:
    damage, part = handlers.harness.store.damage, DamagedRange(100, 350)

    async def shown() -> tuple[int, int]:
        status = await handlers("GetBrokerStatus", admin_pb2.GetBrokerStatusRequest())
        return status.damaged_ranges, status.damaged_bytes

    assert await shown() == (0, 0)
    damage.report_range(Path("commitlog"), part, "its checksum differs")
    assert await shown() == (1, 250)
    damage.clear(part)
    assert await shown() == (0, 0)


# ---- errors ----


def test_a_broker_error_keeps_code_and_advice() -> None:
    failure = failure_of(MqError(Code.SYSTEM_BUSY, "later", retry_after_ms=100))
    assert failure is not None
    assert (failure.status, failure.message) == ("RESOURCE_EXHAUSTED", "later")
    received = error_from(failure.message, failure.trailers)
    assert received is not None
    assert received.code is Code.SYSTEM_BUSY
    assert (received.retryable, received.retry_after_ms) == (True, 100)


def test_a_defect_is_answered_without_details() -> None:
    assert failure_of(ZeroDivisionError("secret")) is None
