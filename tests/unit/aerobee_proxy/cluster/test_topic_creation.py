"""Topics that are created by the first request for their route."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aerobee.broker.v1.admin_pb2 import PutTopicResponse
from apache.rocketmq.v2 import definition_pb2 as d
from apache.rocketmq.v2 import service_pb2 as s
from apache.rocketmq.v2.definition_pb2 import Code

from aerobee_wire.rpcs import PUT_TOPIC
from aerobee_wire.status import Code as BrokerCode
from aerobee_wire.status import MqError
from support.proxy.harness import Cluster, FakeCall, route

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


async def route_of(cluster: Cluster, topic: str) -> s.QueryRouteResponse:
    request = s.QueryRouteRequest(topic=d.Resource(name=topic), endpoints=ENDPOINTS)
    answer: s.QueryRouteResponse = await cluster.proxy().rpcs.query_route(request, FakeCall())
    return answer


async def test_unknown_topic_is_created(cluster: Cluster) -> None:
    answer = await route_of(cluster, "fresh")
    assert answer.status.code == Code.OK and len(answer.message_queues) == 4
    (asked,) = cluster.transport.requests(PUT_TOPIC)
    assert asked.topic.permission == 6 and asked.only_new
    assert dict(asked.topic.attributes) == {"message.type": "MIXED"}


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
    request = s.QueryRouteRequest(topic=d.Resource(name="fresh"), endpoints=ENDPOINTS)

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


async def test_topic_of_a_broker_without_mixed_types_is_normal(cluster: Cluster) -> None:
    def put(address: str, request: Any) -> PutTopicResponse:
        if request.topic.attributes:
            raise MqError(BrokerCode.INVALID_PARAMETER, "mixed types are turned off")
        cluster.routes[request.topic.topic] = route(message_type="")
        return PutTopicResponse(created=True)

    cluster.transport.answers["PutTopic"] = put
    answer = await route_of(cluster, "fresh")
    assert list(answer.message_queues[0].accept_message_types) == [d.MessageType.NORMAL]
