"""SendMessage against a cluster in memory."""

from __future__ import annotations

from typing import Any

import pytest
from aerobee.namesrv.v1.namesrv_pb2 import BrokerData, GetTopicRouteResponse, TopicRoute
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code

from aerobee_wire.rpcs import GET_TOPIC_ROUTE, SEND
from aerobee_wire.status import Code as BrokerCode
from aerobee_wire.status import MqError
from support.proxy.harness import BROKER, Cluster, FakeCall, route
from support.proxy.routes import queue_data

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


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("a b", Code.ILLEGAL_TOPIC),
        ("unknown", Code.TOPIC_NOT_FOUND),
        ("read_only", Code.FORBIDDEN),
        ("ordered", Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ],
)
async def test_refused_message_is_not_sent(cluster: Cluster, topic: str, code: Code) -> None:
    cluster.routes |= {"read_only": route(4), "ordered": route(message_type="FIFO")}
    refused = message()
    refused.topic.name = topic
    assert (await send(cluster, refused)).status.code == code
    assert not cluster.transport.requests(SEND)


async def test_status_of_a_broker_failure(cluster: Cluster) -> None:
    cluster.transport.answers["Send"] = MqError(BrokerCode.FLUSH_DISK_TIMEOUT, "because")
    answer = await send(cluster, message())
    code = Code.MASTER_PERSISTENCE_TIMEOUT
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


async def test_a_broker_that_has_begun_to_drain_is_replaced(cluster: Cluster) -> None:
    """The route that the proxy has is older. What the broker refuses is not stored there."""
    other = BrokerData(broker_name="broker-b", addresses={0: "10.0.0.2:10911"})

    def serve(permission_at_a: int) -> None:
        queues = [
            queue_data("broker-a", 1, 1, permission_at_a, "MIXED"),
            queue_data("broker-b", 1, 1, kind="MIXED"),
        ]
        found = TopicRoute(queues=queues, brokers=[BROKER, other])
        cluster.routes["orders"] = GetTopicRouteResponse(route=found)

    send_all = cluster.transport.answers["Send"]

    def refuse_at_a(address: str, request: Any) -> Any:
        if address == BROKER.addresses[0]:
            serve(permission_at_a=4)
            raise MqError(BrokerCode.NO_PERMISSION, "this broker drains")
        return send_all(address, request)

    serve(permission_at_a=6)
    cluster.transport.answers["Send"] = refuse_at_a
    answer = await send(cluster, *(message(message_group=f"g{n}") for n in range(8)))
    assert {entry.status.code for entry in answer.entries} == {Code.OK}
    sent = [call for call in cluster.transport.calls if call[1] == "Send"]
    assert any(address == BROKER.addresses[0] for address, _, _ in sent)
    stored = [request for address, _, request in sent if address == other.addresses[0]]
    assert sum(len(request.messages) for request in stored) == 8


async def test_message_groups_wait_for_a_broker_that_has_left_the_route(cluster: Cluster) -> None:
    """It restarts, nearly always: at another broker they would be out of order."""
    other = BrokerData(broker_name="broker-b", addresses={0: "10.0.0.3:10911"})
    names = (BROKER.broker_name, other.broker_name)
    queues = [queue_data(name, kind="FIFO") for name in names]
    both = TopicRoute(queues=queues, brokers=[BROKER, other])
    alone = TopicRoute(queues=queues[1:], brokers=[other])
    cluster.routes["orders"] = GetTopicRouteResponse(route=both)
    proxy = cluster.proxy()
    groups = [f"g{number}" for number in range(8)]

    async def places() -> dict[str, str]:
        """Message group → the broker that it is sent to."""
        before = len(cluster.transport.calls)
        for group in groups:
            request = s.SendMessageRequest(messages=[message(message_group=group)])
            await proxy.rpcs.send_message(request, FakeCall())
        sent = [call for call in cluster.transport.calls[before:] if call[1] == "Send"]
        return dict(zip(groups, [address for address, _, _ in sent], strict=True))

    first = await places()
    assert set(first.values()) == {BROKER.addresses[0], other.addresses[0]}
    cluster.routes["orders"] = GetTopicRouteResponse(route=alone)
    cluster.clock.advance(60)  # the route is fetched again
    assert await places() == first


async def test_a_broker_that_refuses_for_good_is_asked_once_more_for_its_route(
    cluster: Cluster,
) -> None:
    cluster.transport.answers["Send"] = MqError(BrokerCode.NO_PERMISSION, "closed")
    answer = await send(cluster, message())
    assert answer.status.code == Code.FORBIDDEN
    assert len(cluster.transport.requests(SEND)) == 1
    assert len(cluster.transport.requests(GET_TOPIC_ROUTE)) == 2
