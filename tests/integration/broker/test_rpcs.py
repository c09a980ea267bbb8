"""Messages through a real broker beside a real name server: in, out, retried, dead, remembered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import grpc
import pytest
from aerobee.broker.v1 import client_pb2, message_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_wire.status import Code
from support.broker.calls import BrokerCaller
from support.clock.polling import until
from support.processes.service import namesrv_and_broker
from support.stubs import Stub


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Addresses of a name server and of a broker that every test of the module shares."""
    with namesrv_and_broker(tmp_path_factory.mktemp("cluster")) as (namesrv, broker):
        yield namesrv.address, broker.address


@pytest.fixture
async def broker(cluster: tuple[str, str]) -> AsyncIterator[BrokerCaller]:
    async with BrokerCaller(cluster[1]) as caller:
        yield caller


async def route(address: str, topic: str) -> Any:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = Stub(namesrv_pb2, channel)
        request = namesrv_pb2.GetTopicRouteRequest(topic=topic)
        return (await stub.GetTopicRoute(request)).route


# ---- in and out ----


async def test_messages_are_pulled_as_they_were_sent(broker: BrokerCaller) -> None:
    sent = await broker.send("plain", b"a", b"b", properties={"TAGS": "x", "KEYS": "k"}, flag=3)
    stored = await broker.read("plain")
    assert [message.body for message in stored] == [b"a", b"b"]
    assert [message.offset_message_id for message in stored] == [
        message.offset_message_id for message in sent
    ]
    assert (stored[0].properties["TAGS"], stored[0].flag) == ("x", 3)
    assert stored[0].born_host.startswith("127.0.0.1:")


async def test_a_batch_is_stored_in_order(broker: BrokerCaller) -> None:
    bodies = [b"%d" % number for number in range(500)]
    result = await broker.send_batch("batch", bodies)
    stored = await broker.read("batch")
    assert [message.body for message in stored] == bodies
    assert [message.physical_offset for message in stored] == list(result.physical_offsets)


async def test_a_new_topic_is_in_the_route_before_the_send_is_answered(
    broker: BrokerCaller, cluster: tuple[str, str]
) -> None:
    await broker.send("sudden", b"a")
    found = await route(cluster[0], "sudden")
    assert [(queue.broker_name, queue.write_queue_count) for queue in found.queues] == [
        ("broker-a", 4)
    ]
    assert dict(found.brokers[0].addresses) == {0: cluster[1]}
    await broker.put_topic("made", queues=3)
    assert (await route(cluster[0], "made")).queues[0].read_queue_count == 3


# ---- failure, retry, dead letter ----


async def test_a_poison_message_is_retried_then_dead_lettered_with_its_last_reason(
    broker: BrokerCaller,
) -> None:
    await broker.put_group("arrival", attempts=3, delays_ms=[50, 100])
    sent = await broker.send("flights", b"poison", properties={"UNIQ_KEY": "F1", "TAGS": "UA"})
    place = sent[0].physical_offset
    for attempt in range(2):
        results = await broker.give_back("arrival", place, reason="KeyError")
        assert [(result.code, result.dead_lettered) for result in results] == [(0, False)]
        answer = await broker.pull(
            "arrival", "%RETRY%arrival", queue_offset=attempt, suspend_timeout_ms=20_000
        )
        assert [message.reconsume_times for message in answer.messages] == [attempt + 1]
        place = answer.messages[0].physical_offset
    results = await broker.give_back(
        "arrival", place, reason="ValueError", description="no arrival time"
    )
    assert [result.dead_lettered for result in results] == [True]
    dead = (await broker.read("%DLQ%arrival"))[0]
    assert (dead.body, dead.reconsume_times) == (b"poison", 3)
    assert dead.properties["DLQ_ORIGIN_TOPIC"] == "flights"
    assert dead.properties["DLQ_ORIGIN_MESSAGE_ID"] == "F1"
    assert dead.properties["DLQ_REASON"] == "ValueError"
    assert dead.properties["DLQ_REASON_DESCRIPTION"] == "no arrival time"
    assert dead.properties["TAGS"] == "UA"
    assert dead.store_timestamp_ms - dead.born_timestamp_ms >= 150


# ---- clients ----


async def test_members_of_a_group_are_notified_of_each_other(
    broker: BrokerCaller, cluster: tuple[str, str]
) -> None:
    def heartbeat(client_id: str) -> client_pb2.HeartbeatRequest:
        consumer = client_pb2.ConsumerData(consumer_group="members")
        return client_pb2.HeartbeatRequest(client_id=client_id, consumers=[consumer])

    async def members() -> list[str]:
        request = client_pb2.ListGroupMembersRequest(consumer_group="members")
        return list((await broker.call(broker.clients.ListGroupMembers, request)).client_ids)

    watch = broker.clients.WatchClient(client_pb2.WatchClientRequest(client_id="a"))
    assert (await watch.read()).HasField("watching")
    await broker.call(broker.clients.Heartbeat, heartbeat("a"))
    assert (await watch.read()).group_members_changed.consumer_group == "members"
    other = BrokerCaller(cluster[1])
    stream = other.clients.WatchClient(client_pb2.WatchClientRequest(client_id="b"))
    await stream.read()
    await other.call(other.clients.Heartbeat, heartbeat("b"))
    assert (await watch.read()).group_members_changed.consumer_group == "members"
    assert await members() == ["a", "b"]
    await other.__aexit__(None, None, None)  # its connection breaks
    assert (await watch.read()).group_members_changed.consumer_group == "members"
    assert await members() == ["a"]
    watch.cancel()
    await until(lambda: _nobody(members), "the client that hung up is forgotten")


async def _nobody(members: Callable[[], Awaitable[list[str]]]) -> bool:
    return await members() == []


# ---- bad input ----


@pytest.mark.parametrize(
    ("fields", "status", "code", "says"),
    [
        ({"body": b""}, "INVALID_ARGUMENT", Code.MESSAGE_ILLEGAL, "empty"),
        (
            {"body": b"x" * (4 * 1024 * 1024 + 1)},
            "INVALID_ARGUMENT",
            Code.MESSAGE_ILLEGAL,
            "4194304",
        ),
        ({"topic": "bad topic"}, "INVALID_ARGUMENT", Code.INVALID_PARAMETER, "illegal"),
        ({"topic": "../etc"}, "INVALID_ARGUMENT", Code.INVALID_PARAMETER, "illegal"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "PERMISSION_DENIED", Code.NO_PERMISSION, "system"),
        ({"queue_id": 8}, "OUT_OF_RANGE", Code.QUEUE_NOT_EXIST, "queues 0 to"),
    ],
)
async def test_bad_input_is_answered_with_a_typed_error(
    broker: BrokerCaller, fields: dict[str, Any], status: str, code: Code, says: str
) -> None:
    message = message_pb2.Message(**{"topic": "typed", "body": b"x", "queue_id": 0, **fields})
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await broker.messages.Send(message_pb2.SendRequest(messages=[message]))
    assert caught.value.code() is getattr(grpc.StatusCode, status)
    assert says in (caught.value.details() or "")
    metadata: Any = caught.value.trailing_metadata()
    trailers = dict(metadata)
    assert trailers["aerobee-code"] == code.name
    assert trailers["aerobee-code-number"] == str(int(code))
    assert trailers["aerobee-retryable"] == "false"


async def test_random_bytes_as_a_request_do_no_harm(
    broker: BrokerCaller, cluster: tuple[str, str]
) -> None:
    async with grpc.aio.insecure_channel(cluster[1]) as channel:
        raw: Any = channel.unary_unary("/aerobee.broker.v1.MessageService/Send", None, None)
        for junk in (b"\xff" * 100, b"\x0a\x7f", b"{}"):
            with pytest.raises(grpc.aio.AioRpcError):
                await raw(junk)
    assert (await broker.status()).broker_name == "broker-a"
