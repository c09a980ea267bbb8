"""A broker that is away: which calls wait for it, for how long, and which fail at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aerobee.broker.v1.message_pb2 import SendResponse, SendResult
from aerobee.broker.v1.pop_pb2 import AckRequest, AckResponse, LeaseSet, PopResponse
from aerobee.namesrv.v1.namesrv_pb2 import (
    BrokerData,
    GetClusterInfoResponse,
    GetTopicRouteResponse,
    TopicRoute,
)
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from aerobee_proxy.cluster.availability import AVOID_S
from aerobee_proxy.cluster.batches import BrokerBatches
from aerobee_proxy.cluster.broker_calls import PATIENCE_S, BrokerCalls
from aerobee_proxy.cluster.route_cache import RouteCache
from aerobee_proxy.proxy import Proxy
from aerobee_wire.rpcs import ACK, GET_CLUSTER_INFO, POP, SEND
from aerobee_wire.status import Code, MqError
from support.clock.manual_clock import ManualClock
from support.proxy.fake_transport import FakeTransport
from support.proxy.harness import Cluster, FakeCall
from support.proxy.routes import queue_data

CLUSTER = GetClusterInfoResponse(
    brokers=[BrokerData(broker_name="broker-a", addresses={0: "10.0.0.1:10911"})]
)
POLL_S = 8


def acknowledged(address: str, request: AckRequest) -> AckResponse:
    return AckResponse(lease_sets=len(request.lease_sets))


@pytest.fixture
def transport() -> FakeTransport:
    return FakeTransport(GetClusterInfo=CLUSTER, Ack=acknowledged)


@pytest.fixture
def route_cache(transport: FakeTransport) -> RouteCache:
    return RouteCache(transport, ["10.0.0.9:9876"], ManualClock())


@pytest.fixture
def calls(transport: FakeTransport, route_cache: RouteCache) -> BrokerCalls:
    return BrokerCalls(transport, route_cache)


@pytest.fixture
def batches(calls: BrokerCalls, route_cache: RouteCache) -> BrokerBatches:
    return BrokerBatches(calls, route_cache)


async def ack(batches: BrokerBatches, broker_name: str = "broker-a") -> None:
    await batches.acknowledge(broker_name, [LeaseSet(queue_offsets=[1])])


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def failed_after_s(batches: BrokerBatches, broker_name: str = "broker-a") -> float:
    began = now_s()
    with pytest.raises(MqError):
        await ack(batches, broker_name)
    return now_s() - began


@pytest.mark.parametrize("gone", ["silent", "unregistered"])
async def test_ack_waits_for_a_restarting_broker(
    batches: BrokerBatches, transport: FakeTransport, gone: str
) -> None:
    await ack(batches)
    transport.answers["Ack"] = None
    if gone == "unregistered":
        transport.answers["GetClusterInfo"] = GetClusterInfoResponse()
    waiting = asyncio.create_task(ack(batches))
    await asyncio.sleep(PATIENCE_S / 2)
    assert not waiting.done()
    transport.answers.update(Ack=acknowledged, GetClusterInfo=CLUSTER)
    await waiting


async def test_ack_waits_no_longer_than_sdks_do(
    batches: BrokerBatches, transport: FakeTransport
) -> None:
    """Counted from the first failed call, not from each call."""
    await ack(batches)
    transport.answers["Ack"] = None
    assert PATIENCE_S / 2 < await failed_after_s(batches) <= PATIENCE_S
    await asyncio.sleep(PATIENCE_S)
    assert await failed_after_s(batches) == 0
    transport.answers["Ack"] = acknowledged
    await ack(batches)
    transport.answers["Ack"] = None
    assert await failed_after_s(batches) > 0  # another outage


async def test_ack_does_not_wait_for_an_unknown_broker(batches: BrokerBatches) -> None:
    assert await failed_after_s(batches, "made-up") == 0


async def test_callers_share_the_fetch_of_an_address(
    calls: BrokerCalls, transport: FakeTransport
) -> None:
    transport.gate.clear()
    asking = [asyncio.create_task(calls.call("broker-a", ACK, AckRequest())) for _ in range(9)]
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


async def polled(proxy: Proxy) -> Any:
    call = FakeCall()
    await proxy.rpcs.receive_message(poll(), call)
    return call.written[0].status.code


async def test_long_poll_at_an_absent_broker_lasts_its_time() -> None:
    cluster = Cluster()
    proxy = cluster.proxy()
    cluster.transport.answers["Pop"] = PopResponse(broker_name="broker-a")
    assert await polled(proxy) == d.Code.MESSAGE_NOT_FOUND
    cluster.transport.answers["Pop"] = None
    began = now_s()
    assert await polled(proxy) == d.Code.MESSAGE_NOT_FOUND
    assert POLL_S / 2 < now_s() - began <= POLL_S
    durations = [request.poll_duration_ms for request in cluster.transport.requests(POP)]
    assert max(durations) == POLL_S * 1_000


async def test_long_poll_waits_for_a_broker_that_left_before_the_proxy_started() -> None:
    cluster = Cluster()
    cluster.routes.clear()
    other = BrokerData(broker_name="broker-b", addresses={0: "10.0.0.2:10911"})
    cluster.transport.answers["GetClusterInfo"] = GetClusterInfoResponse(brokers=[other])
    began = now_s()
    assert await polled(cluster.proxy()) == d.Code.MESSAGE_NOT_FOUND
    assert now_s() - began == pytest.approx(POLL_S, abs=0.1)


async def test_long_poll_goes_on_when_the_broker_is_back() -> None:
    cluster = Cluster()
    proxy = cluster.proxy()
    there = PopResponse(broker_name="broker-a")
    cluster.transport.answers["Pop"] = there
    await polled(proxy)
    cluster.transport.answers["Pop"] = MqError(Code.BROKER_UNREACHABLE, "starting again")
    polling = asyncio.create_task(polled(proxy))
    await asyncio.sleep(POLL_S / 2)
    cluster.transport.answers["Pop"] = there
    assert await polling == d.Code.MESSAGE_NOT_FOUND
    assert now_s() < POLL_S


# ---- sends ----


class Brokers:
    """`away`: addresses of brokers that do not answer. `refusal`: why broker a refuses messages.
    `stored`: body → address of its broker."""

    def __init__(self, *names: str) -> None:
        self.cluster = Cluster()
        self.away: set[str] = set()
        self.refusal: Code | None = None
        self.stored: dict[str, str] = {}
        self.cluster.transport.answers |= {"Send": self._send, "GetGroup": self._get_group}
        self.proxy = self.cluster.proxy()
        self.register(*names)

    def _send(self, address: str, request: Any) -> SendResponse:
        self._reach(address)
        if self.refusal is not None and address == "a:10911":
            raise MqError(self.refusal, "not now")
        self.stored |= {message.body.decode(): address for message in request.messages}
        return SendResponse(results=[SendResult() for _ in request.messages])

    def _get_group(self, address: str, request: Any) -> None:
        self._reach(address)
        raise MqError(Code.SUBSCRIPTION_GROUP_NOT_EXIST, "no such group")

    def _reach(self, address: str) -> None:
        if address in self.away:
            raise MqError(Code.BROKER_UNREACHABLE, "starting again")

    def register(self, *names: str) -> None:
        """The name servers know these brokers and no others, and the proxy asks them anew."""
        brokers = [BrokerData(broker_name=name, addresses={0: f"{name}:10911"}) for name in names]
        queues = [queue_data(name, 4, 4, kind="MIXED") for name in names]
        self.cluster.routes["orders"] = GetTopicRouteResponse(
            route=TopicRoute(queues=queues, brokers=brokers)
        )
        self.cluster.transport.answers["GetClusterInfo"] = GetClusterInfoResponse(brokers=brokers)
        self.proxy.route_cache.expire("orders")

    async def send(self, body: str, group: str = "") -> bool:
        return await self.code(body, group) == d.Code.OK

    async def code(self, body: str, *groups: str) -> d.Code:
        """Send a message of each group in one request, and return the code of the answer."""
        messages = [
            d.Message(
                topic=d.Resource(name="orders"),
                body=body.encode(),
                system_properties=d.SystemProperties(message_id=body, message_group=group),
            )
            for group in groups
        ]
        request = s.SendMessageRequest(messages=messages)
        answer = await self.proxy.rpcs.send_message(request, FakeCall())
        code: d.Code = answer.status.code
        return code


async def test_sends_avoid_a_broker_that_is_away() -> None:
    brokers = Brokers("a", "b")
    assert all([await brokers.send(f"before {n}") for n in range(8)])
    brokers.away = {"a:10911"}
    outcomes = [await brokers.send(f"without {n}") for n in range(20)]
    assert outcomes.count(False) <= 1  # the send that found the broker away
    assert {brokers.stored.get(f"without {n}", "b:10911") for n in range(20)} == {"b:10911"}
    brokers.away = set()
    await asyncio.sleep(AVOID_S)
    assert all([await brokers.send(f"after {n}") for n in range(8)])
    assert {brokers.stored[f"after {n}"] for n in range(8)} == {"a:10911", "b:10911"}


@pytest.mark.parametrize("code", [Code.DISK_FULL, Code.SERVICE_NOT_AVAILABLE])
async def test_sends_avoid_a_broker_that_refuses_messages(code: Code) -> None:
    """SDKs send again at the code that they get, and the next broker takes the message."""
    brokers = Brokers("a", "b")
    brokers.refusal = code
    outcomes = [await brokers.send(f"{n}") for n in range(20)]
    assert outcomes.count(False) == 1 and set(brokers.stored.values()) == {"b:10911"}
    brokers.refusal = None
    await asyncio.sleep(AVOID_S)
    assert all([await brokers.send(f"after {n}") for n in range(8)])
    assert "a:10911" in brokers.stored.values()


@pytest.mark.parametrize("names", [("a",), ("a", "b")])
async def test_send_waits_for_its_only_broker(names: tuple[str, ...]) -> None:
    """With two brokers, its message group binds it to one of them."""
    brokers = Brokers(*names)
    groups = [f"g{n}" for n in range(20)]
    for group in groups:
        await brokers.send(group, group)
    group = next(group for group in groups if brokers.stored[group] == "a:10911")
    brokers.away = {"a:10911"}
    assert not await brokers.send("discovery", group)
    began = now_s()
    waiting = asyncio.create_task(brokers.send("waits", group))
    await asyncio.sleep(PATIENCE_S / 2)
    assert not waiting.done()
    brokers.away = set()
    assert await waiting and brokers.stored["waits"] == "a:10911"
    assert now_s() - began <= PATIENCE_S
    assert len(brokers.cluster.transport.requests(SEND)) == len(groups) + 2


async def test_send_gives_up_waiting() -> None:
    brokers = Brokers("a")
    await brokers.send("before")
    brokers.away = {"a:10911"}
    await brokers.send("discovery")
    began = now_s()
    assert not await brokers.send("without success")
    assert PATIENCE_S / 2 < now_s() - began <= PATIENCE_S


async def test_a_request_waits_for_all_its_brokers_at_once() -> None:
    brokers = Brokers("a", "b")
    groups = [f"g{n}" for n in range(20)]
    assert await brokers.code("before", *groups) == d.Code.OK
    brokers.away = {"a:10911", "b:10911"}
    await brokers.code("discovery", *groups)
    began = now_s()
    assert await brokers.code("without success", *groups) == d.Code.PROXY_TIMEOUT
    assert PATIENCE_S / 2 < now_s() - began <= PATIENCE_S


async def test_a_broker_that_left_the_name_servers_is_away_for_its_message_groups() -> None:
    """Not an error of the request: its producer tries again, as when the broker does not answer."""
    brokers = Brokers("a", "b")
    groups = [f"g{n}" for n in range(20)]
    for group in groups:
        await brokers.send(group, group)
    group = next(group for group in groups if brokers.stored[group] == "a:10911")
    brokers.away = {"a:10911"}
    assert await brokers.code("discovery", group) == d.Code.PROXY_TIMEOUT
    brokers.register("b")
    assert await brokers.code("gone", group) == d.Code.PROXY_TIMEOUT
    assert not {"discovery", "gone"} & brokers.stored.keys()
