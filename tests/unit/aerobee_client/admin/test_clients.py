"""Connected clients as an admin client lists them, through a cluster in memory."""

from __future__ import annotations

from typing import Any

from aerobee.broker.v1 import client_pb2

from aerobee_client.admin.client import AsyncAdminClient
from aerobee_client.admin.descriptions import (
    ClientDescription,
    ConsumerDescription,
    member_conflicts,
    subscription_conflicts,
)
from aerobee_wire.status import Code, MqError
from support.client.memory import MemoryBroker, MemoryCluster

TOPIC = "flights"


async def test_clients_show_groups_and_subscriptions(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    response = client_pb2.ListClientsResponse()
    info = response.clients.add(client_id="c", language="python")
    info.consumers.add(consumer_group="g").subscriptions.add(topic=TOPIC, expression="UA")
    cluster.answers["ListClients"] = lambda *_: response
    (found,) = await admin.list_clients("g")
    assert (found.consumer_groups, found.subscriptions) == (("g",), {TOPIC: "UA"})
    assert found.brokers == ("a", "b")
    assert await admin.list_clients(topic="other") == []


async def test_the_broker_that_heard_of_a_client_last_describes_it(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    def clients(address: str, request: Any) -> Any:
        response = client_pb2.ListClientsResponse()
        at_first = address == brokers[0].address
        response.clients.add(
            client_id="c",
            address="10.0.0.8:1" if at_first else "10.0.0.8:2",
            since_timestamp_ms=5 if at_first else 7,
            last_update_timestamp_ms=8 if at_first else 9,
            published_topics=[TOPIC],
        )
        return response

    cluster.answers["ListClients"] = clients
    (found,) = await admin.list_clients(topic=TOPIC)
    assert (found.address, found.since_timestamp_ms, found.last_update_timestamp_ms) == (
        "10.0.0.8:2",
        5,
        9,
    )
    cluster.down.add(brokers[1].address)
    silent: list[MqError] = []
    (found,) = await admin.list_clients(silent=silent)
    assert (found.brokers, [error.code for error in silent]) == (
        ("a",),
        [Code.BROKER_UNREACHABLE],
    )


async def test_page_of_clients_merges_brokers_and_names_those_that_are_away(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    ids = {brokers[0].address: ["c", "p", "x"], brokers[1].address: ["c", "q"]}

    def clients(address: str, request: Any) -> Any:
        found = ids[address]
        response = client_pb2.ListClientsResponse(total=len(found), names=found)
        for client_id in found[request.offset : request.offset + request.limit]:
            response.clients.add(client_id=client_id)
        return response

    cluster.answers["ListClients"] = clients
    page = await admin.client_page(offset=1, limit=2)
    assert ([each.client_id for each in page.rows], page.total) == (["p", "q"], 4)
    cluster.down.add(brokers[1].address)
    page = await admin.client_page(limit=2)
    assert ([each.client_id for each in page.rows], page.total) == (["c", "p"], None)
    assert list(page.unanswered) == ["b"]


def test_members_that_subscribe_differently_are_distinguished() -> None:
    def member(name: str, **subscriptions: str) -> ClientDescription:
        return ClientDescription(
            client_id=name,
            address="",
            language="",
            version="",
            consumer_groups=("g",),
            subscriptions=subscriptions,
        )

    same = [member("1", t="a || b"), member("2", t="b||a"), member("3"), member("4", t="a||b")]
    assert subscription_conflicts(same, "g") == []
    (conflict,) = subscription_conflicts([*same, member("5", t="*", u="*")], "g")[:1]
    assert conflict.expressions == {"*": ("5",), "a||b": ("1", "2", "4")}
    _, other = subscription_conflicts([*same, member("5", t="*", u="*")], "g")
    assert (other.topic, other.expressions[""]) == ("u", ("1", "2", "4"))
    assert subscription_conflicts([*same, member("5", t="*")], "other") == []


def test_members_that_consume_differently_are_distinguished() -> None:
    def member(name: str, **consumer: str) -> ClientDescription:
        return ClientDescription(
            client_id=name,
            address="",
            language="",
            version="",
            consumers={"g": ConsumerDescription(**consumer)},  # type: ignore[arg-type]
        )

    same = [member("1", strategy="AVG"), member("2", strategy="AVG", consume_type="pull")]
    assert member_conflicts([*same, member("older")], "g") == []
    (conflict,) = member_conflicts([*same, member("3", strategy="CONFIG")], "g")
    assert (conflict.setting, conflict.values) == (
        "strategy",
        {"AVG": ("1", "2"), "CONFIG": ("3",)},
    )
    (conflict,) = member_conflicts([*same, member("3", consume_type="pop")], "g")
    assert conflict.values == {"pop": ("3",), "pull": ("1", "2")}
    assert member_conflicts([*same, member("3", consume_type="pop")], "other") == []


async def test_queues_of_all_brokers_and_statistics_are_shown(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    def clients(address: str, request: Any) -> Any:
        response = client_pb2.ListClientsResponse()
        at = 1 if address == brokers[0].address else 2
        info = response.clients.add(client_id="c", last_update_timestamp_ms=at)
        data = info.consumers.add(
            consumer_group="g",
            consume_type=client_pb2.PUSH,
            message_model=client_pb2.CLUSTERING,
            strategy="AVG",
        )
        data.statistics.consumed = at
        info.queues.add(consumer_group="g", topic=TOPIC, queue_id=at)
        info.queues.add(consumer_group="other", topic=TOPIC, queue_id=9)
        return response

    cluster.answers["ListClients"] = clients
    (found,) = await admin.list_clients("g")
    consumer = found.consumers["g"]
    assert sorted(consumer.queues) == [f"{TOPIC}/a/1", f"{TOPIC}/b/2"]
    assert (consumer.strategy, consumer.consume_type, consumer.message_model) == (
        "AVG",
        "push",
        "clustering",
    )
    assert consumer.statistics["consumed"] == 2 and consumer.statistics["failed"] == 0
