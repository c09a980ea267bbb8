"""Delivery times and recalls through the public protocol: a proxy over a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code
from aerobee_foreign.google.protobuf.timestamp_pb2 import Timestamp

from aerobee_wire.handles import recall_handle
from support.proxy.whole_cluster import WholeCluster

TOPIC = d.Resource(name="orders")


@pytest.fixture
def broker_options() -> dict[str, Any]:
    return {}


@pytest.fixture
async def cluster(tmp_path: Path, broker_options: dict[str, Any]) -> AsyncIterator[WholeCluster]:
    cluster = await WholeCluster.begin(tmp_path, broker_options=broker_options)
    cluster.topic("orders", "DELAY")
    cluster.topic("plain", "NORMAL")
    yield cluster
    await cluster.end()
    assert cluster.transport.defects == []


def message(cluster: WholeCluster, body: bytes, ahead_ms: int) -> d.Message:
    due = cluster.clock.now_ms() + ahead_ms
    system = d.SystemProperties(message_id=body.decode())
    system.delivery_timestamp.FromMilliseconds(due)
    return d.Message(topic=TOPIC, body=body, system_properties=system)


async def send(cluster: WholeCluster, *messages: d.Message) -> list[s.SendResultEntry]:
    (answer,) = await cluster.ask("SendMessage", s.SendMessageRequest(messages=messages))
    return list(answer.entries)


async def recall(
    cluster: WholeCluster, handle: str, topic: d.Resource = TOPIC
) -> s.RecallMessageResponse:
    request = s.RecallMessageRequest(topic=topic, recall_handle=handle)
    (answer,) = await cluster.ask("RecallMessage", request)
    assert isinstance(answer, s.RecallMessageResponse)
    return answer


async def stored(cluster: WholeCluster) -> list[bytes]:
    return await cluster.broker.bodies("orders")


async def test_delivery_time_is_exact_to_the_millisecond(cluster: WholeCluster) -> None:
    await send(cluster, message(cluster, b"a", 12_345), message(cluster, b"past", -1))
    await asyncio.sleep(12.344)
    assert await stored(cluster) == [b"past"]
    await asyncio.sleep(0.002)
    assert await stored(cluster) == [b"past", b"a"]


async def test_delivery_time_is_rounded_up(cluster: WholeCluster) -> None:
    sent = message(cluster, b"a", 5_000)
    sent.system_properties.delivery_timestamp.nanos += 1
    await send(cluster, sent)
    await asyncio.sleep(5.0004)
    assert await stored(cluster) == []
    await asyncio.sleep(0.001)
    assert await stored(cluster) == [b"a"]


async def test_delivery_time_in_the_far_past(cluster: WholeCluster) -> None:
    sent = message(cluster, b"a", 0)
    sent.system_properties.delivery_timestamp.CopyFrom(Timestamp(seconds=-(2**63)))
    (entry,) = await send(cluster, sent)
    assert entry.status.code == Code.OK
    assert await stored(cluster) == [b"a"]


async def test_consumer_gets_the_delivery_time(cluster: WholeCluster) -> None:
    sent = message(cluster, b"a", 1_000)
    await send(cluster, sent)
    await asyncio.sleep(1.001)
    request = s.ReceiveMessageRequest(
        group=d.Resource(name="g"),
        message_queue=d.MessageQueue(topic=TOPIC, broker=d.Broker(name="broker-a")),
        filter_expression=d.FilterExpression(expression="*", type=d.FilterType.TAG),
        batch_size=1,
        auto_renew=True,
    )
    answers = await cluster.ask("ReceiveMessage", request, time_remaining_s=6)
    (got,) = [answer.message for answer in answers if answer.HasField("message")]
    system = got.system_properties
    assert system.delivery_timestamp == sent.system_properties.delivery_timestamp
    assert (system.message_type, got.user_properties) == (d.MessageType.DELAY, {})


async def test_message_is_recalled_once(cluster: WholeCluster) -> None:
    entries = await send(cluster, message(cluster, b"a", 60_000), message(cluster, b"b", 60_000))
    answer = await recall(cluster, entries[0].recall_handle)
    assert (answer.status.code, answer.message_id) == (Code.OK, "a")
    again = await recall(cluster, entries[0].recall_handle)
    assert (again.status.code, again.message_id) == (Code.BAD_REQUEST, "")
    await asyncio.sleep(61)
    assert await stored(cluster) == [b"b"]
    late = await recall(cluster, entries[1].recall_handle)
    assert late.status.code == Code.BAD_REQUEST


async def test_only_a_delayed_message_has_a_recall_handle(cluster: WholeCluster) -> None:
    now = d.Message(
        topic=d.Resource(name="plain"),
        body=b"x",
        system_properties=d.SystemProperties(message_id="n"),
    )
    assert [entry.recall_handle for entry in await send(cluster, now)] == [""]
    (late,) = await send(cluster, message(cluster, b"late", -5_000))
    assert (late.status.code, late.recall_handle) == (Code.OK, "")


async def test_bad_recall_handle_is_refused(cluster: WholeCluster) -> None:
    (entry,) = await send(cluster, message(cluster, b"a", 60_000))
    good = recall_handle.decode(entry.recall_handle)
    plain = recall_handle.encode(recall_handle.RecallHandle("plain", "broker-a", 1, "x"))
    elsewhere = recall_handle.encode(
        recall_handle.RecallHandle("orders", "nobody", good.deliver_ms, "a")
    )
    for topic, handle, code in (
        ("orders", "", Code.BAD_REQUEST),
        ("orders", "nonsense", Code.BAD_REQUEST),
        ("orders", plain, Code.BAD_REQUEST),
        ("orders", elsewhere, Code.BAD_REQUEST),
        ("plain", plain, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("rmq_sys_wheel_timer", entry.recall_handle, Code.ILLEGAL_TOPIC),
    ):
        answer = await recall(cluster, handle, d.Resource(name=topic))
        assert Code.Name(answer.status.code) == Code.Name(code), (topic, handle)
    await asyncio.sleep(61)
    assert await stored(cluster) == [b"a"]


@pytest.mark.parametrize("broker_options", [{"timerMaxMessages": 1}])
async def test_full_timer_refuses_delayed_messages_only(cluster: WholeCluster) -> None:
    await send(cluster, message(cluster, b"a", 60_000))
    await asyncio.sleep(0.01)
    entries = await send(cluster, message(cluster, b"b", 60_000), message(cluster, b"c", -1))
    assert [entry.status.code for entry in entries] == [Code.TOO_MANY_REQUESTS, Code.OK]


async def test_delivery_time_beyond_a_day_is_refused(cluster: WholeCluster) -> None:
    day = 24 * 3_600_000
    entries = await send(cluster, message(cluster, b"a", day))
    assert entries[0].status.code == Code.OK
    too_far = s.SendMessageRequest(messages=[message(cluster, b"b", day + 1_000)])
    (answer,) = await cluster.ask("SendMessage", too_far)
    assert answer.status.code == Code.ILLEGAL_DELIVERY_TIME
    absurd = message(cluster, b"c", 1)
    absurd.system_properties.delivery_timestamp.CopyFrom(Timestamp(seconds=253_402_300_799))
    (answer,) = await cluster.ask("SendMessage", s.SendMessageRequest(messages=[absurd]))
    assert answer.status.code == Code.ILLEGAL_DELIVERY_TIME
