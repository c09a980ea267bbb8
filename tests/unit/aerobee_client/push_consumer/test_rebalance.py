"""Members and topics that come and go: queues are shared, acquired and released."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from aerobee_client.cluster import client_instance
from aerobee_client.consuming import membership, offsets
from aerobee_client.message import ReceivedMessage
from aerobee_client.push_consumer import AsyncPushConsumer
from aerobee_wire import properties
from aerobee_wire.status import Code, MqError
from support.client.consumer_group import GROUP, TOPIC, Join, committed, delete_topic, fill, owned
from support.client.memory import NAMESRV, MemoryBroker, MemoryCluster
from support.clock.polling import until


async def test_members_share_the_queues(broker: MemoryBroker, join: Join) -> None:
    first = await join(print)
    await until(lambda: len(owned(first)) == 4)
    second = await join(print)
    await until(lambda: len(owned(first)) == 2 and len(owned(second)) == 2)
    assert owned(first) | owned(second) == {0, 1, 2, 3}
    await first.close()
    await until(lambda: len(owned(second)) == 4)


async def test_an_unregistered_member_registers_again(
    broker: MemoryBroker, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "REBALANCE_RETRY_S", 0.05)
    monkeypatch.setattr(membership, "REBALANCE_INTERVAL_S", 0.05)
    consumer = await join(print)
    broker.clients.clear()
    await until(lambda: broker.members(GROUP))
    assert len(owned(consumer)) == 4


async def test_a_broker_may_restart(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join
) -> None:
    seen: list[bytes] = []
    consumer = await join(lambda message: seen.append(message.body))
    fill(broker, 20)
    await broker.wake()
    await until(lambda: len(seen) == 20)
    await cluster.kill(broker)
    fill(broker, 20)
    cluster.revive(broker)
    await until(lambda: len(seen) >= 40)
    await until(lambda: broker.members(GROUP))
    assert len(owned(consumer)) == 4
    assert Counter(seen) == {b"%d" % n: 2 for n in range(20)}


async def test_a_broker_that_left_the_routes_is_read_as_soon_as_it_is_back(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before the next refresh of all routes."""
    monkeypatch.setattr(client_instance, "ROUTE_REFRESH_INTERVAL_S", 3_600.0)
    monkeypatch.setattr(client_instance, "EXPECTANT_REFRESH_INTERVAL_S", 0.05)
    monkeypatch.setattr(membership, "REBALANCE_INTERVAL_S", 3_600.0)
    other = MemoryBroker("b", "10.0.0.12:10911")
    other.create(TOPIC, 4)
    cluster.brokers[other.address] = other
    consumer = await join(print)

    def brokers() -> Counter[str]:
        return Counter(queue.broker_name for queue in consumer.queues if queue.topic == TOPIC)

    await until(lambda: brokers() == {"a": 4, "b": 4})
    await cluster.kill(other)
    await until(lambda: brokers() == {"a": 4})
    cluster.revive(other)
    await until(lambda: brokers() == {"a": 4, "b": 4})


async def test_a_member_that_joined_before_a_broker_was_registered_reads_it_soon(
    cluster: MemoryCluster, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that has just started does not know every broker."""
    monkeypatch.setattr(client_instance, "ROUTE_REFRESH_INTERVAL_S", 3_600.0)
    monkeypatch.setattr(client_instance, "EXPECTANT_REFRESH_INTERVAL_S", 0.05)
    consumer = await join(print)
    assert {queue.broker_name for queue in consumer.queues} == {"a"}
    other = MemoryBroker("b", "10.0.0.12:10911")
    other.create(TOPIC, 4)
    cluster.brokers[other.address] = other
    await until(lambda: {queue.broker_name for queue in consumer.queues} == {"a", "b"})


async def test_name_servers_may_be_down(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join
) -> None:
    seen: list[bytes] = []
    await join(lambda message: seen.append(message.body))
    cluster.down.add(NAMESRV)
    await cluster.kill(broker)
    cluster.revive(broker)
    fill(broker, 4)
    await until(lambda: len(seen) == 4)


async def test_a_hanging_broker_does_not_hold_up_the_others(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = offsets.OffsetStore.load

    async def load(self: Any, topic: str, broker_name: str) -> dict[int, int]:
        if broker_name == broker.name:
            raise MqError(Code.REQUEST_TIMEOUT, "it hangs")
        return await good(self, topic, broker_name)

    monkeypatch.setattr(offsets.OffsetStore, "load", load)
    other = MemoryBroker("b", "10.0.0.12:10911")
    other.create(TOPIC, 2)
    cluster.brokers[other.address] = other
    seen: list[bytes] = []
    await join(lambda message: seen.append(message.body))
    fill(other, 4)
    await other.wake()
    await until(lambda: len(seen) == 4)
    assert sorted(seen) == [b"0", b"1", b"2", b"3"]


async def test_a_topic_created_later_is_consumed(
    broker: MemoryBroker, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "REBALANCE_RETRY_S", 0.05)
    seen: list[bytes] = []
    consumer = AsyncPushConsumer(
        GROUP, lambda message: seen.append(message.body), namesrv=NAMESRV, transport=cluster
    )
    consumer.subscribe("later")
    async with consumer:
        broker.create("later", 1)
        fill(broker, 3, topic="later")
        await until(lambda: len(seen) == 3)


async def test_subscriptions_may_change_after_start(broker: MemoryBroker, join: Join) -> None:
    broker.create("more", 1)
    fill(broker, 3, topic="more")
    seen: list[str] = []
    consumer = await join(lambda message: seen.append(message.topic))
    consumer.subscribe("more")
    await until(lambda: seen == ["more"] * 3)
    consumer.unsubscribe("more")
    await until(lambda: not any(queue.topic == "more" for queue in consumer.queues))
    assert len(owned(consumer)) == 4


async def test_a_new_expression_replaces_the_old_one(broker: MemoryBroker, join: Join) -> None:
    seen: list[str] = []
    consumer = await join(lambda message: seen.append(message.tag), expression="A")
    await broker.wake()
    consumer.subscribe(TOPIC, "B")
    fill(broker, 8, **{properties.TAGS: "B"})
    fill(broker, 8, **{properties.TAGS: "A"})
    await broker.wake()
    await until(lambda: len(seen) >= 8)
    assert seen == ["B"] * 8


async def test_a_subscription_made_during_a_rebalance_is_announced(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join
) -> None:
    consumer = await join(print)
    await until(lambda: len(owned(consumer)) == 4)
    asked = asyncio.Event()

    def answer(address: str, request: Any) -> Any:
        if asked.is_set():
            return None
        asked.set()
        consumer.subscribe("more")
        return None

    broker.create("more", 1)
    cluster.answers["ListGroupMembers"] = answer
    consumer.subscribe(TOPIC)
    await until(asked.is_set)
    await until(
        lambda: any(
            subscription.topic == "more"
            for beat in broker.clients.values()
            for member in beat.consumers
            for subscription in member.subscriptions
        ),
        timeout_s=3,
    )


async def test_a_topic_created_again_is_consumed_from_its_start(
    broker: MemoryBroker, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "REBALANCE_RETRY_S", 0.05)
    fill(broker, 40)
    seen: list[bytes] = []
    consumer = await join(lambda message: seen.append(message.body))
    await until(lambda: len(seen) == 40)
    delete_topic(broker)
    await broker.wake()
    await until(lambda: not owned(consumer))
    seen.clear()
    broker.create(TOPIC, 4)
    fill(broker, 8)
    await until(lambda: len(seen) == 8)
    await consumer.close()
    assert committed(broker) == 8


async def test_offsets_of_a_deleted_topic_are_not_committed(
    broker: MemoryBroker, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener is busy, so that nothing is pulled while the topic does not exist."""
    monkeypatch.setattr(membership, "REBALANCE_RETRY_S", 0.05)
    monkeypatch.setattr(membership, "COMMIT_INTERVAL_S", 0.05)
    fill(broker, 4_000)
    hold = asyncio.Event()
    seen: list[bytes] = []

    async def listen(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if len(seen) > 2_000:
            await hold.wait()

    consumer = await join(listen, pull_threshold_for_queue=10, concurrency=1)
    await until(lambda: len(seen) > 2_000)
    delete_topic(broker)
    hold.set()
    await until(lambda: not owned(consumer))
    seen.clear()
    broker.create(TOPIC, 4)
    fill(broker, 8)
    await until(lambda: {b"%d" % n for n in range(8)} <= set(seen))
