"""Sends to one broker: in one batch, and one by one to find the message at fault."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aerobee.broker.v1.message_pb2 import Message, SendResponse, SendResult
from aerobee.namesrv.v1.namesrv_pb2 import BrokerData, GetClusterInfoResponse

from aerobee_proxy.cluster.batches import BrokerBatches
from aerobee_proxy.cluster.broker_calls import BrokerCalls
from aerobee_proxy.cluster.route_cache import RouteCache
from aerobee_wire.rpcs import SEND
from aerobee_wire.status import Code, MqError
from support.clock.manual_clock import ManualClock
from support.codes import raises_code
from support.proxy.fake_transport import FakeTransport

CLUSTER = GetClusterInfoResponse(
    brokers=[BrokerData(broker_name="broker-a", addresses={0: "10.0.0.1:10911"})]
)


def stored(address: str, request: Any) -> SendResponse:
    """Stores all messages, or none when one has the body "illegal"."""
    for message in request.messages:
        if message.body == b"illegal":
            raise MqError(Code.MESSAGE_ILLEGAL, "the body is illegal")
        if message.body == b"unflushed":
            raise MqError(Code.FLUSH_DISK_TIMEOUT, "not known to be durable")
    return SendResponse(
        results=[SendResult(unique_message_id=m.body.decode()) for m in request.messages]
    )


def hung(address: str, request: Any) -> SendResponse:
    """Times out when a message with the body "hang" is sent alone."""
    if [message.body for message in request.messages] == [b"hang"]:
        raise MqError(Code.REQUEST_TIMEOUT, "no answer")
    return stored(address, request)


@pytest.fixture
def transport() -> FakeTransport:
    return FakeTransport(GetClusterInfo=CLUSTER, Send=stored)


@pytest.fixture
def batches(transport: FakeTransport) -> BrokerBatches:
    route_cache = RouteCache(transport, ["10.0.0.9:9876"], ManualClock())
    return BrokerBatches(BrokerCalls(transport, route_cache), route_cache)


async def send(batches: BrokerBatches, *bodies: bytes) -> list[Any]:
    futures = [batches.send("broker-a", Message(body=body)) for body in bodies]
    return await asyncio.gather(*futures, return_exceptions=True)


async def test_concurrent_sends_are_one_request(
    batches: BrokerBatches, transport: FakeTransport
) -> None:
    results = await send(batches, b"1", b"2", b"3")
    assert [result.unique_message_id for result in results] == ["1", "2", "3"]
    assert len(transport.requests(SEND)) == 1


async def test_only_the_message_at_fault_fails(batches: BrokerBatches) -> None:
    good, bad, other = await send(batches, b"1", b"illegal", b"3")
    assert (good.unique_message_id, other.unique_message_id) == ("1", "3")
    assert isinstance(bad, MqError) and bad.code is Code.MESSAGE_ILLEGAL


async def test_batch_that_may_be_stored_is_not_sent_again(
    batches: BrokerBatches, transport: FakeTransport
) -> None:
    outcomes = await send(batches, b"1", b"unflushed")
    assert [outcome.code for outcome in outcomes] == [Code.FLUSH_DISK_TIMEOUT] * 2
    assert len(transport.requests(SEND)) == 1


async def test_messages_do_not_wait_one_by_one_for_a_broker_that_fails_meanwhile(
    batches: BrokerBatches, transport: FakeTransport
) -> None:
    transport.answers["Send"] = hung
    outcomes = await send(batches, b"1", b"illegal", b"hang", b"4", b"5")
    assert outcomes[0].unique_message_id == "1"
    codes = [outcome.code for outcome in outcomes[1:]]
    assert codes == [Code.MESSAGE_ILLEGAL, *[Code.REQUEST_TIMEOUT] * 3]
    assert [len(request.messages) for request in transport.requests(SEND)] == [5, 1, 1, 1]


async def test_unknown_broker(batches: BrokerBatches) -> None:
    with raises_code(Code.BROKER_NOT_EXIST):
        await batches.send("broker-x", Message(body=b"1"))


async def test_moved_broker_is_found(batches: BrokerBatches, transport: FakeTransport) -> None:
    await send(batches, b"1")
    transport.answers["GetClusterInfo"] = GetClusterInfoResponse(
        brokers=[BrokerData(broker_name="broker-a", addresses={0: "10.0.0.2:10911"})]
    )
    transport.answers["Send"] = None
    (failed,) = await send(batches, b"2")
    assert failed.code is Code.BROKER_UNREACHABLE
    transport.answers["Send"] = stored
    (result,) = await send(batches, b"3")
    assert result.unique_message_id == "3"
    assert transport.calls[-1][0] == "10.0.0.2:10911"
