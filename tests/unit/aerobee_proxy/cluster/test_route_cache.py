"""Routes and addresses: cached, refreshed, and served while no name server answers."""

from __future__ import annotations

import asyncio

import pytest
import structlog
from aerobee.namesrv.v1.namesrv_pb2 import (
    BrokerData,
    BrokerMembers,
    GetClusterInfoResponse,
    GetTopicRouteResponse,
    QueueData,
    TopicRoute,
)

from aerobee_cluster.single_flight import RETRY_AFTER_MS, STALE_WAIT_S
from aerobee_proxy.cluster import route_cache
from aerobee_proxy.cluster.route_cache import BROKERS_REFRESH_MS, EXPIRE_MS, REFRESH_MS, RouteCache
from aerobee_wire.queues import broker_members
from aerobee_wire.rpcs import GET_TOPIC_ROUTE
from aerobee_wire.status import Code, MqError
from support.clock.manual_clock import ManualClock
from support.codes import raises_code
from support.proxy.fake_transport import FakeTransport

ROUTE = TopicRoute(
    queues=[QueueData(broker_name="broker-a", read_queue_count=4, write_queue_count=4)],
    brokers=[BrokerData(broker_name="broker-a", addresses={0: "10.0.0.1:10911"})],
)
OTHER = BrokerData(broker_name="broker-b", addresses={0: "10.0.0.2:10911"})
NAMESRVS = ["10.0.0.8:9876", "10.0.0.9:9876"]


class Routes:
    """A cache of routes, the name servers that it asks, and its clock."""

    def __init__(self) -> None:
        self.transport = FakeTransport(GetTopicRoute=GetTopicRouteResponse(route=ROUTE))
        self.clock = ManualClock()
        self.cache = RouteCache(self.transport, NAMESRVS, self.clock)


@pytest.fixture
def routes() -> Routes:
    return Routes()


async def test_route_is_cached_and_refreshed(routes: Routes) -> None:
    for _ in range(3):
        assert await routes.cache.route("t") == ROUTE
    assert len(routes.transport.calls) == 1
    routes.clock.advance(REFRESH_MS)
    await routes.cache.route("t")
    assert len(routes.transport.calls) == 2


async def test_each_address_is_expected_to_be_that_of_its_broker(routes: Routes) -> None:
    await routes.cache.route("t")
    assert routes.transport.expected == {"10.0.0.1:10911": "broker-a"}
    info = GetClusterInfoResponse(brokers=[OTHER])
    routes.transport.answers["GetClusterInfo"] = info
    await routes.cache.brokers()
    routes.cache.learn(
        BrokerMembers(broker_name="broker-b", addresses={0: "10.0.0.3:10911", 1: "10.0.0.4:10911"})
    )
    assert routes.transport.expected == {
        "10.0.0.1:10911": "broker-a",
        "10.0.0.2:10911": "broker-b",
        "10.0.0.3:10911": "broker-b",
        "10.0.0.4:10911": "broker-b",
    }


async def test_concurrent_callers_share_one_fetch(routes: Routes) -> None:
    routes.transport.gate.clear()
    callers = [asyncio.create_task(routes.cache.route("t")) for _ in range(5)]
    await asyncio.sleep(0)
    callers[0].cancel()
    routes.transport.gate.set()
    outcomes = await asyncio.gather(*callers, return_exceptions=True)
    assert outcomes[1:] == [ROUTE] * 4
    assert len(routes.transport.requests(GET_TOPIC_ROUTE)) == 1


async def test_stale_route_expires_when_unused(routes: Routes) -> None:
    await routes.cache.route("t")
    routes.transport.answers["GetTopicRoute"] = None
    routes.clock.advance(REFRESH_MS)
    assert await routes.cache.route("t") == ROUTE
    routes.clock.advance(EXPIRE_MS)
    with raises_code(Code.NAMESRV_UNREACHABLE):
        await routes.cache.route("t")


async def test_deleted_topic_leaves_the_cache(routes: Routes) -> None:
    await routes.cache.route("t")
    routes.transport.answers["GetTopicRoute"] = MqError(Code.TOPIC_NOT_EXIST, "no such topic")
    routes.transport.answers["GetClusterInfo"] = GetClusterInfoResponse(brokers=ROUTE.brokers)
    routes.clock.advance(REFRESH_MS)
    with raises_code(Code.TOPIC_NOT_EXIST):
        await routes.cache.route("t")


async def test_topic_of_a_broker_that_is_away_stays_cached(routes: Routes) -> None:
    """Else a client would create it again, on other brokers."""
    await routes.cache.route("t")
    routes.transport.answers["GetTopicRoute"] = MqError(Code.TOPIC_NOT_EXIST, "no such topic")
    routes.transport.answers["GetClusterInfo"] = GetClusterInfoResponse(
        brokers=[BrokerData(broker_name="broker-b", addresses={0: "10.0.0.2:10911"})]
    )
    routes.clock.advance(EXPIRE_MS - 1)
    assert await routes.cache.route("t") == ROUTE
    routes.clock.advance(RETRY_AFTER_MS)
    with raises_code(Code.TOPIC_NOT_EXIST):
        await routes.cache.route("t")


async def test_silent_name_server_is_asked_last(routes: Routes) -> None:
    def answer(address: str, request: object) -> GetTopicRouteResponse:
        if address == NAMESRVS[0]:
            raise MqError(Code.BROKER_UNREACHABLE, "silent")
        return GetTopicRouteResponse(route=ROUTE)

    routes.transport.answers["GetTopicRoute"] = answer
    await routes.cache.route("t")
    routes.cache.forget("t")
    await routes.cache.route("t")
    assert [address for address, _, _ in routes.transport.calls] == [*NAMESRVS, NAMESRVS[1]]


async def test_route_has_addresses_of_its_brokers(routes: Routes) -> None:
    await routes.cache.route("t")
    assert await routes.cache.address_of("broker-a") == "10.0.0.1:10911"


async def test_used_route_serves_while_no_name_server_answers(routes: Routes) -> None:
    await routes.cache.route("t")
    routes.transport.answers["GetTopicRoute"] = None
    for _ in range(10):
        routes.clock.advance(EXPIRE_MS - 1)
        assert await routes.cache.route("t") == ROUTE


async def test_stale_route_does_not_wait_for_hanging_name_servers(routes: Routes) -> None:
    await routes.cache.route("t")
    routes.clock.advance(REFRESH_MS)
    routes.transport.gate.clear()
    began = asyncio.get_running_loop().time()
    assert await routes.cache.route("t") == ROUTE
    routes.clock.advance(int(STALE_WAIT_S * 1_000))
    for _ in range(100):
        assert await routes.cache.route("t") == ROUTE
    assert asyncio.get_running_loop().time() - began == pytest.approx(STALE_WAIT_S)
    routes.transport.answers["GetTopicRoute"] = None
    routes.transport.gate.set()
    for _ in range(3):
        assert await routes.cache.route("t") == ROUTE
    before = len(routes.transport.calls)
    for _ in range(3):
        assert await routes.cache.route("t") == ROUTE
    assert len(routes.transport.calls) == before, "they are not asked again at once"
    routes.clock.advance(RETRY_AFTER_MS)
    await routes.cache.route("t")
    assert len(routes.transport.calls) > before


async def test_last_address_serves_while_no_name_server_answers(routes: Routes) -> None:
    await routes.cache.route("t")
    routes.cache.forget_address("broker-a", "10.0.0.1:10911")
    assert await routes.cache.address_of("broker-a") == "10.0.0.1:10911"
    with raises_code(Code.NAMESRV_UNREACHABLE):
        await routes.cache.address_of("broker-x")


async def test_last_brokers_serve_while_no_name_server_answers(routes: Routes) -> None:
    with raises_code(Code.NAMESRV_UNREACHABLE):
        await routes.cache.brokers()
    routes.transport.answers["GetClusterInfo"] = GetClusterInfoResponse(brokers=ROUTE.brokers)
    assert await routes.cache.brokers() == {"broker-a": "10.0.0.1:10911"}
    routes.transport.answers["GetClusterInfo"] = None
    assert await routes.cache.brokers() == {"broker-a": "10.0.0.1:10911"}


async def test_brokers_are_fetched_at_most_once_a_second(routes: Routes) -> None:
    routes.transport.answers["GetClusterInfo"] = GetClusterInfoResponse()
    for _ in range(2):
        assert await routes.cache.brokers() == {}, "none yet is no answer to keep"
    routes.transport.answers["GetClusterInfo"] = GetClusterInfoResponse(brokers=ROUTE.brokers)
    for _ in range(10):
        assert await routes.cache.brokers() == {"broker-a": "10.0.0.1:10911"}
    assert len(routes.transport.calls) == 3
    routes.clock.advance(BROKERS_REFRESH_MS)
    await routes.cache.brokers()
    assert len(routes.transport.calls) == 4


async def test_fresh_name_server_does_not_drop_a_known_topic(routes: Routes) -> None:
    await routes.cache.route("t")

    def answer(address: str, request: object) -> GetTopicRouteResponse:
        if address == NAMESRVS[0]:
            raise MqError(Code.TOPIC_NOT_EXIST, "no such topic")
        return GetTopicRouteResponse(route=ROUTE)

    routes.transport.answers["GetTopicRoute"] = answer
    routes.clock.advance(REFRESH_MS)
    assert await routes.cache.route("t") == ROUTE
    with raises_code(Code.TOPIC_NOT_EXIST):
        await routes.cache.route("never heard of")


async def test_silent_name_servers_are_asked_once_a_second(routes: Routes) -> None:
    names = [f"t{number}" for number in range(50)]
    for name in names:
        await routes.cache.route(name)
    routes.transport.answers["GetTopicRoute"] = None
    routes.clock.advance(REFRESH_MS)
    before = len(routes.transport.calls)
    with structlog.testing.capture_logs() as logs:
        for _ in range(20):
            for name in names:
                assert await routes.cache.route(name) == ROUTE
            routes.clock.advance(RETRY_AFTER_MS)
    assert len(routes.transport.calls) - before == 20 * len(NAMESRVS)
    assert len(logs) == 2 * len(NAMESRVS)
    assert logs[-1]["suppressed"] == 9


def notice(epoch: int, addresses: dict[int, str], name: str = "broker-a") -> BrokerMembers:
    return BrokerMembers(broker_name=name, addresses=addresses, epoch=epoch)


async def test_a_notice_visits_no_route_before_it_is_used(
    routes: Routes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 20,000 routes would be visited for each broker when a stream of notices begins."""
    for topic in "abc":
        await routes.cache.route(topic)
    visited = []

    def counted(route: TopicRoute, broker_name: str) -> bool:
        visited.append(broker_name)
        return broker_members.names_broker(route, broker_name)

    monkeypatch.setattr(route_cache, "names_broker", counted)
    for epoch in range(1, 50):
        routes.cache.learn(notice(epoch, {0: f"10.0.0.{epoch}:10911"}))
        routes.cache.learn(notice(epoch, {0: f"10.0.1.{epoch}:10911"}, "broker-b"))
    assert not visited
    first = await routes.cache.route("a")
    assert dict(first.brokers[0].addresses) == {0: "10.0.0.49:10911"}
    assert await routes.cache.route("a") is first
    assert len(visited) == 2


async def test_a_lost_master_and_its_successor_reach_each_route(routes: Routes) -> None:
    await routes.cache.route("t")
    await routes.cache.route("later")
    routes.cache.learn(notice(1, {1: "10.0.0.2:10911"}))
    await routes.cache.route("t")
    assert len(routes.transport.requests(GET_TOPIC_ROUTE)) == 3, "its route is fetched again"
    routes.cache.learn(notice(2, {0: "10.0.0.2:10911"}))
    for topic in ("t", "later"):
        route = await routes.cache.route(topic)
        assert route.brokers[0].addresses[0] == "10.0.0.2:10911"


async def test_routes_without_a_broker_that_is_back_are_fetched_again(routes: Routes) -> None:
    await routes.cache.route("t")
    routes.cache.learn(notice(1, {0: "10.0.0.2:10911"}, "broker-b"))
    await routes.cache.route("t")
    assert len(routes.transport.requests(GET_TOPIC_ROUTE)) == 1
    routes.cache.learn(notice(2, {}, "broker-b"))
    routes.cache.learn(notice(3, {0: "10.0.0.2:10911"}, "broker-b"))
    both = TopicRoute(queues=ROUTE.queues, brokers=[*ROUTE.brokers, OTHER])
    routes.transport.answers["GetTopicRoute"] = GetTopicRouteResponse(route=both)
    assert await routes.cache.route("t") == both
