"""Routes and addresses: cached, refreshed, and served while no name server answers."""

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

from aerobee_proxy.cluster.route_cache import BROKERS_REFRESH_MS, EXPIRE_MS, REFRESH_MS, RouteCache
from aerobee_proxy.cluster.single_flight import RETRY_AFTER_MS, STALE_WAIT_S
from aerobee_wire.rpcs import GET_TOPIC_ROUTE
from aerobee_wire.status import Code, MqError
from support.clock.manual_clock import ManualClock
from support.codes import raises_code
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
def route_cache(transport: FakeTransport, clock: ManualClock) -> RouteCache:
    return RouteCache(transport, NAMESRVS, clock)


async def test_route_is_cached_and_refreshed(
    route_cache: RouteCache, transport: FakeTransport, clock: ManualClock
) -> None:
    for _ in range(3):
        assert await route_cache.route("t") == ROUTE
    assert len(transport.calls) == 1
    clock.advance(REFRESH_MS)
    await route_cache.route("t")
    assert len(transport.calls) == 2


async def test_concurrent_callers_share_one_fetch(
    route_cache: RouteCache, transport: FakeTransport
) -> None:
    transport.gate.clear()
    callers = [asyncio.create_task(route_cache.route("t")) for _ in range(5)]
    await asyncio.sleep(0)
    callers[0].cancel()
    transport.gate.set()
    outcomes = await asyncio.gather(*callers, return_exceptions=True)
    assert outcomes[1:] == [ROUTE] * 4
    assert len(transport.requests(GET_TOPIC_ROUTE)) == 1


async def test_stale_route_expires_when_unused(
    route_cache: RouteCache, transport: FakeTransport, clock: ManualClock
) -> None:
    await route_cache.route("t")
    transport.answers["GetTopicRoute"] = None
    clock.advance(REFRESH_MS)
    assert await route_cache.route("t") == ROUTE
    clock.advance(EXPIRE_MS)
    with raises_code(Code.NAMESRV_UNREACHABLE):
        await route_cache.route("t")


async def test_deleted_topic_leaves_the_cache(
    route_cache: RouteCache, transport: FakeTransport, clock: ManualClock
) -> None:
    await route_cache.route("t")
    transport.answers["GetTopicRoute"] = MqError(Code.TOPIC_NOT_EXIST, "no such topic")
    transport.answers["GetClusterInfo"] = GetClusterInfoResponse(brokers=ROUTE.brokers)
    clock.advance(REFRESH_MS)
    with raises_code(Code.TOPIC_NOT_EXIST):
        await route_cache.route("t")


async def test_topic_of_a_broker_that_is_away_stays_cached(
    route_cache: RouteCache, transport: FakeTransport, clock: ManualClock
) -> None:
    """Else a client would create it again, on other brokers."""
    await route_cache.route("t")
    transport.answers["GetTopicRoute"] = MqError(Code.TOPIC_NOT_EXIST, "no such topic")
    transport.answers["GetClusterInfo"] = GetClusterInfoResponse(
        brokers=[BrokerData(broker_name="broker-b", addresses={0: "10.0.0.2:10911"})]
    )
    clock.advance(EXPIRE_MS - 1)
    assert await route_cache.route("t") == ROUTE
    clock.advance(RETRY_AFTER_MS)
    with raises_code(Code.TOPIC_NOT_EXIST):
        await route_cache.route("t")


async def test_silent_name_server_is_asked_last(
    route_cache: RouteCache, transport: FakeTransport
) -> None:
    def answer(address: str, request: object) -> GetTopicRouteResponse:
        if address == NAMESRVS[0]:
            raise MqError(Code.BROKER_UNREACHABLE, "silent")
        return GetTopicRouteResponse(route=ROUTE)

    transport.answers["GetTopicRoute"] = answer
    await route_cache.route("t")
    route_cache.forget("t")
    await route_cache.route("t")
    assert [address for address, _, _ in transport.calls] == [*NAMESRVS, NAMESRVS[1]]


async def test_route_has_addresses_of_its_brokers(route_cache: RouteCache) -> None:
    await route_cache.route("t")
    assert await route_cache.address_of("broker-a") == "10.0.0.1:10911"


async def test_used_route_serves_while_no_name_server_answers(
    route_cache: RouteCache, transport: FakeTransport, clock: ManualClock
) -> None:
    await route_cache.route("t")
    transport.answers["GetTopicRoute"] = None
    for _ in range(10):
        clock.advance(EXPIRE_MS - 1)
        assert await route_cache.route("t") == ROUTE


async def test_stale_route_does_not_wait_for_hanging_name_servers(
    route_cache: RouteCache, transport: FakeTransport, clock: ManualClock
) -> None:
    await route_cache.route("t")
    clock.advance(REFRESH_MS)
    transport.gate.clear()
    began = asyncio.get_running_loop().time()
    assert await route_cache.route("t") == ROUTE
    clock.advance(int(STALE_WAIT_S * 1_000))
    for _ in range(100):
        assert await route_cache.route("t") == ROUTE
    assert asyncio.get_running_loop().time() - began == pytest.approx(STALE_WAIT_S)
    transport.answers["GetTopicRoute"] = None
    transport.gate.set()
    for _ in range(3):
        assert await route_cache.route("t") == ROUTE
    asked = len(transport.calls)
    for _ in range(3):
        assert await route_cache.route("t") == ROUTE
    assert len(transport.calls) == asked, "they are not asked again at once"
    clock.advance(RETRY_AFTER_MS)
    await route_cache.route("t")
    assert len(transport.calls) > asked


async def test_last_address_serves_while_no_name_server_answers(
    route_cache: RouteCache, transport: FakeTransport
) -> None:
    await route_cache.route("t")
    route_cache.forget_address("broker-a")
    assert await route_cache.address_of("broker-a") == "10.0.0.1:10911"
    with raises_code(Code.NAMESRV_UNREACHABLE):
        await route_cache.address_of("broker-x")


async def test_last_brokers_serve_while_no_name_server_answers(
    route_cache: RouteCache, transport: FakeTransport
) -> None:
    with raises_code(Code.NAMESRV_UNREACHABLE):
        await route_cache.brokers()
    transport.answers["GetClusterInfo"] = GetClusterInfoResponse(brokers=ROUTE.brokers)
    assert await route_cache.brokers() == {"broker-a": "10.0.0.1:10911"}
    transport.answers["GetClusterInfo"] = None
    assert await route_cache.brokers() == {"broker-a": "10.0.0.1:10911"}


async def test_brokers_are_fetched_at_most_once_a_second(
    route_cache: RouteCache, transport: FakeTransport, clock: ManualClock
) -> None:
    transport.answers["GetClusterInfo"] = GetClusterInfoResponse()
    for _ in range(2):
        assert await route_cache.brokers() == {}, "none yet is no answer to keep"
    transport.answers["GetClusterInfo"] = GetClusterInfoResponse(brokers=ROUTE.brokers)
    for _ in range(10):
        assert await route_cache.brokers() == {"broker-a": "10.0.0.1:10911"}
    assert len(transport.calls) == 3
    clock.advance(BROKERS_REFRESH_MS)
    await route_cache.brokers()
    assert len(transport.calls) == 4


async def test_fresh_name_server_does_not_drop_a_known_topic(
    route_cache: RouteCache, transport: FakeTransport, clock: ManualClock
) -> None:
    await route_cache.route("t")

    def answer(address: str, request: object) -> GetTopicRouteResponse:
        if address == NAMESRVS[0]:
            raise MqError(Code.TOPIC_NOT_EXIST, "no such topic")
        return GetTopicRouteResponse(route=ROUTE)

    transport.answers["GetTopicRoute"] = answer
    clock.advance(REFRESH_MS)
    assert await route_cache.route("t") == ROUTE
    with raises_code(Code.TOPIC_NOT_EXIST):
        await route_cache.route("never heard of")


async def test_silent_name_servers_are_asked_once_a_second(
    route_cache: RouteCache, transport: FakeTransport, clock: ManualClock
) -> None:
    names = [f"t{number}" for number in range(50)]
    for name in names:
        await route_cache.route(name)
    transport.answers["GetTopicRoute"] = None
    clock.advance(REFRESH_MS)
    before = len(transport.calls)
    with structlog.testing.capture_logs() as logs:
        for _ in range(20):
            for name in names:
                assert await route_cache.route(name) == ROUTE
            clock.advance(RETRY_AFTER_MS)
    assert len(transport.calls) - before == 20 * len(NAMESRVS)
    assert len(logs) == 2 * len(NAMESRVS)
    assert logs[-1]["suppressed"] == 9
