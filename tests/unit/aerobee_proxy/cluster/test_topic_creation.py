"""Topics that are created by the first request for their route."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aerobee.broker.v1.admin_pb2 import PutTopicResponse, SpecifyMessageTypeResponse
from aerobee.namesrv.v1.namesrv_pb2 import (
    BrokerData,
    GetClusterInfoResponse,
    GetTopicRouteResponse,
    TopicRoute,
)
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code

from aerobee_proxy.cluster.topic_creation import RETRY_S
from aerobee_proxy.proxy import Proxy
from aerobee_wire.rpcs import PUT_TOPIC, SPECIFY_MESSAGE_TYPE
from aerobee_wire.status import Code as BrokerCode
from aerobee_wire.status import MqError
from support.proxy.harness import BROKER, Cluster, FakeCall, route
from support.proxy.routes import queue_data

ENDPOINTS = d.Endpoints(
    scheme=d.AddressScheme.DOMAIN_NAME, addresses=[d.Address(host="mq.test", port=18081)]
)


@pytest.fixture
def cluster() -> Cluster:
    """Its broker creates every topic that it is asked for."""
    cluster = Cluster()
    cluster.routes["TBW102"] = route(7, "")

    def put(address: str, request: Any) -> PutTopicResponse:
        cluster.routes[request.topic.topic] = route()
        return PutTopicResponse(created=True)

    cluster.transport.answers["PutTopic"] = put
    return cluster


def query(topic: str) -> s.QueryRouteRequest:
    return s.QueryRouteRequest(topic=d.Resource(name=topic), endpoints=ENDPOINTS)


async def route_of(cluster: Cluster, topic: str, **options: Any) -> s.QueryRouteResponse:
    proxy = cluster.proxy(**options)
    answer: s.QueryRouteResponse = await proxy.rpcs.query_route(query(topic), FakeCall())
    return answer


async def test_unknown_topic_is_created(cluster: Cluster) -> None:
    answer = await route_of(cluster, "fresh")
    assert answer.status.code == Code.OK and len(answer.message_queues) == 4
    (asked,) = cluster.transport.requests(PUT_TOPIC)
    assert asked.topic.permission == 6 and asked.only_new
    assert dict(asked.topic.attributes) == {"message.type": "UNSPECIFIED"}


async def test_shared_route_request_from_before_the_creation(cluster: Cluster) -> None:
    """One client's request was made before the topic was created, and is answered after."""
    call_at_once = cluster.transport.call

    async def slowly(address: str, rpc: Any, request: Any, *, timeout_s: float) -> Any:
        outcome = await asyncio.gather(
            call_at_once(address, rpc, request, timeout_s=timeout_s), return_exceptions=True
        )
        await asyncio.sleep(1 if rpc.method == "GetTopicRoute" else 0)
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]

    cluster.transport.call = slowly  # type: ignore[method-assign]
    rpcs = cluster.proxy().rpcs
    request = query("fresh")

    async def ask_after(seconds: float) -> Any:
        await asyncio.sleep(seconds)
        return await rpcs.query_route(request, FakeCall())

    answers = await asyncio.gather(ask_after(0), ask_after(1.5))
    assert [answer.status.code for answer in answers] == [Code.OK] * 2


async def test_topic_is_created_without_an_unreachable_broker(cluster: Cluster) -> None:
    template = route(7, "")
    template.route.queues.add(broker_name="broker-0", read_queue_count=4, write_queue_count=4)
    cluster.routes["TBW102"] = template  # the name server does not know broker-0
    template.route.queues.reverse()
    assert (await route_of(cluster, "fresh")).status.code == Code.OK
    cluster.transport.answers["PutTopic"] = MqError(BrokerCode.DISK_FULL, "no room")
    answer = await route_of(cluster, "fresher")
    assert answer.status.code == Code.BAD_REQUEST and "broker-0" in answer.status.message


async def test_a_proxy_that_creates_no_topics_asks_no_broker(cluster: Cluster) -> None:
    answer = await route_of(cluster, "fresh", auto_create_topics=False)
    assert answer.status.code == Code.TOPIC_NOT_FOUND
    assert not cluster.transport.requests(PUT_TOPIC)


# ---- the type of the first message ----

OTHER = BrokerData(broker_name="broker-b", addresses={0: "10.0.0.2:10911"})


class Types:
    """Two brokers with a topic of no type. `types`: address → the type that it has taken."""

    def __init__(self, cluster: Cluster) -> None:
        self.types = {BROKER.addresses[0]: "UNSPECIFIED", OTHER.addresses[0]: "UNSPECIFIED"}
        self.away: set[str] = set()
        self._cluster = cluster
        cluster.transport.answers["SpecifyMessageType"] = self._specify
        self.serve()

    def serve(self) -> None:
        queues = [
            queue_data(data.broker_name, kind=self.types[data.addresses[0]])
            for data in (BROKER, OTHER)
        ]
        found = TopicRoute(queues=queues, brokers=[BROKER, OTHER])
        self._cluster.routes["fresh"] = GetTopicRouteResponse(route=found)

    def _specify(self, address: str, request: Any) -> SpecifyMessageTypeResponse:
        if address in self.away:
            raise MqError(BrokerCode.BROKER_UNREACHABLE, "away")
        if self.types[address] == "UNSPECIFIED":
            self.types[address] = request.message_type
            self.serve()
        return SpecifyMessageTypeResponse(message_type=self.types[address])


async def send(proxy: Proxy, message_group: str = "") -> Code:
    system = d.SystemProperties(message_id="01AB", message_group=message_group)
    sent = d.Message(topic=d.Resource(name="fresh"), body=b"x", system_properties=system)
    request = s.SendMessageRequest(messages=[sent])
    answer: s.SendMessageResponse = await proxy.rpcs.send_message(request, FakeCall())
    return answer.status.code


async def test_the_first_message_gives_its_type_to_the_topic_on_every_broker(
    cluster: Cluster,
) -> None:
    brokers, proxy = Types(cluster), cluster.proxy()
    offered = (await proxy.rpcs.query_route(query("fresh"), FakeCall())).message_queues[0]
    assert len(offered.accept_message_types) == 4, "an SDK may send any of these"
    assert await send(proxy, "g") == Code.OK
    assert set(brokers.types.values()) == {"FIFO"}
    assert await send(proxy) == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert await send(proxy, "h") == Code.OK
    assert len(cluster.transport.requests(SPECIFY_MESSAGE_TYPE)) == 2, "asked once"


async def test_a_proxy_that_comes_second_takes_the_type_that_is_there(cluster: Cluster) -> None:
    brokers, proxy = Types(cluster), cluster.proxy()
    brokers.types[BROKER.addresses[0]] = "FIFO"  # the other proxy is under way
    assert await send(proxy) == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert set(brokers.types.values()) == {"FIFO"}


async def test_a_broker_that_is_away_takes_the_type_later(cluster: Cluster) -> None:
    brokers, proxy = Types(cluster), cluster.proxy()
    brokers.away = {BROKER.addresses[0]}
    for _ in range(3):
        assert await send(proxy, "g") == Code.OK
    assert sorted(brokers.types.values()) == ["FIFO", "UNSPECIFIED"]
    asked = len(cluster.transport.requests(SPECIFY_MESSAGE_TYPE))
    assert asked <= 3, "messages do not wait for it one after the other"
    brokers.away = set()
    await asyncio.sleep(RETRY_S)
    assert await send(proxy, "g") == Code.OK
    assert set(brokers.types.values()) == {"FIFO"}, "else it would deliver in no order"


async def test_a_topic_whose_type_no_broker_takes_takes_no_message(cluster: Cluster) -> None:
    brokers, proxy = Types(cluster), cluster.proxy()
    brokers.away = set(brokers.types)
    for _ in range(2):
        assert await send(proxy, "g") != Code.OK


async def test_brokers_of_a_version_without_types_take_every_message(cluster: Cluster) -> None:
    Types(cluster)
    cluster.transport.answers["SpecifyMessageType"] = MqError(
        BrokerCode.REQUEST_CODE_NOT_SUPPORTED, "Method not found!"
    )
    proxy = cluster.proxy()
    for message_group in ("g", "", "g"):
        assert await send(proxy, message_group) == Code.OK
    assert len(cluster.transport.requests(SPECIFY_MESSAGE_TYPE)) == 2, "each asked once"


async def test_without_any_broker_a_topic_is_not_said_to_be_missing(cluster: Cluster) -> None:
    cluster.routes.clear()
    cluster.transport.answers["GetClusterInfo"] = GetClusterInfoResponse()
    answer = await route_of(cluster, "fresh")
    assert answer.status.code == Code.PROXY_TIMEOUT
    assert answer.status.message.startswith("no broker is registered")
