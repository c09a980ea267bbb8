"""SendMessage against a cluster in memory."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from apache.rocketmq.v2 import definition_pb2 as d
from apache.rocketmq.v2 import service_pb2 as s
from apache.rocketmq.v2.definition_pb2 import Code

from aerobee_wire.rpcs import SEND
from aerobee_wire.status import Code as BrokerCode
from aerobee_wire.status import MqError
from support.proxy.harness import Cluster, FakeCall, route

TOPIC = d.Resource(name="orders")


def message(**system: Any) -> d.Message:
    return d.Message(
        topic=TOPIC,
        body=b"body",
        system_properties=d.SystemProperties(**{"message_id": "01AB", **system}),
    )


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


async def send(cluster: Cluster, *messages: d.Message) -> s.SendMessageResponse:
    request = s.SendMessageRequest(messages=messages)
    answer: s.SendMessageResponse = await cluster.proxy().rpcs.send_message(request, FakeCall())
    return answer


async def test_message_keeps_its_id(cluster: Cluster) -> None:
    answer = await send(cluster, message(message_id="01CD"))
    assert answer.status.code == Code.OK
    (entry,) = answer.entries
    assert (entry.status.code, entry.message_id, entry.offset) == (Code.OK, "01CD", 7)


async def test_message_group_goes_to_one_queue(cluster: Cluster) -> None:
    await send(cluster, *(message(message_group="g1") for _ in range(5)))
    (request,) = cluster.transport.requests(SEND)
    assert len({stored.queue_id for stored in request.messages}) == 1


async def test_messages_without_a_group_are_spread(cluster: Cluster) -> None:
    await send(cluster, *(message() for _ in range(8)))
    (request,) = cluster.transport.requests(SEND)
    assert sorted(stored.queue_id for stored in request.messages) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_entries_with_different_outcomes(cluster: Cluster) -> None:
    send_all = cluster.transport.answers["Send"]

    def refuse_some(address: str, request: Any) -> Any:
        if any(b"\1bad\2" in stored.encoded_properties for stored in request.messages):
            raise MqError(BrokerCode.MESSAGE_ILLEGAL, "not that one")
        return send_all(address, request)

    cluster.transport.answers["Send"] = refuse_some
    answer = await send(cluster, message(), message(message_id="bad"))
    assert answer.status.code == Code.MULTIPLE_RESULTS
    assert [entry.status.code for entry in answer.entries] == [Code.OK, Code.BAD_REQUEST]


TOMORROW = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda m: m.topic.CopyFrom(d.Resource(name="unknown")), Code.TOPIC_NOT_FOUND),
        (lambda m: m.topic.CopyFrom(d.Resource(name="read_only")), Code.FORBIDDEN),
        (
            lambda m: m.topic.CopyFrom(d.Resource(name="ordered")),
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        ),
        (lambda m: setattr(m, "body", b""), Code.MESSAGE_BODY_EMPTY),
        (lambda m: setattr(m, "body", bytes(4 * 1024 * 1024 + 1)), Code.MESSAGE_BODY_TOO_LARGE),
        (lambda m: setattr(m.system_properties, "tag", "a|b"), Code.ILLEGAL_MESSAGE_TAG),
        (lambda m: m.system_properties.keys.append("\n"), Code.ILLEGAL_MESSAGE_KEY),
        (
            lambda m: setattr(m.system_properties, "message_group", "g" * 64),
            Code.ILLEGAL_MESSAGE_GROUP,
        ),
        (lambda m: m.user_properties.update({"UNIQ_KEY": "x"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (
            lambda m: m.user_properties.update({"k": "v" * 16_385}),
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
        ),
        (lambda m: setattr(m.system_properties, "message_id", ""), Code.ILLEGAL_MESSAGE_ID),
        (
            lambda m: m.system_properties.delivery_timestamp.FromDatetime(TOMORROW),
            Code.ILLEGAL_DELIVERY_TIME,
        ),
    ],
)
async def test_message_is_refused(
    cluster: Cluster, change: Callable[[d.Message], Any], code: Code
) -> None:
    cluster.routes |= {"read_only": route(4), "ordered": route(message_type="FIFO")}
    bad = message()
    change(bad)
    assert (await send(cluster, bad)).status.code == code
    assert not cluster.transport.requests(SEND)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (BrokerCode.FLUSH_DISK_TIMEOUT, Code.MASTER_PERSISTENCE_TIMEOUT),
        (BrokerCode.SLAVE_NOT_AVAILABLE, Code.HA_NOT_AVAILABLE),
        (BrokerCode.FLUSH_SLAVE_TIMEOUT, Code.SLAVE_PERSISTENCE_TIMEOUT),
        (BrokerCode.REQUEST_TIMEOUT, Code.PROXY_TIMEOUT),
        (BrokerCode.SYSTEM_BUSY, Code.TOO_MANY_REQUESTS),
    ],
)
async def test_status_of_a_broker_failure(
    cluster: Cluster, failure: BrokerCode, code: Code
) -> None:
    cluster.transport.answers["Send"] = MqError(failure, "because")
    answer = await send(cluster, message())
    assert (answer.status.code, answer.entries[0].status.code) == (code, code)


@pytest.mark.parametrize(("priority", "queue_id"), [(0, 0), (2, 2), (3, 3), (9, 3)])
async def test_priority_chooses_the_queue(cluster: Cluster, priority: int, queue_id: int) -> None:
    cluster.routes["orders"] = route(message_type="PRIORITY")
    assert (await send(cluster, message(priority=priority))).status.code == Code.OK
    (stored,) = cluster.transport.requests(SEND)[0].messages
    assert stored.queue_id == queue_id
    assert f"_SYS_MSG_PRIORITY_\1{priority}\2".encode() in stored.encoded_properties


@pytest.mark.parametrize(
    ("kind", "system"), [("PRIORITY", {}), ("NORMAL", {"priority": 1}), ("MIXED", {"priority": 1})]
)
async def test_priority_conflicts_with_other_types(
    cluster: Cluster, kind: str, system: dict[str, int]
) -> None:
    cluster.routes["orders"] = route(message_type=kind)
    answer = await send(cluster, message(**system))
    assert answer.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
