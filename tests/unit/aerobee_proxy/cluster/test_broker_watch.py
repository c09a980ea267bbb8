"""A new master: how the proxy hears of it, and what waits for it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from aerobee.broker.v1.client_pb2 import HeartbeatResponse
from aerobee.broker.v1.lite_pb2 import (
    LITE_SYNC_KEEP,
    LITE_SYNC_REPLACE,
    SyncLiteTopicsResponse,
)
from aerobee.broker.v1.message_pb2 import SendResponse, SendResult
from aerobee.namesrv.v1.namesrv_pb2 import (
    BrokerData,
    BrokerMembers,
    GetClusterInfoResponse,
    GetTopicRouteResponse,
    TopicRoute,
    WatchBrokersResponse,
)
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from aerobee_proxy.cluster.broker_calls import PATIENCE_S
from aerobee_proxy.cluster.route_cache import RouteCache
from aerobee_wire.queues.broker_members import FORGET_MS
from aerobee_wire.rpcs import GET_TOPIC_ROUTE, HEARTBEAT, SEND, WATCH_BROKERS
from aerobee_wire.status import Code, MqError
from support.clock.manual_clock import ManualClock
from support.codes import raises_code
from support.proxy.fake_transport import FakeTransport
from support.proxy.harness import Cluster, FakeCall
from support.proxy.routes import queue_data

LITE_SYNC = "SyncLiteTopics"
OLD, NEW, ELSEWHERE = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"


def members(epoch: int, addresses: dict[int, str], name: str = "broker-a") -> BrokerMembers:
    return BrokerMembers(broker_name=name, addresses=addresses, epoch=epoch)


class Group:
    """Broker-a, whose members are `addresses`; `alive`: those that answer."""

    def __init__(self) -> None:
        self.addresses = {0: OLD, 1: NEW}
        self.alive = {OLD, ELSEWHERE}
        self.reported: asyncio.Queue[WatchBrokersResponse] = asyncio.Queue()
        self.others: list[str] = []  # names of brokers that have a master at ELSEWHERE
        self.cluster = Cluster()
        self.transport = self.cluster.transport
        self.transport.answers |= {
            "GetTopicRoute": lambda *_: GetTopicRouteResponse(route=self.route()),
            "GetClusterInfo": lambda *_: GetClusterInfoResponse(brokers=self.brokers()),
            "Send": self.send,
            "Heartbeat": self.heartbeat,
            "WatchBrokers": self.watch,
        }
        self.proxy = self.cluster.proxy()

    def brokers(self) -> list[BrokerData]:
        return [
            BrokerData(broker_name="broker-a", addresses=self.addresses),
            *(BrokerData(broker_name=name, addresses={0: ELSEWHERE}) for name in self.others),
        ]

    def route(self) -> TopicRoute:
        queues = [queue_data(name, kind="MIXED") for name in ("broker-a", *self.others)]
        return TopicRoute(queues=queues, brokers=self.brokers())

    def send(self, address: str, request: Any) -> SendResponse:
        self.check(address)
        return SendResponse(results=[SendResult(queue_offset=7) for _ in request.messages])

    def heartbeat(self, address: str, request: Any) -> HeartbeatResponse:
        self.check(address)
        return HeartbeatResponse()

    def check(self, address: str) -> None:
        if address not in self.alive:
            raise MqError(Code.BROKER_UNREACHABLE, f"nobody at {address}")

    async def watch(self, address: str, request: Any) -> AsyncIterator[WatchBrokersResponse]:
        while True:
            yield await self.reported.get()

    def report(self, *changed: BrokerMembers) -> None:
        self.reported.put_nowait(WatchBrokersResponse(brokers=changed))

    def elect(self, epoch: int = 2) -> None:
        self.addresses = {0: NEW}
        self.alive.add(NEW)
        self.report(members(epoch, self.addresses))

    def lose_the_master(self) -> None:
        self.addresses = {1: NEW}
        self.alive.discard(OLD)

    async def send_one(self, message_group: str = "") -> int:
        system = d.SystemProperties(message_id="m", message_group=message_group)
        if message_group:
            system.message_type = d.MessageType.FIFO
        message = d.Message(topic=d.Resource(name="orders"), body=b"1", system_properties=system)
        request = s.SendMessageRequest(messages=[message])
        answer = await self.proxy.rpcs.send_message(request, FakeCall())
        return int(answer.status.code)

    @contextmanager
    def watching(self) -> Iterator[None]:
        task = asyncio.create_task(self.proxy.broker_watch.run())
        try:
            yield
        finally:
            task.cancel()


@pytest.fixture
async def group() -> AsyncIterator[Group]:
    group = Group()
    yield group
    await group.proxy.close()


async def test_a_send_waits_for_the_new_master(group: Group) -> None:
    assert await group.send_one() == d.Code.OK
    group.lose_the_master()
    assert await group.send_one() != d.Code.OK  # it may have been stored: it is not sent again
    with group.watching():
        sending = asyncio.create_task(group.send_one())
        await asyncio.sleep(0.5)
        assert not sending.done()
        group.elect()
        assert await sending == d.Code.OK


async def test_without_a_stream_the_new_master_is_found_by_asking(group: Group) -> None:
    assert await group.send_one() == d.Code.OK
    group.lose_the_master()
    assert await group.send_one() != d.Code.OK
    sending = asyncio.create_task(group.send_one())
    await asyncio.sleep(0.5)
    group.addresses, group.alive = {0: NEW}, {NEW}
    assert await sending == d.Code.OK


async def test_a_broker_that_never_answered_is_waited_for_while_it_elects_a_master(
    group: Group,
) -> None:
    group.lose_the_master()
    cache, calls = group.proxy.route_cache, group.proxy.calls
    with raises_code(Code.BROKER_UNREACHABLE):
        await cache.address_of("broker-a")
    waiting = asyncio.create_task(calls.call_patiently("broker-a", HEARTBEAT, HEARTBEAT.request()))
    await asyncio.sleep(PATIENCE_S / 2)
    assert not waiting.done()
    group.elect()
    await waiting


async def test_an_election_forbids_nothing(group: Group) -> None:
    group.lose_the_master()
    assert await group.send_one() not in (d.Code.FORBIDDEN, d.Code.OK)


async def test_messages_go_elsewhere_and_message_groups_wait(group: Group) -> None:
    group.others = ["broker-b"]
    groups = [str(number) for number in range(8)]
    assert {await group.send_one(each) for each in groups} == {d.Code.OK}
    at_broker_a = sum(
        address == OLD for address, method, _ in group.transport.calls if method == "Send"
    )
    assert 0 < at_broker_a < len(groups)
    group.lose_the_master()
    group.cluster.clock.advance(60_000)
    assert {await group.send_one() for _ in range(8)} == {d.Code.OK}
    sent = [await group.send_one(each) == d.Code.OK for each in groups]
    assert sent.count(False) == at_broker_a


async def test_a_new_master_gets_the_calls_and_the_old_one_is_left(group: Group) -> None:
    assert await group.send_one() == d.Code.OK
    with group.watching():
        group.elect()
        await asyncio.sleep(0.1)
        assert group.transport.dropped == [OLD]
        assert await group.send_one() == d.Code.OK
    assert [address for address, method, _ in group.transport.calls if method == "Send"] == [
        OLD,
        NEW,
    ]


async def test_a_new_master_is_notified_of_every_client_at_once(group: Group) -> None:
    settings = d.Settings(
        client_type=d.ClientType.SIMPLE_CONSUMER,
        subscription=d.Subscription(group=d.Resource(name="billing")),
    )
    call = FakeCall()
    session = group.proxy.sessions.touch("host@1@0@abc", 0)
    group.proxy.sessions.set_settings(session, settings)
    request = s.HeartbeatRequest(
        client_type=d.ClientType.SIMPLE_CONSUMER, group=d.Resource(name="billing")
    )
    answer = await group.proxy.rpcs.heartbeat(request, call)
    assert answer.status.code == d.Code.OK
    with group.watching():
        group.elect()
        await asyncio.sleep(0.1)
    reported = [
        (address, each.consumers[0].consumer_group)
        for address, method, each in group.transport.calls
        if method == "Heartbeat"
    ]
    assert reported == [(OLD, "billing"), (NEW, "billing")]


class Stream:
    """Keeps what the client is told."""

    def __init__(self) -> None:
        self.reported: list[s.TelemetryCommand] = []

    def offer(self, command: s.TelemetryCommand) -> None:
        self.reported.append(command)


class LiteClient:
    def __init__(self, group: Group, client_id: str = "host@1@0@abc") -> None:
        subscription = d.Subscription(
            group=d.Resource(name="agents"),
            subscriptions=[d.SubscriptionEntry(topic=d.Resource(name="sessions"))],
        )
        settings = d.Settings(client_type="LITE_PUSH_CONSUMER", subscription=subscription)
        self.stream = Stream()
        self.session = group.proxy.sessions.touch(client_id, 0)
        self.session.streams.add(self.stream)
        group.proxy.sessions.set_settings(self.session, settings)
        self._group = group
        self._metadata = {"x-mq-client-id": client_id}

    async def sync(self, action: str, *names: str) -> None:
        request = s.SyncLiteSubscriptionRequest(
            action=action,
            topic=d.Resource(name="sessions"),
            group=d.Resource(name="agents"),
            lite_topic_set=names,
        )
        rpc = self._group.proxy.rpcs.sync_lite_subscription
        answer = await rpc(request, FakeCall(self._metadata))
        assert answer.status.code == d.Code.OK


async def test_a_new_master_is_notified_of_what_lite_clients_hold(group: Group) -> None:
    """As one complete set; not what they have lost to others."""
    lost: dict[str, list[str]] = {OLD: [], NEW: ["b"]}
    group.transport.answers[LITE_SYNC] = lambda address, _: SyncLiteTopicsResponse(
        lost=lost[address]
    )
    client = LiteClient(group)
    await client.sync("COMPLETE_ADD", "a", "b")
    await client.sync("PARTIAL_ADD", "c")
    await client.sync("PARTIAL_REMOVE", "a", "unknown")
    before = len(group.transport.calls)
    with group.watching():
        group.elect()
        await asyncio.sleep(0.1)
        (command,) = client.stream.reported
        assert command.notify_unsubscribe_lite_command.lite_topic == "b"
        lost[NEW] = []
        group.addresses = {0: OLD}
        group.report(members(3, {0: OLD}))
        await asyncio.sleep(0.1)
    reported = [
        (address, each.client_id, each.action, [*each.lite_topics])
        for address, method, each in group.transport.calls[before:]
        if method == LITE_SYNC
    ]
    replace = LITE_SYNC_REPLACE
    client_id = client.session.client_id
    assert reported == [(NEW, client_id, replace, ["b", "c"]), (OLD, client_id, replace, ["c"])]


async def test_a_broker_that_was_away_is_notified_of_what_lite_clients_hold(group: Group) -> None:
    """Once it answers: its process may be a new one, which knows no client."""
    group.transport.answers[LITE_SYNC] = lambda *_: SyncLiteTopicsResponse()
    client = LiteClient(group)
    await client.sync("COMPLETE_ADD", "a")
    before = len(group.transport.calls)
    beat = partial(group.proxy.calls.call, "broker-a", HEARTBEAT, HEARTBEAT.request())
    group.alive.clear()
    with raises_code(Code.BROKER_UNREACHABLE):
        await beat()
    group.alive.add(OLD)
    for _ in range(2):
        await beat()
        await asyncio.sleep(0.1)
    calls = group.transport.calls[before:]
    (reported,) = [request for _, method, request in calls if method == LITE_SYNC]
    assert (reported.action, [*reported.lite_topics]) == (LITE_SYNC_REPLACE, ["a"])


async def test_of_a_client_without_a_complete_set_a_new_master_is_notified_of_what_it_added(
    group: Group,
) -> None:
    """Not as a complete set: the client would give up what it holds by another proxy."""
    group.transport.answers[LITE_SYNC] = lambda *_: SyncLiteTopicsResponse()
    client, emptied = LiteClient(group), LiteClient(group, "c2")
    await client.sync("PARTIAL_ADD", "a", "b")
    await client.sync("PARTIAL_REMOVE", "a")
    await emptied.sync("PARTIAL_ADD", "a")
    await emptied.sync("PARTIAL_REMOVE", "a")
    reported = await sent_to_the_new_master(group)
    assert [(each.action, [*each.lite_topics]) for each in reported] == [(LITE_SYNC_KEEP, ["b"])]


async def test_of_lite_clients_that_are_gone_a_new_master_is_not_notified(group: Group) -> None:
    group.transport.answers[LITE_SYNC] = lambda *_: SyncLiteTopicsResponse()
    left, cut = (LiteClient(group, client_id) for client_id in ("c2", "c3"))
    for client in (left, cut):
        await client.sync("COMPLETE_ADD", "a")
    await left.sync("COMPLETE_REMOVE")
    cut.session.streams.clear()
    assert not await sent_to_the_new_master(group)


async def sent_to_the_new_master(group: Group) -> list[Any]:
    """Of lite topics, once it is elected."""
    with group.watching():
        group.elect()
        await asyncio.sleep(0.1)
    calls = group.transport.calls
    return [each for address, method, each in calls if (address, method) == (NEW, LITE_SYNC)]


async def test_calls_that_end_at_the_old_master_leave_the_address_of_the_new_one(
    group: Group,
) -> None:
    cache, calls = group.proxy.route_cache, group.proxy.calls
    assert await group.send_one() == d.Code.OK
    group.transport.gate.clear()
    under_way = asyncio.create_task(calls.call("broker-a", HEARTBEAT, HEARTBEAT.request()))
    await asyncio.sleep(0)
    assert cache.learn(members(2, {0: NEW})) == OLD
    group.alive = {NEW}
    group.transport.gate.set()
    with raises_code(Code.BROKER_UNREACHABLE):
        await under_way
    # A name server that is asked instead may be behind.
    assert await cache.address_of("broker-a") == NEW


async def test_a_name_server_that_is_behind_is_not_believed() -> None:
    cache = RouteCache(FakeTransport(), ["10.0.0.9:9876"], ManualClock())
    assert cache.learn(members(2, {0: NEW})) is None
    assert cache.learn(members(1, {0: OLD})) is None
    assert await cache.address_of("broker-a") == NEW
    assert cache.learn(members(3, {0: OLD})) == NEW


async def test_a_new_master_costs_no_request_for_each_topic(group: Group) -> None:
    cache = group.proxy.route_cache
    for number in range(20):
        await cache.route(f"topic-{number}")
    asked = len(group.transport.requests(GET_TOPIC_ROUTE))
    cache.learn(members(2, {0: NEW, 1: ELSEWHERE}))
    for number in range(20):
        route = await cache.route(f"topic-{number}")
        assert dict(route.brokers[0].addresses) == {0: NEW, 1: ELSEWHERE}
    assert len(group.transport.requests(GET_TOPIC_ROUTE)) == asked


async def test_routes_that_were_fetched_while_a_broker_was_gone_are_fetched_again(
    group: Group,
) -> None:
    cache, other = group.proxy.route_cache, "broker-b"

    async def brokers() -> list[str]:
        return [data.broker_name for data in (await cache.route("orders")).brokers]

    group.others = [other]
    assert await brokers() == ["broker-a", other]
    group.others = []
    cache.learn(BrokerMembers(broker_name=other))
    assert await brokers() == ["broker-a"]
    group.others = [other]
    assert await brokers() == ["broker-a"]
    cache.learn(BrokerMembers(broker_name=other, addresses={0: ELSEWHERE}))
    assert await brokers() == ["broker-a", other]


async def test_what_a_name_server_that_is_behind_answers_keeps_the_new_address(
    group: Group,
) -> None:
    cache = group.proxy.route_cache
    await cache.route("orders")
    cache.learn(members(2, {0: NEW, 1: ELSEWHERE}))
    assert (await group.proxy.route_cache.brokers())["broker-a"] == NEW
    cache.forget("orders")  # the next answer is as before the election
    route = await cache.route("orders")
    assert dict(route.brokers[0].addresses) == {0: NEW, 1: ELSEWHERE}
    assert await cache.replicas_of("broker-a") == {0: NEW, 1: ELSEWHERE}
    # Nobody has told of that epoch since: the group may have begun anew.
    group.cluster.clock.advance(FORGET_MS)
    cache.forget("orders")
    assert dict((await cache.route("orders")).brokers[0].addresses) == {0: OLD, 1: NEW}


async def test_a_master_that_one_name_server_lost_keeps_its_calls() -> None:
    cache = RouteCache(FakeTransport(), ["10.0.0.9:9876"], ManualClock())
    cache.learn(members(1, {0: OLD, 1: NEW}))
    cache.learn(members(1, {1: NEW}))
    assert await cache.address_of("broker-a") == OLD


async def test_every_name_server_is_followed_again_when_its_stream_breaks(group: Group) -> None:
    opened = []

    async def watch(address: str, request: Any) -> AsyncIterator[WatchBrokersResponse]:
        opened.append(address)
        if len(opened) < 3:
            raise MqError(Code.BROKER_UNREACHABLE, "away")
        yield WatchBrokersResponse(brokers=[members(1, {0: NEW})])
        await asyncio.Event().wait()

    group.transport.answers["WatchBrokers"] = watch
    with group.watching():
        await asyncio.sleep(5)
    assert len(opened) == 3
    assert await group.proxy.route_cache.address_of("broker-a") == NEW
    assert len(group.transport.requests(WATCH_BROKERS)) == 3
    assert group.transport.requests(SEND) == []
