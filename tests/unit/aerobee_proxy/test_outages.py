"""A broker that went away: who waits for it, for how long, and who is told at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aerobee.broker.v1.pop_pb2 import AckRequest, AckResponse, Lease, LeaseResult, PopResponse
from aerobee.namesrv.v1.namesrv_pb2 import BrokerData, GetClusterInfoResponse
from apache.rocketmq.v2 import definition_pb2 as d
from apache.rocketmq.v2 import service_pb2 as s

from aerobee_proxy.brokers import PATIENCE_S, Brokers
from aerobee_proxy.parts import Parts
from aerobee_proxy.rpc.servicer import Servicer
from aerobee_proxy.rpcs import ACK, GET_CLUSTER_INFO, POP
from aerobee_proxy.topology import Topology
from aerobee_wire.status import Code, MqError
from support.fake_transport import FakeTransport
from support.manual_clock import ManualClock
from support.proxy import Cluster, FakeCall

CLUSTER = GetClusterInfoResponse(
    brokers=[BrokerData(broker_name="broker-a", addresses={0: "10.0.0.1:10911"})]
)
POLL_S = 8


def acknowledged(address: str, request: AckRequest) -> AckResponse:
    return AckResponse(results=[LeaseResult() for _ in request.leases])


@pytest.fixture
def transport() -> FakeTransport:
    return FakeTransport(GetClusterInfo=CLUSTER, Ack=acknowledged)


@pytest.fixture
def brokers(transport: FakeTransport) -> Brokers:
    return Brokers(transport, Topology(transport, ["10.0.0.9:9876"], ManualClock()))


async def ack(brokers: Brokers, broker_name: str = "broker-a") -> None:
    await brokers.ack(broker_name, [Lease()])


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def failed_after_s(brokers: Brokers, broker_name: str = "broker-a") -> float:
    began = now_s()
    with pytest.raises(MqError):
        await ack(brokers, broker_name)
    return now_s() - began


@pytest.mark.parametrize("gone", ["silent", "unregistered"])
async def test_a_settlement_waits_for_a_broker_that_starts_again(
    brokers: Brokers, transport: FakeTransport, gone: str
) -> None:
    await ack(brokers)
    transport.answers["Ack"] = None
    if gone == "unregistered":
        transport.answers["GetClusterInfo"] = GetClusterInfoResponse()
    waiting = asyncio.create_task(ack(brokers))
    await asyncio.sleep(PATIENCE_S / 2)
    assert not waiting.done()
    transport.answers.update(Ack=acknowledged, GetClusterInfo=CLUSTER)
    await waiting


async def test_nobody_waits_for_longer_than_an_sdk_does(
    brokers: Brokers, transport: FakeTransport
) -> None:
    """From when the broker was first missed, not each anew."""
    await ack(brokers)
    transport.answers["Ack"] = None
    assert PATIENCE_S / 2 < await failed_after_s(brokers) <= PATIENCE_S
    await asyncio.sleep(PATIENCE_S)
    assert await failed_after_s(brokers) == 0
    transport.answers["Ack"] = acknowledged
    await ack(brokers)
    transport.answers["Ack"] = None
    assert await failed_after_s(brokers) > 0  # another outage


async def test_a_broker_that_never_answered_is_not_waited_for(brokers: Brokers) -> None:
    assert await failed_after_s(brokers, "made-up") == 0


async def test_all_who_miss_a_broker_share_the_question_where_it_is(
    brokers: Brokers, transport: FakeTransport
) -> None:
    transport.gate.clear()
    asking = [asyncio.create_task(brokers.ask("broker-a", ACK, AckRequest())) for _ in range(9)]
    await asyncio.sleep(0)
    transport.gate.set()
    await asyncio.gather(*asking)
    assert len(transport.requests(GET_CLUSTER_INFO)) == 1


def poll() -> s.ReceiveMessageRequest:
    request = s.ReceiveMessageRequest(
        group=d.Resource(name="g"),
        message_queue=d.MessageQueue(
            topic=d.Resource(name="orders"), broker=d.Broker(name="broker-a"), id=-1
        ),
        filter_expression=d.FilterExpression(type=d.FilterType.TAG, expression="*"),
        auto_renew=True,
    )
    request.long_polling_timeout.seconds = POLL_S
    return request


async def polled(parts: Parts) -> Any:
    call = FakeCall()
    await Servicer(parts).receive_message(poll(), call)
    return call.written[0].status.code


async def test_a_poll_lasts_as_long_as_it_was_to_whether_its_broker_is_there_or_not() -> None:
    cluster = Cluster()
    parts = cluster.parts()
    cluster.transport.answers["Pop"] = PopResponse(broker_name="broker-a")
    assert await polled(parts) == d.Code.MESSAGE_NOT_FOUND
    cluster.transport.answers["Pop"] = None
    began = now_s()
    assert await polled(parts) == d.Code.PROXY_TIMEOUT
    assert POLL_S / 2 < now_s() - began <= POLL_S
    durations = [request.poll_duration_ms for request in cluster.transport.requests(POP)]
    assert max(durations) == POLL_S * 1_000


async def test_a_poll_goes_on_once_its_broker_is_back() -> None:
    cluster = Cluster()
    parts = cluster.parts()
    there = PopResponse(broker_name="broker-a")
    cluster.transport.answers["Pop"] = there
    await polled(parts)
    cluster.transport.answers["Pop"] = MqError(Code.BROKER_UNREACHABLE, "starting again")
    polling = asyncio.create_task(polled(parts))
    await asyncio.sleep(POLL_S / 2)
    cluster.transport.answers["Pop"] = there
    assert await polling == d.Code.MESSAGE_NOT_FOUND
    assert now_s() < POLL_S
