"""Subscriptions by SQL92: checked by a broker at start and when they change."""

from __future__ import annotations

from typing import Any

from aerobee.broker.v1 import message_pb2

from aerobee_client.message import ReceivedMessage
from aerobee_client.options.consumer import Sql
from aerobee_client.push_consumer import AsyncPushConsumer
from aerobee_wire.status import Code, MqError
from support.client.consumer_group import GROUP, RETRY, TOPIC, Join, fill, owned
from support.client.memory import NAMESRV, MemoryBroker, MemoryCluster
from support.clock.polling import until
from support.codes import raises_code

SQL92 = message_pb2.Subscription.SQL92
WRONG = Sql("size >")


def parse(_: str, request: Any) -> None:
    """As a broker, which has a parser."""
    if request.subscription.expression == WRONG.expression:
        raise MqError(Code.SUBSCRIPTION_PARSE_FAILED, "the filter ends too early")


def expressions(cluster: MemoryCluster, topic: str = TOPIC) -> set[tuple[str, int]]:
    """Of the pulls of members, and of their heartbeats."""
    given = [request.subscription for request in cluster.requests("Pull") if not request.browse]
    given += [
        each
        for request in cluster.requests("Heartbeat")
        for consumer in request.consumers
        for each in consumer.subscriptions
    ]
    return {(each.expression, each.expression_type) for each in given if each.topic == topic}


async def test_the_broker_gets_the_condition(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join
) -> None:
    seen: list[ReceivedMessage] = []
    await join(seen.append, expression=Sql("size > 5"))
    fill(broker, 4, size="6")
    await broker.wake()
    await until(lambda: len(seen) == 4)
    assert expressions(cluster) == {("size > 5", SQL92)}
    assert expressions(cluster, RETRY) == {("*", message_pb2.Subscription.TAG)}


async def test_a_wrong_condition_is_refused_by_the_start(
    broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    cluster.answers["Pull"] = parse
    consumer = AsyncPushConsumer(GROUP, print, namesrv=NAMESRV, transport=cluster)
    for topic in (TOPIC, "not-there-yet"):
        consumer.subscribe(topic, WRONG)
        with raises_code(Code.SUBSCRIPTION_PARSE_FAILED):
            await consumer.start()
        consumer.unsubscribe(topic)
        assert broker.clients == {}


async def test_a_wrong_condition_at_run_time_changes_nothing(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join
) -> None:
    cluster.answers["Pull"] = parse
    seen: list[ReceivedMessage] = []
    consumer = await join(seen.append, expression=Sql("size > 5"))
    with raises_code(Code.SUBSCRIPTION_PARSE_FAILED):
        await consumer.subscribe(TOPIC, WRONG)
    fill(broker, 4)
    await broker.wake()
    await until(lambda: len(seen) == 4)
    assert expressions(cluster) == {("size > 5", SQL92)}
    await consumer.subscribe(TOPIC, Sql("size > 6"))
    await until(lambda: ("size > 6", SQL92) in expressions(cluster))
    await consumer.subscribe(TOPIC, "blue")
    await until(lambda: ("blue", message_pb2.Subscription.TAG) in expressions(cluster))


async def test_brokers_that_cannot_be_asked_hold_up_nobody(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join
) -> None:
    consumer = await join(print)
    await until(lambda: len(owned(consumer)) == 4)
    await cluster.kill(broker)
    await consumer.subscribe(TOPIC, Sql("size > 5"))
    cluster.revive(broker)
    await until(lambda: ("size > 5", SQL92) in expressions(cluster), timeout_s=20)
