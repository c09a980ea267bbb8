"""Routes: which queues are written and read, and what is cached while no name server answers."""

from __future__ import annotations

from typing import Any

import pytest
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client.cluster.client_instance import expectant_interval_s
from aerobee_client.cluster.latency_fault import LatencyFault, not_available_ms
from aerobee_client.cluster.namesrv import NamesrvClient, namesrv_addresses
from aerobee_client.cluster.route_cache import (
    PublishInfo,
    RouteCache,
    readable_queues,
    writable_queues,
)
from aerobee_client.errors import NamesrvUnreachable
from aerobee_client.message_queue import MessageQueue
from aerobee_client.runtime.clock import Clock
from aerobee_wire.status import Code, MqError
from support.client.memory import MemoryBroker, MemoryCluster
from support.clock.manual_clock import ManualClock
from support.codes import raises_code

NAMESRVS = ("10.0.0.1:9876", "10.0.0.2:9876")


def route_of(*parts: tuple[str, int, int, int], masters: str = "ab") -> namesrv_pb2.TopicRoute:
    """Each part: broker name, read queues, write queues, permission."""
    route = namesrv_pb2.TopicRoute()
    for name, read, write, permission in parts:
        route.queues.add(
            broker_name=name, read_queue_count=read, write_queue_count=write, permission=permission
        )
        broker_id = 0 if name in masters else 1
        route.brokers.add(broker_name=name, addresses={broker_id: f"{name}:1"})
    return route


def cache_of(cluster: MemoryCluster, clock: Clock | None = None) -> RouteCache:
    return RouteCache(NamesrvClient(cluster, cluster.namesrvs), clock or ManualClock())


def test_producers_write_to_writable_queues_with_a_master() -> None:
    route = route_of(("a", 2, 1, 6), ("b", 2, 2, 4), ("c", 1, 1, 6))
    assert writable_queues("t", route) == [MessageQueue("t", "a", 0)]


def test_consumers_read_without_a_master() -> None:
    route = route_of(("c", 1, 1, 4), ("a", 2, 1, 2), ("b", 1, 0, 6))
    assert readable_queues("t", route) == [MessageQueue("t", "b", 0), MessageQueue("t", "c", 0)]


def test_order_topic_configuration_names_the_queues() -> None:
    route = route_of(("a", 8, 8, 6))
    route.order_topic_config = "b:1;a:2"
    queues = [("b", 0), ("a", 0), ("a", 1)]
    assert [(q.broker_name, q.queue_id) for q in writable_queues("t", route)] == queues


def test_queues_are_chosen_in_turn_but_for_the_avoided_broker() -> None:
    queues = [MessageQueue("t", name, n) for name in "ab" for n in range(2)]
    info = PublishInfo(queues)
    taken = [info.choose() for _ in range(8)]
    assert sorted(taken[:4]) == queues and taken[:4] == taken[4:]
    assert {info.choose(avoid="a").broker_name for _ in range(4)} == {"b"}
    assert PublishInfo(queues[:2]).choose(avoid="a").broker_name == "a"


@pytest.mark.parametrize(
    ("latency", "pause"),
    [(49, 0), (100, 0), (550, 2_000), (1_800, 5_000), (10_000, 10_000), (15_000, 30_000)],
)
def test_slow_broker_is_left_alone_as_the_table_says(latency: int, pause: int) -> None:
    assert not_available_ms(latency) == pause


def test_broker_that_failed_is_isolated_for_ten_seconds() -> None:
    fault = LatencyFault()
    fault.record("a", 5, now_ms=0, failed=True)
    assert not fault.is_available("a", 9_999) and fault.is_available("a", 10_000)
    assert not fault.is_reachable("a")
    fault.record("a", 5, now_ms=10_000)
    assert fault.is_reachable("a")


def test_choice_prefers_available_then_reachable_then_any() -> None:
    queues = [MessageQueue("t", name, 0) for name in "abc"]
    fault = LatencyFault()
    fault.record("a", 0, now_ms=0, failed=True)
    fault.record("b", 600, now_ms=0)
    assert fault.choose(queues, 100, avoid=None).broker_name == "c"
    assert fault.choose(queues, 100, avoid="c").broker_name == "b"
    fault.record("b", 0, now_ms=0, failed=True)
    fault.record("c", 0, now_ms=0, failed=True)
    assert fault.choose(queues, 100, avoid=None).broker_name == "a"


@pytest.mark.parametrize("given", ["10.0.0.1:9876;10.0.0.2:9876", [" 10.0.0.1:9876", NAMESRVS[1]]])
def test_name_servers_are_given_as_text_or_list(given: Any) -> None:
    assert namesrv_addresses(given) == NAMESRVS


def test_environment_names_the_name_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "[::1]:9876;")
    assert namesrv_addresses(None) == ("[::1]:9876",)


@pytest.mark.parametrize("given", ["", ";", "host", "host:port", ":9876", "a:1,b:1", "http://a:1"])
def test_missing_or_bad_address_is_refused(given: str) -> None:
    with raises_code(Code.INVALID_PARAMETER):
        namesrv_addresses(given)


async def test_any_name_server_that_answers_is_enough() -> None:
    broker = MemoryBroker("a", "10.0.0.9:10911", topics={"t": 1})
    cluster = MemoryCluster(broker, namesrvs=NAMESRVS)
    for down in NAMESRVS:
        cluster.down = {down}
        assert await cache_of(cluster).subscribe_queues("t") == [MessageQueue("t", "a", 0)]


async def test_no_answer_from_any_name_server_names_them_all() -> None:
    cluster = MemoryCluster(namesrvs=NAMESRVS)
    cluster.down = set(NAMESRVS)
    with pytest.raises(NamesrvUnreachable) as caught:
        await cache_of(cluster).route("t")
    assert caught.value.code is Code.NAMESRV_UNREACHABLE
    assert all(address in caught.value.message for address in NAMESRVS)
    assert "NAMESRV_ADDR" in caught.value.message


async def test_a_topic_unknown_to_one_name_server_is_found() -> None:
    broker = MemoryBroker("a", "10.0.0.9:10911", topics={"t": 1})
    cluster = MemoryCluster(broker, namesrvs=NAMESRVS)
    cluster.refuse("GetTopicRoute", NAMESRVS[0], Code.TOPIC_NOT_EXIST)
    for _ in range(8):  # whichever one it starts with
        assert len(await cache_of(cluster).subscribe_queues("t")) == 1


async def test_an_unknown_topic_uses_the_route_of_the_default_topic() -> None:
    broker = MemoryBroker("a", "10.0.0.9:10911", topics={"TBW102": 8})
    clock = ManualClock()
    routes = cache_of(MemoryCluster(broker), clock)
    info = await routes.publish_info("new")
    assert info.is_default
    assert info.queues == [MessageQueue("new", "a", n) for n in range(4)]
    broker.create("new", 2)
    clock.advance(1_000)
    info = await routes.publish_info("new")
    assert not info.is_default and len(info.queues) == 2


async def test_an_unknown_topic_without_a_default_is_refused() -> None:
    routes = cache_of(MemoryCluster(MemoryBroker("a", "10.0.0.9:10911")))
    with raises_code(Code.TOPIC_NOT_EXIST):
        await routes.publish_info("new")


async def test_a_topic_whose_brokers_are_away_is_distinguished_from_one_that_does_not_exist() -> (
    None
):
    """One name server knows, and one does not, whichever is asked first."""
    cluster = MemoryCluster(MemoryBroker("a", "10.0.0.9:10911"), namesrvs=NAMESRVS)
    away = MqError(Code.TOPIC_NOT_EXIST, "b has gone", retryable=True)

    def answer(address: str, request: Any) -> None:
        if address == NAMESRVS[0] and request.topic == "t":
            raise away

    cluster.answers["GetTopicRoute"] = answer
    for _ in range(8):
        for topic in ("t", "new"):
            with raises_code(Code.TOPIC_NOT_EXIST) as caught:
                await cache_of(cluster).publish_info(topic)
            assert caught.value.retryable == (topic == "t")


async def test_a_dead_letter_topic_never_uses_the_default_topic() -> None:
    broker = MemoryBroker("a", "10.0.0.9:10911", topics={"TBW102": 8})
    with raises_code(Code.TOPIC_NOT_EXIST):
        await cache_of(MemoryCluster(broker)).publish_info("%DLQ%g")


async def test_a_route_is_kept_while_name_servers_do_not_answer() -> None:
    broker = MemoryBroker("a", "10.0.0.9:10911", topics={"t": 2})
    cluster = MemoryCluster(broker)
    clock = ManualClock()
    routes = cache_of(cluster, clock)
    await routes.publish_info("t")
    broker.topics.clear()
    clock.advance(1_000)
    await routes.refresh_soon("t")
    cluster.down = set(cluster.namesrvs)
    clock.advance(1_000)
    await routes.refresh_all()
    assert len((await routes.publish_info("t")).queues) == 2
    assert routes.address_of("a") == broker.address


async def test_each_address_is_expected_to_be_that_of_its_broker() -> None:
    cluster = MemoryCluster(MemoryBroker("a", "10.0.0.9:10911", topics={"t": 2}))
    namesrv = NamesrvClient(cluster, cluster.namesrvs)
    routes = RouteCache(namesrv, ManualClock(), expect=cluster.expect)
    await routes.refresh("t")
    assert cluster.expected == {"10.0.0.9:10911": "a"}
    moved = {0: "10.0.0.7:10911", 1: "10.0.0.8:10911"}
    routes.learn(namesrv_pb2.BrokerMembers(broker_name="a", addresses=moved, epoch=2))
    assert cluster.expected == {"10.0.0.9:10911": "a"} | dict.fromkeys(moved.values(), "a")


async def test_only_a_changed_route_calls_on_change() -> None:
    broker = MemoryBroker("a", "10.0.0.9:10911", topics={"t": 2})
    changes: list[int] = []
    cluster = MemoryCluster(broker)
    routes = RouteCache(
        NamesrvClient(cluster, cluster.namesrvs), ManualClock(), on_change=lambda: changes.append(1)
    )
    await routes.refresh("t")
    info = await routes.publish_info("t")
    await routes.refresh("t")
    assert len(changes) == 1
    assert await routes.publish_info("t") is info  # the round robin goes on
    broker.create("t", 3)
    await routes.refresh("t")
    assert len(changes) == 2
    assert len((await routes.publish_info("t")).queues) == 3


async def test_a_broker_that_left_the_routes_is_expected_back_for_a_minute() -> None:
    brokers = [MemoryBroker(name, f"10.0.0.{name}:10911", topics={"t": 2}) for name in "12"]
    cluster, clock = MemoryCluster(*brokers), ManualClock()
    routes = cache_of(cluster, clock)
    await routes.refresh("t")
    assert not routes.expects_broker()
    cluster.down.add(brokers[0].address)
    await routes.refresh("t")
    assert routes.expects_broker()
    assert routes.linked_addresses() == {broker.address for broker in brokers}
    cluster.revive(brokers[0])
    await routes.refresh("t")
    assert not routes.expects_broker()
    cluster.down.add(brokers[1].address)
    await routes.refresh("t")
    clock.advance(59_999)
    await routes.refresh("t")
    assert routes.expects_broker()
    clock.advance(1)
    assert not routes.expects_broker()
    assert routes.linked_addresses() == {brokers[0].address}


async def test_a_broker_that_lost_another_topic_long_ago_is_expected_back_all_the_same() -> None:
    brokers = [MemoryBroker(name, f"10.0.0.{name}:10911", topics={"t": 2, "u": 2}) for name in "12"]
    cluster, clock = MemoryCluster(*brokers), ManualClock()
    routes = cache_of(cluster, clock)
    await routes.refresh("t")
    await routes.refresh("u")
    del brokers[0].topics["u"]
    await routes.refresh("u")
    clock.advance(3_600_000)
    assert not routes.expects_broker()
    cluster.down.add(brokers[0].address)
    await routes.refresh("t")
    assert routes.expects_broker()
    assert routes.linked_addresses() == {broker.address for broker in brokers}


async def test_an_unknown_broker_is_refused() -> None:
    with pytest.raises(MqError) as caught:
        cache_of(MemoryCluster()).address_of("nobody")
    assert caught.value.code is Code.BROKER_NOT_EXIST and caught.value.retryable


def test_clients_of_many_topics_ask_more_seldom_while_a_broker_is_expected_back() -> None:
    """Ten calls a second at most."""
    intervals_s = [expectant_interval_s(count) for count in (0, 1, 20, 40, 1_000)]
    assert intervals_s == [2.0, 2.0, 2.0, 4.0, 100.0]
