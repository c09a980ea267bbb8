"""The StatusCode × RPC table of the public protocol, over a real broker: one good request of each
RPC, spoilt in one place, and the code that this place has. What single fields of a message may hold
the tests of the validation have more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import ClientType, Code

from aerobee_broker.metadata.topics import TopicConfig
from aerobee_proxy.v2.status import Refused
from aerobee_wire.handles import transaction_id
from aerobee_wire.handles.transaction_id import TransactionId
from aerobee_wire.route import READ, WRITE
from support.clock.virtual_loop import VirtualLoop
from support.proxy.public_requests import ENDPOINTS, GROUP, TOPIC, VALID, message, receive
from support.proxy.whole_cluster import SERVICE, WholeCluster

C = Code
Spoil = Callable[[Any], object]
LEASE_S = 15
GIB = 1 << 30


class World:
    def __init__(self, path: Path) -> None:
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.cluster = self.runner.run(self._begin(path))

    async def _begin(self, path: Path) -> WholeCluster:
        options = {"autoCreateTopicEnable": False, "autoCreateSubscriptionGroup": False}
        cluster = await WholeCluster.begin(path, broker_options=options)
        cluster.topic("orders", "MIXED")
        cluster.topic("normal", "NORMAL")
        cluster.topic("empty", "NORMAL")
        for name, permission in (("write_only", WRITE), ("read_only", READ)):
            cluster.broker.tables.topics.put(TopicConfig(name, 1, 1, permission))
        await cluster.broker.group("billing")
        return cluster

    async def handle(self) -> str:
        """The receipt handle of a new message, leased for 15 s."""
        await self.cluster.ask("SendMessage", VALID["SendMessage"](""))
        answers = await self.cluster.ask("ReceiveMessage", receive(batch_size=1))
        return str(answers[1].message.system_properties.receipt_handle)

    async def status_of(self, rpc: str, spoil: Spoil, kind: str) -> int:
        handle = await self.handle()
        request: Any = VALID[rpc](handle)
        if kind == "over":
            await asyncio.sleep(LEASE_S + 1)
        elif kind == "settled":
            await self.cluster.ask("AckMessage", VALID["AckMessage"](handle))
            await asyncio.sleep(LEASE_S + 1)
        spoil(request)
        try:
            answers = await self.cluster.ask(rpc, request)
        except Refused as refused:  # a telemetry stream ends with an error
            return refused.code
        assert answers[0].status.message
        return int(answers[0].status.code)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("codes"))
    with world.runner:
        yield world
        world.runner.run(world.cluster.end())


def named(place: str, text: str) -> Spoil:
    """Puts a name into a resource of the request, e.g. "message_queue.topic"."""

    def spoil(request: Any) -> None:
        for step in place.split("."):
            request = getattr(request, step)
        request.name = text

    return spoil


def put(**fields: Any) -> Spoil:
    """Sets fields of the request."""

    def spoil(request: Any) -> None:
        for name, value in fields.items():
            setattr(request, name, value)

    return spoil


def sent(**system: Any) -> Spoil:
    """Replaces the message to send by one with these system properties."""

    def spoil(request: Any) -> None:
        request.messages[0].CopyFrom(message(**system))

    return spoil


def ended(broker: str = "broker-a", topic: str = "orders") -> str:
    """The id of a transaction that is not open."""
    return transaction_id.encode(TransactionId(broker, topic, "01AB", 4_711))


def in_message(spoil: Callable[[d.Message], object]) -> Spoil:
    return lambda request: spoil(request.messages[0])


def seconds(field: str, value: int) -> Spoil:
    def spoil(request: Any) -> None:
        getattr(request, field).seconds = value

    return spoil


def several(*spoils: Spoil) -> Spoil:
    def spoil(request: Any) -> None:
        for part in spoils:
            part(request)

    return spoil


def nothing(request: Any) -> None:
    """Spoils nothing."""


def filtered(kind: d.FilterType, text: str) -> Spoil:
    def spoil(request: Any) -> None:
        request.filter_expression.type, request.filter_expression.expression = kind, text

    return spoil


def far_ahead(sent_message: d.Message) -> None:
    sent_message.system_properties.delivery_timestamp.seconds = 4_000_000_000


ILLEGAL_TOPICS = ["", " ", "a b", "ä", "a" * 128, "TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x"]
ILLEGAL_GROUPS = ["", " ", "a b", "ä", "a" * 256, "CID_RMQ_SYS_x"]
TOPIC_PLACES = {
    "QueryRoute": "topic",
    "QueryAssignment": "topic",
    "ReceiveMessage": "message_queue.topic",
    "AckMessage": "topic",
    "ForwardMessageToDeadLetterQueue": "topic",
    "ChangeInvisibleDuration": "topic",
    "PullMessage": "message_queue.topic",
    "UpdateOffset": "message_queue.topic",
    "GetOffset": "message_queue.topic",
    "QueryOffset": "message_queue.topic",
}
GROUP_PLACES = {
    "Heartbeat": "group",
    "QueryAssignment": "group",
    "ReceiveMessage": "group",
    "AckMessage": "group",
    "ForwardMessageToDeadLetterQueue": "group",
    "ChangeInvisibleDuration": "group",
    "PullMessage": "group",
    "UpdateOffset": "group",
    "GetOffset": "group",
    "Telemetry": "settings.subscription.group",
}
# Answers of ack, change and dead-letter where the receipt handle names no lease.
SETTLING = ("AckMessage", "ForwardMessageToDeadLetterQueue", "ChangeInvisibleDuration")


def put_handle(text: str) -> Spoil:
    def spoil(request: Any) -> None:
        (request.entries[0] if hasattr(request, "entries") else request).receipt_handle = text

    return spoil


TABLE: list[tuple[str, Spoil, Code]] = [
    *(
        (rpc, named(place, text), C.ILLEGAL_TOPIC)
        for rpc, place in TOPIC_PLACES.items()
        for text in ILLEGAL_TOPICS
    ),
    *(
        (rpc, named(place, text), C.ILLEGAL_CONSUMER_GROUP)
        for rpc, place in GROUP_PLACES.items()
        for text in ILLEGAL_GROUPS
    ),
    *(
        (rpc, named(TOPIC_PLACES[rpc], "unknown"), C.TOPIC_NOT_FOUND)
        for rpc in ("QueryRoute", "QueryAssignment", "ReceiveMessage", "PullMessage", "QueryOffset")
    ),
    *(
        (rpc, named("group", "nobody"), C.CONSUMER_GROUP_NOT_FOUND)
        for rpc in ("Heartbeat", "ReceiveMessage", "PullMessage")
    ),
    *(
        (rpc, put_handle(text), C.INVALID_RECEIPT_HANDLE)
        for rpc in SETTLING
        for text in ("", "x", "None", "a b c d e f g h", "A" * 2_000)
    ),
    *((rpc, named("topic", "normal"), C.INVALID_RECEIPT_HANDLE) for rpc in SETTLING),
    *((rpc, named("group", "other"), C.INVALID_RECEIPT_HANDLE) for rpc in SETTLING),
    *(
        (rpc, lambda request: request.ClearField("endpoints"), C.ILLEGAL_ACCESS_POINT)
        for rpc in ("QueryRoute", "QueryAssignment")
    ),
    ("QueryRoute", lambda r: put(port=0)(r.endpoints.addresses[0]), C.ILLEGAL_ACCESS_POINT),
    ("QueryRoute", lambda r: put(host=" ")(r.endpoints.addresses[0]), C.ILLEGAL_ACCESS_POINT),
    ("QueryAssignment", named("topic", "write_only"), C.FORBIDDEN),
    ("Heartbeat", put(client_type=0), C.UNRECOGNIZED_CLIENT_TYPE),
    ("Heartbeat", put(client_type=99), C.UNRECOGNIZED_CLIENT_TYPE),
    # ---- sending ----
    *(
        ("SendMessage", in_message(named("topic", text)), C.ILLEGAL_TOPIC)
        for text in ILLEGAL_TOPICS
    ),
    ("SendMessage", in_message(named("topic", "unknown")), C.TOPIC_NOT_FOUND),
    ("SendMessage", in_message(named("topic", "read_only")), C.FORBIDDEN),
    ("SendMessage", lambda r: r.ClearField("messages"), C.MESSAGE_CORRUPTED),
    (
        "SendMessage",
        lambda r: r.messages.add().CopyFrom(d.Message(topic=GROUP)),
        C.MESSAGE_CORRUPTED,
    ),
    *(("SendMessage", sent(tag=tag), C.ILLEGAL_MESSAGE_TAG) for tag in (" ", "a|b", "a\x01")),
    *(("SendMessage", sent(keys=[key]), C.ILLEGAL_MESSAGE_KEY) for key in (" ", "\x7f")),
    *(
        ("SendMessage", sent(message_group=group), C.ILLEGAL_MESSAGE_GROUP)
        for group in (" ", "a" * 64, "ä" * 32, "\x00")
    ),
    *(("SendMessage", sent(message_id=text), C.ILLEGAL_MESSAGE_ID) for text in ("", " ", "\x01")),
    ("SendMessage", sent(lite_topic="a b"), C.ILLEGAL_LITE_TOPIC),
    ("SendMessage", sent(priority=-1), C.BAD_REQUEST),
    ("SendMessage", in_message(far_ahead), C.ILLEGAL_DELIVERY_TIME),
    ("SendMessage", in_message(put(body=b"")), C.MESSAGE_BODY_EMPTY),
    ("SendMessage", in_message(put(body=bytes(4_194_305))), C.MESSAGE_BODY_TOO_LARGE),
    (
        "SendMessage",
        in_message(lambda m: m.user_properties.update({f"k{n}": "v" for n in range(129)})),
        C.MESSAGE_PROPERTIES_TOO_LARGE,
    ),
    (
        "SendMessage",
        in_message(lambda m: m.user_properties.update({"k": "v" * 16_384})),
        C.MESSAGE_PROPERTIES_TOO_LARGE,
    ),
    *(
        (
            "SendMessage",
            in_message(lambda m, pair=pair: m.user_properties.update(dict([pair]))),  # type: ignore[misc]
            C.ILLEGAL_MESSAGE_PROPERTY_KEY,
        )
        for pair in (("UNIQ_KEY", "x"), ("__BORNHOST", "x"), ("a\x01", "x"), ("a", "x\x02"))
    ),
    (
        "SendMessage",
        several(
            in_message(named("topic", "normal")),
            in_message(lambda m: put(message_group="g")(m.system_properties)),
        ),
        C.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    # ---- receiving ----
    ("ReceiveMessage", named("message_queue.topic", "empty"), C.MESSAGE_NOT_FOUND),
    ("ReceiveMessage", named("message_queue.topic", "write_only"), C.FORBIDDEN),
    (
        "ReceiveMessage",  # others may have messages
        several(named("message_queue.topic", "empty"), named("message_queue.broker", "nobody")),
        C.MESSAGE_NOT_FOUND,
    ),
    ("ReceiveMessage", filtered(d.FilterType.SQL, "price >"), C.ILLEGAL_FILTER_EXPRESSION),
    ("ReceiveMessage", filtered(d.FilterType.SQL, " "), C.ILLEGAL_FILTER_EXPRESSION),
    ("ReceiveMessage", filtered(99, "*"), C.ILLEGAL_FILTER_EXPRESSION),  # type: ignore[arg-type]
    ("ReceiveMessage", seconds("invisible_duration", 9), C.ILLEGAL_INVISIBLE_TIME),
    ("ReceiveMessage", seconds("invisible_duration", 43_201), C.ILLEGAL_INVISIBLE_TIME),
    ("ReceiveMessage", seconds("invisible_duration", -GIB), C.ILLEGAL_INVISIBLE_TIME),
    ("ReceiveMessage", seconds("long_polling_timeout", -1), C.ILLEGAL_POLLING_TIME),
    ("PullMessage", put(offset=-1), C.ILLEGAL_OFFSET),
    ("PullMessage", put(offset=GIB), C.ILLEGAL_OFFSET),
    ("PullMessage", named("message_queue.topic", "empty"), C.MESSAGE_NOT_FOUND),
    ("PullMessage", named("message_queue.broker", "nobody"), C.BAD_REQUEST),
    ("PullMessage", filtered(d.FilterType.SQL, "price >"), C.ILLEGAL_FILTER_EXPRESSION),
    # ---- leases ----
    ("AckMessage", lambda r: r.ClearField("entries"), C.INTERNAL_SERVER_ERROR),
    ("AckMessage", lambda r: r.entries.add(receipt_handle="x"), C.MULTIPLE_RESULTS),
    ("ChangeInvisibleDuration", seconds("invisible_duration", -1), C.ILLEGAL_INVISIBLE_TIME),
    ("ChangeInvisibleDuration", seconds("invisible_duration", 43_201), C.ILLEGAL_INVISIBLE_TIME),
    # ---- offsets ----
    ("UpdateOffset", put(offset=-1), C.ILLEGAL_OFFSET),
    ("UpdateOffset", named("message_queue.broker", "nobody"), C.BAD_REQUEST),
    ("GetOffset", lambda r: put(id=77)(r.message_queue), C.OFFSET_NOT_FOUND),
    ("GetOffset", named("message_queue.topic", "unknown"), C.OFFSET_NOT_FOUND),
    ("QueryOffset", lambda r: put(id=77)(r.message_queue), C.BAD_REQUEST),
    ("QueryOffset", put(query_offset_policy=99), C.BAD_REQUEST),
    ("QueryOffset", put(query_offset_policy=d.QueryOffsetPolicy.TIMESTAMP), C.BAD_REQUEST),
    # ---- clients ----
    ("Telemetry", lambda r: r.settings.ClearField("subscription"), C.BAD_REQUEST),
    ("Telemetry", lambda r: put(client_type=ClientType.PRODUCER)(r.settings), C.BAD_REQUEST),
    (
        "Telemetry",
        lambda r: r.settings.client_properties.update({"rocketmq.x": "y"}),
        C.INVALID_CLIENT_PROPERTIES,
    ),
    (
        "Telemetry",
        lambda r: r.settings.subscription.subscriptions.add(topic=d.Resource(name="a b")),
        C.ILLEGAL_TOPIC,
    ),
    ("SyncLiteSubscription", nothing, C.ILLEGAL_TOPIC),
    # ---- transactions: successes are in test_transactions.py ----
    ("EndTransaction", named("topic", "a b"), C.ILLEGAL_TOPIC),
    ("EndTransaction", nothing, C.INVALID_TRANSACTION_ID),
    ("EndTransaction", put(transaction_id=" "), C.INVALID_TRANSACTION_ID),
    ("EndTransaction", put(transaction_id=ended(topic="others")), C.INVALID_TRANSACTION_ID),
    ("EndTransaction", put(transaction_id=ended(broker="nobody")), C.BAD_REQUEST),
    ("EndTransaction", put(transaction_id=ended()), C.INVALID_TRANSACTION_ID),
    # ---- recalls: successes are in test_delays.py ----
    ("RecallMessage", named("topic", "a b"), C.ILLEGAL_TOPIC),
    ("RecallMessage", nothing, C.BAD_REQUEST),
    ("RecallMessage", put(recall_handle=""), C.BAD_REQUEST),
]
OFFERED = set(VALID) - {"EndTransaction", "RecallMessage", "SyncLiteSubscription"}


@pytest.mark.parametrize(
    ("rpc", "spoil", "code"),
    TABLE,
    ids=[f"{rpc}-{Code.Name(code)}-{number}" for number, (rpc, _, code) in enumerate(TABLE)],
)
def test_status_of_each_spoilt_field(world: World, rpc: str, spoil: Spoil, code: Code) -> None:
    found = world.runner.run(world.status_of(rpc, spoil, "good"))
    assert Code.Name(found) == Code.Name(code)


@pytest.mark.parametrize("rpc", sorted(OFFERED))
def test_unspoilt_request_is_answered_with_ok(world: World, rpc: str) -> None:
    assert world.runner.run(world.status_of(rpc, nothing, "good")) == Code.OK


@pytest.mark.parametrize("rpc", SETTLING)
@pytest.mark.parametrize("kind", ["over", "settled"])
def test_handle_of_an_ended_lease(world: World, rpc: str, kind: str) -> None:
    found = world.runner.run(world.status_of(rpc, nothing, kind))
    assert Code.Name(found) == "INVALID_RECEIPT_HANDLE"


@pytest.mark.parametrize("metadata", [{}, {"x-mq-client-id": ""}, {"x-mq-client-id": " \t"}])
@pytest.mark.parametrize("rpc", [method.name for method in SERVICE.methods])
def test_client_id_is_required(world: World, rpc: str, metadata: dict[str, str]) -> None:
    answers = world.runner.run(world.cluster.ask(rpc, VALID[rpc](""), metadata=metadata))
    assert answers[0].status.code == Code.CLIENT_ID_REQUIRED


def test_every_rpc_has_its_rows() -> None:
    rows = {rpc for rpc, _, _ in TABLE}
    # No termination is refused.
    assert rows | {"NotifyClientTermination"} == set(VALID)
    assert set(VALID) == {method.name for method in SERVICE.methods}
    assert ENDPOINTS.addresses and TOPIC.name
