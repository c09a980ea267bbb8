"""Lite topics as an admin client lists them, through two brokers in memory."""

from __future__ import annotations

from typing import Any

import pytest
from aerobee.broker.v1 import lite_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client.admin.client import AsyncAdminClient
from aerobee_wire.status import Code, MqError
from support.client.memory import MemoryBroker, MemoryCluster
from support.codes import raises_code

PARENT = "orders"  # both brokers have it


async def test_the_first_of_all_brokers(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    asked: list[Any] = []

    def listed(address: str, request: Any) -> Any:
        asked.append(request)
        lags = {"a": 5, "b": 1} if address == brokers[0].address else {"c": 3, "d": 3}
        infos = [
            lite_pb2.LiteTopicInfo(lite_topic=name, messages=9, lag=lag)
            for name, lag in lags.items()
        ]
        return lite_pb2.ListLiteTopicsResponse(lite_topics=infos, total=20)

    cluster.answers["ListLiteTopics"] = listed
    found = await admin.list_lite_topics(PARENT, group="agents", limit=3)
    assert [(each.lite_topic, each.lag, each.broker_name) for each in found.topics] == [
        ("a", 5, "a"),
        ("c", 3, "b"),
        ("d", 3, "b"),
    ]
    assert found.total == 40
    assert {(each.parent, each.consumer_group, each.limit) for each in asked} == {
        (PARENT, "agents", 3)
    }
    for limit in (0, -1, 1 << 40):
        with raises_code(Code.INVALID_PARAMETER):
            await admin.list_lite_topics(PARENT, limit=limit)


async def test_a_client_that_several_brokers_know_is_one(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    def listed(address: str, request: Any) -> Any:
        at_first = address == brokers[0].address
        info = lite_pb2.LiteClientInfo(
            consumer_group="agents",
            client_id="c",
            lite_topics=4 if at_first else 3,
            ready=1,
            silent_ms=700 if at_first else 900,
        )
        return lite_pb2.ListLiteClientsResponse(clients=[info])

    cluster.answers["ListLiteClients"] = listed
    (client,) = await admin.list_lite_clients(PARENT)
    assert (client.brokers, client.lite_topics, client.ready) == (("a", "b"), 4, 2)
    assert client.silent_ms == 700


@pytest.mark.parametrize("rpc", ["ListLiteTopics", "ListLiteClients"])
async def test_a_broker_that_does_not_answer_is_reported(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker], rpc: str
) -> None:
    def refuse(address: str, request: Any) -> Any:
        if address == brokers[0].address:
            raise MqError(Code.FLOW_CONTROL, "busy")
        if rpc == "ListLiteTopics":
            return lite_pb2.ListLiteTopicsResponse(total=1)
        return lite_pb2.ListLiteClientsResponse()

    cluster.answers[rpc] = refuse
    ask = admin.list_lite_topics if rpc == "ListLiteTopics" else admin.list_lite_clients
    silent: list[MqError] = []
    await ask(PARENT, silent=silent)
    assert [error.code for error in silent] == [Code.FLOW_CONTROL]
    with raises_code(Code.FLOW_CONTROL):
        await ask(PARENT)


@pytest.mark.parametrize("rpc", ["ListLiteTopics", "ListLiteClients"])
async def test_a_broker_that_is_not_registered_any_more_is_reported(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker], rpc: str
) -> None:
    def routed_to_a(address: str, request: Any) -> Any:
        response = namesrv_pb2.GetTopicRouteResponse(away_brokers=["b"])
        response.route.queues.add(broker_name="a", read_queue_count=4, write_queue_count=4)
        response.route.brokers.add(broker_name="a", addresses={0: brokers[0].address})
        return response

    cluster.answers |= {
        "GetTopicRoute": routed_to_a,
        "ListLiteTopics": lambda *_: lite_pb2.ListLiteTopicsResponse(),
        "ListLiteClients": lambda *_: lite_pb2.ListLiteClientsResponse(),
    }
    ask = admin.list_lite_topics if rpc == "ListLiteTopics" else admin.list_lite_clients
    silent: list[MqError] = []
    await ask(PARENT, silent=silent)
    assert [error.broker_name for error in silent] == ["b"]
