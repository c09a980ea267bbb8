"""Routes and addresses: kept, asked for again, and given out while no name server answers."""

from __future__ import annotations

import asyncio

import pytest
import structlog
from aerobee.namesrv.v1.namesrv_pb2 import (
    BrokerData,
    GetClusterInfoResponse,
    GetTopicRouteResponse,
    QueueData,
    TopicRoute,
)

from aerobee_proxy.cluster.route_cache import CLUSTER_MS, EXPIRE_MS, REFRESH_MS, Topology
from aerobee_proxy.cluster.single_flight import AGAIN_MS, PATIENCE_S
from aerobee_wire.rpcs import GET_TOPIC_ROUTE
from aerobee_wire.status import Code, MqError
from support.clock.manual_clock import ManualClock
from support.proxy.fake_transport import FakeTransport

ROUTE = TopicRoute(
    queues=[QueueData(broker_name="broker-a", read_queue_count=4, write_queue_count=4)],
    brokers=[BrokerData(broker_name="broker-a", addresses={0: "10.0.0.1:10911"})],
)
NAMESRVS = ["10.0.0.8:9876", "10.0.0.9:9876"]


@pytest.fixture
def transport() -> FakeTransport:
    return FakeTransport(GetTopicRoute=GetTopicRouteResponse(route=ROUTE))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def topology(transport: FakeTransport, clock: ManualClock) -> Topology:
    return Topology(transport, NAMESRVS, clock)


async def test_a_route_is_kept_and_then_asked_for_again(
    topology: Topology, transport: FakeTransport, clock: ManualClock
) -> None:
    for _ in range(3):
        assert await topology.route("t") == ROUTE
    assert len(transport.calls) == 1
    clock.advance(REFRESH_MS)
    await topology.route("t")
    assert len(transport.calls) == 2


async def test_concurrent_callers_share_one_question(
    topology: Topology, transport: FakeTransport
) -> None:
    transport.gate.clear()
    callers = [asyncio.create_task(topology.route("t")) for _ in range(5)]
    await asyncio.sleep(0)
    callers[0].cancel()
    transport.gate.set()
    outcomes = await asyncio.gather(*callers, return_exceptions=True)
    assert outcomes[1:] == [ROUTE] * 4
    assert len(transport.requests(GET_TOPIC_ROUTE)) == 1


async def test_an_old_route_serves_while_no_name_server_answers_but_not_for_ever(
    topology: Topology, transport: FakeTransport, clock: ManualClock
) -> None:
    await topology.route("t")
    transport.answers["GetTopicRoute"] = None
    clock.advance(REFRESH_MS)
    assert await topology.route("t") == ROUTE
    clock.advance(EXPIRE_MS)
    with pytest.raises(MqError) as caught:
        await topology.route("t")
    assert caught.value.code is Code.NAMESRV_UNREACHABLE


async def test_a_deleted_topic_is_not_served_from_memory(
    topology: Topology, transport: FakeTransport, clock: ManualClock
) -> None:
    await topology.route("t")
    transport.answers["GetTopicRoute"] = MqError(Code.TOPIC_NOT_EXIST, "no such topic")
    transport.answers["GetClusterInfo"] = GetClusterInfoResponse(brokers=ROUTE.brokers)
    clock.advance(REFRESH_MS)
    with pytest.raises(MqError, match="no such topic"):
        await topology.route("t")


async def test_a_topic_whose_broker_is_away_is_not_gone_yet(
    topology: Topology, transport: FakeTransport, clock: ManualClock
) -> None:
    """Who took it for gone would make it anew, on other brokers."""
    await topology.route("t")
    transport.answers["GetTopicRoute"] = MqError(Code.TOPIC_NOT_EXIST, "no such topic")
    transport.answers["GetClusterInfo"] = GetClusterInfoResponse(
        brokers=[BrokerData(broker_name="broker-b", addresses={0: "10.0.0.2:10911"})]
    )
    clock.advance(EXPIRE_MS - 1)
    assert await topology.route("t") == ROUTE
    clock.advance(AGAIN_MS)
    with pytest.raises(MqError, match="no such topic"):
        await topology.route("t")


async def test_the_next_name_server_is_asked_when_one_is_silent_and_first_from_then_on(
    topology: Topology, transport: FakeTransport
) -> None:
    def answer(address: str, request: object) -> GetTopicRouteResponse:
        if address == NAMESRVS[0]:
            raise MqError(Code.BROKER_UNREACHABLE, "silent")
        return GetTopicRouteResponse(route=ROUTE)

    transport.answers["GetTopicRoute"] = answer
    await topology.route("t")
    topology.forget("t")
    await topology.route("t")
    assert [address for address, _, _ in transport.calls] == [*NAMESRVS, NAMESRVS[1]]


async def test_a_route_tells_where_its_brokers_are(topology: Topology) -> None:
    await topology.route("t")
    assert await topology.address_of("broker-a") == "10.0.0.1:10911"


async def test_a_route_that_is_used_serves_for_as_long_as_no_name_server_answers(
    topology: Topology, transport: FakeTransport, clock: ManualClock
) -> None:
    await topology.route("t")
    transport.answers["GetTopicRoute"] = None
    for _ in range(10):
        clock.advance(EXPIRE_MS - 1)
        assert await topology.route("t") == ROUTE


async def test_name_servers_that_hang_hold_nobody_up_who_has_an_older_route(
    topology: Topology, transport: FakeTransport, clock: ManualClock
) -> None:
    await topology.route("t")
    clock.advance(REFRESH_MS)
    transport.gate.clear()
    began = asyncio.get_running_loop().time()
    assert await topology.route("t") == ROUTE
    clock.advance(int(PATIENCE_S * 1_000))
    for _ in range(100):
        assert await topology.route("t") == ROUTE
    assert asyncio.get_running_loop().time() - began == pytest.approx(PATIENCE_S)
    transport.answers["GetTopicRoute"] = None
    transport.gate.set()
    for _ in range(3):
        assert await topology.route("t") == ROUTE
    asked = len(transport.calls)
    for _ in range(3):
        assert await topology.route("t") == ROUTE
    assert len(transport.calls) == asked, "they are not asked again at once"
    clock.advance(AGAIN_MS)
    await topology.route("t")
    assert len(transport.calls) > asked


async def test_a_broker_that_comes_back_is_found_while_no_name_server_answers(
    topology: Topology, transport: FakeTransport
) -> None:
    await topology.route("t")
    topology.forget_address("broker-a")
    assert await topology.address_of("broker-a") == "10.0.0.1:10911"
    with pytest.raises(MqError) as caught:
        await topology.address_of("broker-x")
    assert caught.value.code is Code.NAMESRV_UNREACHABLE


async def test_brokers_are_those_of_before_while_no_name_server_answers(
    topology: Topology, transport: FakeTransport
) -> None:
    with pytest.raises(MqError) as caught:
        await topology.brokers()
    assert caught.value.code is Code.NAMESRV_UNREACHABLE
    transport.answers["GetClusterInfo"] = GetClusterInfoResponse(brokers=ROUTE.brokers)
    assert await topology.brokers() == {"broker-a": "10.0.0.1:10911"}
    transport.answers["GetClusterInfo"] = None
    assert await topology.brokers() == {"broker-a": "10.0.0.1:10911"}


async def test_heartbeats_of_many_clients_ask_for_the_brokers_once_a_second(
    topology: Topology, transport: FakeTransport, clock: ManualClock
) -> None:
    transport.answers["GetClusterInfo"] = GetClusterInfoResponse()
    for _ in range(2):
        assert await topology.brokers() == {}, "none yet is no answer to keep"
    transport.answers["GetClusterInfo"] = GetClusterInfoResponse(brokers=ROUTE.brokers)
    for _ in range(10):
        assert await topology.brokers() == {"broker-a": "10.0.0.1:10911"}
    assert len(transport.calls) == 3
    clock.advance(CLUSTER_MS)
    await topology.brokers()
    assert len(transport.calls) == 4


async def test_a_name_server_that_has_just_started_makes_no_known_topic_unknown(
    topology: Topology, transport: FakeTransport, clock: ManualClock
) -> None:
    await topology.route("t")

    def answer(address: str, request: object) -> GetTopicRouteResponse:
        if address == NAMESRVS[0]:
            raise MqError(Code.TOPIC_NOT_EXIST, "no such topic")
        return GetTopicRouteResponse(route=ROUTE)

    transport.answers["GetTopicRoute"] = answer
    clock.advance(REFRESH_MS)
    assert await topology.route("t") == ROUTE
    with pytest.raises(MqError, match="no such topic"):
        await topology.route("never heard of")


async def test_silent_name_servers_are_asked_once_a_second_and_told_of_seldom(
    topology: Topology, transport: FakeTransport, clock: ManualClock
) -> None:
    names = [f"t{number}" for number in range(50)]
    for name in names:
        await topology.route(name)
    transport.answers["GetTopicRoute"] = None
    clock.advance(REFRESH_MS)
    before = len(transport.calls)
    with structlog.testing.capture_logs() as logs:
        for _ in range(20):
            for name in names:
                assert await topology.route(name) == ROUTE
            clock.advance(AGAIN_MS)
    assert len(transport.calls) - before == 20 * len(NAMESRVS)
    assert len(logs) == 2 * len(NAMESRVS)
    assert logs[-1]["untold"] == 9
