"""RPCs against a cluster in memory: which status each cause has, and what comes back when it works.

The causes are those of the StatusCode × RPC table of the public protocol that need more than one
field: what single fields may hold is tested with the validation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog
from aerobee.broker.v1.admin_pb2 import GetGroupResponse, GroupConfig, PutTopicResponse
from aerobee.namesrv.v1.namesrv_pb2 import BrokerData, GetClusterInfoResponse
from apache.rocketmq.v2 import definition_pb2 as d
from apache.rocketmq.v2 import service_pb2 as s
from apache.rocketmq.v2.definition_pb2 import Code
from apache.rocketmq.v2.service_pb2 import DESCRIPTOR

from aerobee_chassis.rpc.services import bind
from aerobee_proxy.v2 import sessions
from aerobee_wire.rpcs import PUT_TOPIC, SEND, UNREGISTER_CLIENT
from aerobee_wire.status import Code as BrokerCode
from aerobee_wire.status import MqError
from support.proxy.harness import BROKER, CLIENT_ID, Cluster, FakeCall, route

ENDPOINTS = d.Endpoints(
    scheme=d.AddressScheme.DOMAIN_NAME, addresses=[d.Address(host="mq.test", port=18081)]
)
TOPIC = d.Resource(name="orders")
GROUP = d.Resource(name="g")
PUSH, PRODUCER = d.ClientType.PUSH_CONSUMER, d.ClientType.PRODUCER


def queue(**fields: Any) -> d.MessageQueue:
    return d.MessageQueue(topic=TOPIC, broker=d.Broker(name="broker-a"), **fields)


def message(**system: Any) -> d.Message:
    return d.Message(
        topic=TOPIC,
        body=b"body",
        system_properties=d.SystemProperties(**{"message_id": "01AB", **system}),
    )


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


async def ask(cluster: Cluster, rpc: str, request: Any, call: FakeCall | None = None) -> Any:
    return await getattr(cluster.proxy().rpcs, rpc)(request, call or FakeCall())


def test_every_rpc_of_the_public_service_has_a_handler(cluster: Cluster) -> None:
    service = bind(DESCRIPTOR.services_by_name["MessagingService"], cluster.proxy().rpcs)
    assert len(service.methods) == 17


# ---- who calls ----


@pytest.mark.parametrize(
    ("rpc", "request_"),
    [
        ("query_route", s.QueryRouteRequest()),
        ("heartbeat", s.HeartbeatRequest()),
        ("send_message", s.SendMessageRequest()),
        ("query_assignment", s.QueryAssignmentRequest()),
        ("ack_message", s.AckMessageRequest()),
        (
            "forward_message_to_dead_letter_queue",
            s.ForwardMessageToDeadLetterQueueRequest(),
        ),
        ("change_invisible_duration", s.ChangeInvisibleDurationRequest()),
        ("update_offset", s.UpdateOffsetRequest()),
        ("get_offset", s.GetOffsetRequest()),
        ("query_offset", s.QueryOffsetRequest()),
        ("end_transaction", s.EndTransactionRequest()),
        ("notify_client_termination", s.NotifyClientTerminationRequest()),
        ("recall_message", s.RecallMessageRequest()),
        ("sync_lite_subscription", s.SyncLiteSubscriptionRequest()),
    ],
)
async def test_a_caller_without_a_client_id_is_told(
    cluster: Cluster, rpc: str, request_: Any
) -> None:
    answer = await ask(cluster, rpc, request_, FakeCall(metadata={}))
    assert answer.status.code == Code.CLIENT_ID_REQUIRED


@pytest.mark.parametrize(
    ("rpc", "request_"),
    [
        ("receive_message", s.ReceiveMessageRequest()),
        ("pull_message", s.PullMessageRequest()),
    ],
)
async def test_a_stream_tells_a_caller_without_a_client_id(
    cluster: Cluster, rpc: str, request_: Any
) -> None:
    call = FakeCall(metadata={})
    await ask(cluster, rpc, request_, call)
    assert call.written[0].status.code == Code.CLIENT_ID_REQUIRED


async def test_clients_beyond_all_measure_are_turned_away(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 2)
    servicer = cluster.proxy().rpcs
    request = s.QueryRouteRequest(topic=TOPIC, endpoints=ENDPOINTS)
    codes = [
        (await servicer.query_route(request, FakeCall({"x-mq-client-id": name}))).status.code
        for name in ("a", "b", "c", "a", "b")
    ]
    assert codes == [Code.OK, Code.OK, Code.TOO_MANY_REQUESTS, Code.OK, Code.OK]


async def test_a_client_id_beyond_all_measure_is_refused(cluster: Cluster) -> None:
    request = s.QueryRouteRequest(topic=TOPIC, endpoints=ENDPOINTS)
    for size, code in ((512, Code.OK), (513, Code.CLIENT_ID_REQUIRED)):
        answer = await ask(
            cluster, "query_route", request, FakeCall({"x-mq-client-id": "a" * size})
        )
        assert answer.status.code == code


async def test_a_defect_is_told_without_its_details(cluster: Cluster) -> None:
    cluster.transport.answers["GetTopicRoute"] = ZeroDivisionError("a secret")
    answer = await ask(
        cluster, "query_route", s.QueryRouteRequest(topic=TOPIC, endpoints=ENDPOINTS)
    )
    assert answer.status.code == Code.INTERNAL_SERVER_ERROR
    assert "secret" not in answer.status.message


# ---- routes ----


async def test_a_route_leads_back_to_where_the_client_dialled(cluster: Cluster) -> None:
    answer = await ask(
        cluster, "query_route", s.QueryRouteRequest(topic=TOPIC, endpoints=ENDPOINTS)
    )
    assert answer.status.code == Code.OK
    assert [found.id for found in answer.message_queues] == [0, 1, 2, 3]
    assert all(found.broker.endpoints == ENDPOINTS for found in answer.message_queues)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"topic": d.Resource(name="a b")}, Code.ILLEGAL_TOPIC),
        ({"topic": d.Resource(name="TBW102")}, Code.ILLEGAL_TOPIC),
        ({"endpoints": d.Endpoints()}, Code.ILLEGAL_ACCESS_POINT),
        ({"topic": d.Resource(name="unknown")}, Code.TOPIC_NOT_FOUND),
    ],
)
async def test_a_route_is_refused(cluster: Cluster, change: dict[str, Any], code: Code) -> None:
    request = s.QueryRouteRequest(**{"topic": TOPIC, "endpoints": ENDPOINTS, **change})
    assert (await ask(cluster, "query_route", request)).status.code == code


async def test_no_name_server_is_a_timeout_of_the_proxy(cluster: Cluster) -> None:
    cluster.transport.answers["GetTopicRoute"] = None
    request = s.QueryRouteRequest(topic=TOPIC, endpoints=ENDPOINTS)
    assert (await ask(cluster, "query_route", request)).status.code == Code.PROXY_TIMEOUT


async def test_an_unknown_topic_is_made_where_brokers_make_topics(cluster: Cluster) -> None:
    cluster.routes["TBW102"] = route(7, "")

    def put(address: str, request: Any) -> PutTopicResponse:
        cluster.routes[request.topic.topic] = route()
        return PutTopicResponse(created=True)

    cluster.transport.answers["PutTopic"] = put
    request = s.QueryRouteRequest(topic=d.Resource(name="fresh"), endpoints=ENDPOINTS)
    answer = await ask(cluster, "query_route", request)
    assert answer.status.code == Code.OK and len(answer.message_queues) == 4
    (made,) = cluster.transport.requests(PUT_TOPIC)
    assert made.topic.permission == 6 and made.only_new
    assert dict(made.topic.attributes) == {"message.type": "MIXED"}


async def test_clients_that_ask_for_a_new_topic_one_after_the_other_all_get_its_route(
    cluster: Cluster,
) -> None:
    """The question of one was asked before the topic was there, and is answered after."""
    cluster.routes["TBW102"] = route(7, "")

    def put(address: str, request: Any) -> PutTopicResponse:
        cluster.routes[request.topic.topic] = route()
        return PutTopicResponse(created=True)

    cluster.transport.answers["PutTopic"] = put
    at_once = cluster.transport.call

    async def slowly(address: str, rpc: Any, request: Any, *, timeout_s: float) -> Any:
        outcome = await asyncio.gather(
            at_once(address, rpc, request, timeout_s=timeout_s), return_exceptions=True
        )
        await asyncio.sleep(1 if rpc.method == "GetTopicRoute" else 0)
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]

    cluster.transport.call = slowly  # type: ignore[method-assign]
    servicer = cluster.proxy().rpcs
    request = s.QueryRouteRequest(topic=d.Resource(name="fresh"), endpoints=ENDPOINTS)

    async def asked_after(seconds: float) -> Any:
        await asyncio.sleep(seconds)
        return await servicer.query_route(request, FakeCall())

    answers = await asyncio.gather(asked_after(0), asked_after(1.5))
    assert [answer.status.code for answer in answers] == [Code.OK] * 2


async def test_a_topic_is_made_although_one_broker_does_not_answer(cluster: Cluster) -> None:
    pattern = route(7, "")
    pattern.route.queues.add(broker_name="broker-0", read_queue_count=4, write_queue_count=4)
    cluster.routes["TBW102"] = pattern  # nobody knows broker-0

    def put(address: str, request: Any) -> PutTopicResponse:
        cluster.routes[request.topic.topic] = route()
        return PutTopicResponse(created=True)

    pattern.route.queues.reverse()
    cluster.transport.answers["PutTopic"] = put
    request = s.QueryRouteRequest(topic=d.Resource(name="fresh"), endpoints=ENDPOINTS)
    assert (await ask(cluster, "query_route", request)).status.code == Code.OK
    cluster.transport.answers["PutTopic"] = MqError(BrokerCode.DISK_FULL, "no room")
    request.topic.name = "fresher"
    answer = await ask(cluster, "query_route", request)
    assert answer.status.code == Code.BAD_REQUEST and "broker-0" in answer.status.message


async def test_a_broker_without_mixed_types_makes_a_topic_of_normal_messages(
    cluster: Cluster,
) -> None:
    cluster.routes["TBW102"] = route(7, "")

    def put(address: str, request: Any) -> PutTopicResponse:
        if request.topic.attributes:
            raise MqError(BrokerCode.INVALID_PARAMETER, "mixed types are turned off")
        cluster.routes[request.topic.topic] = route(message_type="")
        return PutTopicResponse(created=True)

    cluster.transport.answers["PutTopic"] = put
    request = s.QueryRouteRequest(topic=d.Resource(name="fresh"), endpoints=ENDPOINTS)
    answer = await ask(cluster, "query_route", request)
    assert list(answer.message_queues[0].accept_message_types) == [d.MessageType.NORMAL]


# ---- assignments ----


def assignment(**change: Any) -> s.QueryAssignmentRequest:
    return s.QueryAssignmentRequest(
        **{"topic": TOPIC, "group": GROUP, "endpoints": ENDPOINTS, **change}
    )


async def test_one_queue_stands_for_all_of_a_broker(cluster: Cluster) -> None:
    answer = await ask(cluster, "query_assignment", assignment())
    assert [found.message_queue.id for found in answer.assignments] == [-1]


async def test_an_ordered_group_gets_every_queue(cluster: Cluster) -> None:
    group = GroupConfig(consumer_group="g", consume_message_orderly=True, retry_max_times=3)
    cluster.transport.answers["GetGroup"] = GetGroupResponse(group=group)
    answer = await ask(cluster, "query_assignment", assignment())
    assert [found.message_queue.id for found in answer.assignments] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"topic": d.Resource(name="")}, Code.ILLEGAL_TOPIC),
        ({"group": d.Resource(name="a b")}, Code.ILLEGAL_CONSUMER_GROUP),
        ({"topic": d.Resource(name="unknown")}, Code.TOPIC_NOT_FOUND),
        ({"topic": d.Resource(name="write_only")}, Code.FORBIDDEN),
        ({"endpoints": d.Endpoints()}, Code.ILLEGAL_ACCESS_POINT),
    ],
)
async def test_an_assignment_is_refused(
    cluster: Cluster, change: dict[str, Any], code: Code
) -> None:
    cluster.routes["write_only"] = route(2)
    answer = await ask(cluster, "query_assignment", assignment(**change))
    assert answer.status.code == code


# ---- sending ----


async def send(cluster: Cluster, *messages: d.Message) -> s.SendMessageResponse:
    request = s.SendMessageRequest(messages=messages)
    answer: s.SendMessageResponse = await ask(cluster, "send_message", request)
    return answer


async def test_a_message_keeps_the_id_that_its_client_made(cluster: Cluster) -> None:
    answer = await send(cluster, message(message_id="01CD"))
    assert answer.status.code == Code.OK
    (entry,) = answer.entries
    assert (entry.status.code, entry.message_id, entry.offset) == (Code.OK, "01CD", 7)


async def test_messages_of_one_group_go_to_one_queue(cluster: Cluster) -> None:
    await send(cluster, *(message(message_group="g1") for _ in range(5)))
    (request,) = cluster.transport.requests(SEND)
    assert len({stored.queue_id for stored in request.messages}) == 1


async def test_messages_without_a_group_take_turns(cluster: Cluster) -> None:
    await send(cluster, *(message() for _ in range(8)))
    (request,) = cluster.transport.requests(SEND)
    assert sorted(stored.queue_id for stored in request.messages) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_entries_with_different_outcomes_are_told_one_by_one(cluster: Cluster) -> None:
    taken = cluster.transport.answers["Send"]

    def refuse_some(address: str, request: Any) -> Any:
        if any(b"\1bad\2" in stored.encoded_properties for stored in request.messages):
            raise MqError(BrokerCode.MESSAGE_ILLEGAL, "not that one")
        return taken(address, request)

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
async def test_a_message_is_refused(
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
async def test_what_a_broker_says_is_told_in_the_public_code(
    cluster: Cluster, failure: BrokerCode, code: Code
) -> None:
    cluster.transport.answers["Send"] = MqError(failure, "because")
    answer = await send(cluster, message())
    assert (answer.status.code, answer.entries[0].status.code) == (code, code)


@pytest.mark.parametrize(("priority", "queue_id"), [(0, 0), (2, 2), (3, 3), (9, 3)])
async def test_a_priority_goes_into_its_queue(
    cluster: Cluster, priority: int, queue_id: int
) -> None:
    cluster.routes["orders"] = route(message_type="PRIORITY")
    assert (await send(cluster, message(priority=priority))).status.code == Code.OK
    (stored,) = cluster.transport.requests(SEND)[0].messages
    assert stored.queue_id == queue_id
    assert f"_SYS_MSG_PRIORITY_\1{priority}\2".encode() in stored.encoded_properties


@pytest.mark.parametrize(
    ("kind", "system"), [("PRIORITY", {}), ("NORMAL", {"priority": 1}), ("MIXED", {"priority": 1})]
)
async def test_a_priority_and_its_topic_belong_together(
    cluster: Cluster, kind: str, system: dict[str, int]
) -> None:
    cluster.routes["orders"] = route(message_type=kind)
    answer = await send(cluster, message(**system))
    assert answer.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


# ---- clients ----


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (PRODUCER, Code.OK),
        (d.ClientType.CLIENT_TYPE_UNSPECIFIED, Code.UNRECOGNIZED_CLIENT_TYPE),
    ],
)
async def test_a_heartbeat_may_overtake_settings(
    cluster: Cluster, kind: d.ClientType, code: Code
) -> None:
    answer = await ask(cluster, "heartbeat", s.HeartbeatRequest(client_type=kind))
    assert answer.status.code == code


async def test_a_goodbye_is_fine_from_a_client_that_nobody_knew(cluster: Cluster) -> None:
    request = s.NotifyClientTerminationRequest()
    answer = await ask(cluster, "notify_client_termination", request)
    assert answer.status.code == Code.OK


async def test_a_broker_that_is_not_told_of_clients_is_logged_seldom(cluster: Cluster) -> None:
    cluster.transport.answers["Heartbeat"] = MqError(BrokerCode.REQUEST_TIMEOUT, "no answer")
    servicer = cluster.proxy().rpcs
    request = s.HeartbeatRequest(client_type=PUSH, group=GROUP)
    with structlog.testing.capture_logs() as logs:
        for _ in range(20):
            answer = await servicer.heartbeat(request, FakeCall())
            assert answer.status.code == Code.OK
            cluster.clock.advance(1_000)
    told = [(line["broker"], line["suppressed"]) for line in logs]
    assert told == [("broker-a", 0), ("broker-a", 9)]


async def test_a_goodbye_counts_although_its_client_does_not_wait(cluster: Cluster) -> None:
    other = BrokerData(broker_name="broker-b", addresses={0: "10.0.0.2:10911"})
    cluster.transport.answers["GetClusterInfo"] = GetClusterInfoResponse(brokers=[BROKER, other])
    proxy = cluster.proxy()
    servicer = proxy.rpcs
    request = s.NotifyClientTerminationRequest(group=GROUP)

    async def say_goodbye() -> None:
        await servicer.notify_client_termination(request, FakeCall())

    cluster.transport.gate.clear()
    said = asyncio.create_task(say_goodbye())
    await asyncio.sleep(1)
    said.cancel()
    await asyncio.wait([said])
    cluster.transport.gate.set()
    await proxy.background.close()
    assert len(cluster.transport.requests(UNREGISTER_CLIENT)) == 2


async def test_a_goodbye_takes_the_client_out_of_its_group_and_no_other(cluster: Cluster) -> None:
    group = d.Resource(name="billing", resource_namespace="eu")
    request = s.NotifyClientTerminationRequest(group=group)
    await ask(cluster, "notify_client_termination", request)
    (told,) = cluster.transport.requests(UNREGISTER_CLIENT)
    assert (told.client_id, told.consumer_group) == (CLIENT_ID, "eu%billing")
