"""Configurations of groups: cached, refreshed, and not delayed by a broker that hangs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aerobee.broker.v1.admin_pb2 import ExponentialRetry, GetGroupResponse, GroupConfig
from aerobee.namesrv.v1.namesrv_pb2 import BrokerData, GetClusterInfoResponse, GetTopicRouteResponse

from aerobee_cluster.single_flight import STALE_WAIT_S
from aerobee_proxy.cluster.broker_calls import BrokerCalls
from aerobee_proxy.cluster.group_configs import REFRESH_MS, GroupConfigCache, GroupPolicy
from aerobee_proxy.cluster.route_cache import RouteCache
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.retry_policy import ExponentialRetryPolicy
from aerobee_wire.rpcs import GET_GROUP
from aerobee_wire.status import Code, MqError
from support.clock.virtual_loop import LoopClock
from support.codes import raises_code
from support.proxy.fake_transport import FakeTransport
from support.proxy.harness import route

ADDRESSES = {"broker-a": "10.0.0.1:10911", "broker-b": "10.0.0.2:10911"}
CLUSTER = GetClusterInfoResponse(
    brokers=[BrokerData(broker_name=name, addresses={0: at}) for name, at in ADDRESSES.items()]
)
ORDERLY = GetGroupResponse(group=GroupConfig(consumer_group="g", consume_message_orderly=True))
UNKNOWN = MqError(Code.SUBSCRIPTION_GROUP_NOT_EXIST, "no such group")


class Network(FakeTransport):
    """`hangs`: addresses that answer no call before its timeout."""

    def __init__(self, **answers: Any) -> None:
        super().__init__(**answers)
        self.hangs: set[str] = set()

    async def call(self, address: str, rpc: Any, request: Any, *, timeout_s: float) -> Any:
        if address in self.hangs:
            await asyncio.sleep(timeout_s)
            raise MqError(Code.REQUEST_TIMEOUT, "no answer")
        return await super().call(address, rpc, request, timeout_s=timeout_s)


@pytest.fixture
def network() -> Network:
    return Network(GetClusterInfo=CLUSTER, GetGroup=ORDERLY)


@pytest.fixture
def groups(network: Network) -> GroupConfigCache:
    clock = LoopClock()
    route_cache = RouteCache(network, ["10.0.0.9:9876"], clock)
    return GroupConfigCache(BrokerCalls(network, route_cache), route_cache, clock)


async def test_policy_is_cached_and_its_fetch_shared(
    network: Network, groups: GroupConfigCache
) -> None:
    for _ in range(2):
        found = await asyncio.gather(*(groups.policy("g") for _ in range(5)))
        assert all(policy.order is ConsumeOrder.ON for policy in found)
    assert len(network.requests(GET_GROUP)) == 1, "a broker that knows it is enough"
    await asyncio.sleep(REFRESH_MS / 1_000)
    network.answers["GetGroup"] = UNKNOWN
    assert await groups.policy("g") == GroupPolicy()


async def test_policy_of_a_group(network: Network, groups: GroupConfigCache) -> None:
    assert await groups.policy("g") == GroupPolicy(ConsumeOrder.ON, retry_max_times=0)
    group = GroupConfig(consumer_group="own", retry_max_times=-1, retry_delays_ms=[100, 200])
    network.answers["GetGroup"] = GetGroupResponse(group=group)
    policy = await groups.policy("own")
    assert policy == GroupPolicy(retry_max_times=0, retry_delays_ms=(100, 200))


async def test_exponential_retry_policy_of_a_group(
    network: Network, groups: GroupConfigCache
) -> None:
    group = GroupConfig(consumer_group="g", retry_max_times=9)
    group.exponential_retry.MergeFrom(
        ExponentialRetry(initial_ms=1_000, max_ms=60_000, multiplier=4)
    )
    network.answers["GetGroup"] = GetGroupResponse(group=group)
    policy = await groups.policy("g")
    assert policy.exponential_retry == ExponentialRetryPolicy(1_000, 60_000, 4)
    delays = [policy.retry_delay_ms(attempt) for attempt in (1, 2, 3, 4, 5, 99)]
    assert delays == [1_000, 4_000, 16_000, 60_000, 60_000, 60_000]


@pytest.mark.parametrize(
    ("order", "topic", "ordered"),
    [
        (ConsumeOrder.AUTO, "fifo", True),
        (ConsumeOrder.AUTO, "normal", False),
        (ConsumeOrder.AUTO, "mixed", False),
        (ConsumeOrder.AUTO, "no topic yet", False),
        (ConsumeOrder.ON, "normal", True),
        (ConsumeOrder.OFF, "fifo", False),
    ],
)
async def test_order_of_a_group_in_a_topic(
    network: Network, groups: GroupConfigCache, order: ConsumeOrder, topic: str, ordered: bool
) -> None:
    def answer(address: str, request: Any) -> GetTopicRouteResponse:
        if " " in request.topic:
            raise MqError(Code.TOPIC_NOT_EXIST, "no such topic")
        return route(message_type=request.topic.upper())

    network.answers["GetTopicRoute"] = answer
    assert await groups.is_ordered(GroupPolicy(order), topic) is ordered


async def test_order_needs_a_name_server_only_where_the_topic_decides(
    groups: GroupConfigCache,
) -> None:
    with raises_code(Code.NAMESRV_UNREACHABLE):
        await groups.is_ordered(GroupPolicy(), "orders")
    assert await groups.is_ordered(GroupPolicy(ConsumeOrder.ON), "orders")


async def test_hanging_broker_does_not_delay_a_policy(
    network: Network, groups: GroupConfigCache
) -> None:
    network.hangs = {ADDRESSES["broker-a"]}
    for _ in range(3):
        began = asyncio.get_running_loop().time()
        assert (await groups.policy("g")).order is ConsumeOrder.ON
        assert round(asyncio.get_running_loop().time() - began, 3) <= STALE_WAIT_S
        await asyncio.sleep(REFRESH_MS / 1_000)
    network.hangs = set(ADDRESSES.values())
    for _ in range(20):
        began = asyncio.get_running_loop().time()
        assert (await groups.policy("g")).order is ConsumeOrder.ON
        assert round(asyncio.get_running_loop().time() - began, 3) <= STALE_WAIT_S
        await asyncio.sleep(0.5)


async def test_group_is_new_only_if_every_broker_says_so(
    network: Network, groups: GroupConfigCache
) -> None:
    network.answers["GetGroup"] = UNKNOWN
    assert await groups.policy("new") == GroupPolicy()
    network.hangs = {ADDRESSES["broker-b"]}
    with raises_code(Code.REQUEST_TIMEOUT):
        await groups.policy("other")


async def test_fresh_name_server_does_not_make_a_group_new(
    network: Network, groups: GroupConfigCache
) -> None:
    network.answers["GetClusterInfo"] = GetClusterInfoResponse()
    with raises_code(Code.BROKER_UNREACHABLE):
        await groups.policy("g")
    network.answers["GetClusterInfo"] = CLUSTER
    assert (await groups.policy("g")).order is ConsumeOrder.ON
    network.answers["GetClusterInfo"] = GetClusterInfoResponse()
    await asyncio.sleep(REFRESH_MS / 1_000)
    assert (await groups.policy("g")).order is ConsumeOrder.ON
