"""A new master: what the client does when a name server tells of it, and without being told."""

from __future__ import annotations

import asyncio

import pytest
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.message import Message
from aerobee_client.producer import AsyncProducer
from aerobee_client.push_consumer import AsyncPushConsumer
from aerobee_wire.status import Code, MqError
from support.client.memory import NAMESRV, MemoryBroker, MemoryCluster
from support.client.producing import TOPIC, producer
from support.clock.polling import until
from support.clock.virtual_loop import LoopClock
from support.codes import raises_code

OLD, NEW, OTHER = "10.0.0.2:10911", "10.0.0.3:10911", "10.0.0.4:10911"


@pytest.fixture
def old() -> MemoryBroker:
    broker = MemoryBroker("broker-a", OLD)
    broker.create(TOPIC, 4)
    return broker


@pytest.fixture
def cluster(old: MemoryBroker) -> MemoryCluster:
    return MemoryCluster(old)


def elect(cluster: MemoryCluster) -> MemoryBroker:
    """The replica of broker-a becomes its master, with what the old one had."""
    old = cluster.brokers.pop(OLD)
    new = cluster.brokers[NEW] = MemoryBroker("broker-a", NEW, old.queues, old.topics)
    return new


def report(cluster: MemoryCluster, epoch: int, addresses: dict[int, str]) -> None:
    reported = namesrv_pb2.BrokerMembers(broker_name="broker-a", epoch=epoch, addresses=addresses)
    cluster.reported[NAMESRV].put_nowait(namesrv_pb2.WatchBrokersResponse(brokers=[reported]))


async def sending(cluster: MemoryCluster) -> AsyncProducer:
    started = producer(cluster, clock=LoopClock())
    await started.start()
    await started.send(Message(TOPIC, b"first"))
    await until(lambda: NAMESRV in cluster.reported)
    return started


async def test_sends_go_to_the_new_master_and_the_old_one_is_left(cluster: MemoryCluster) -> None:
    started = await sending(cluster)
    new = elect(cluster)
    report(cluster, 2, {0: NEW})
    await until(lambda: cluster.dropped)
    assert cluster.dropped == [OLD]
    failed = len([call for call in cluster.calls if call[0] == OLD])
    await started.send(Message(TOPIC, b"second"))
    assert len([call for call in cluster.calls if call[0] == OLD]) == failed
    assert {each.body for each in new.messages(TOPIC)} == {b"first", b"second"}
    await started.close()


async def test_the_new_master_hears_of_its_clients_at_once(cluster: MemoryCluster) -> None:
    async def listen(message: object) -> None: ...

    consumer = AsyncPushConsumer("g", listen, namesrv=NAMESRV, transport=cluster, clock=LoopClock())
    consumer.subscribe(TOPIC)
    await consumer.start()
    await until(lambda: NAMESRV in cluster.reported)
    new = elect(cluster)
    began = asyncio.get_running_loop().time()
    report(cluster, 2, {0: NEW})
    await until(lambda: new.members("g"))
    assert asyncio.get_running_loop().time() - began < 1
    await consumer.close()


async def test_a_name_server_that_is_behind_is_not_believed(cluster: MemoryCluster) -> None:
    started = await sending(cluster)
    elect(cluster)
    report(cluster, 2, {0: NEW})
    report(cluster, 1, {0: OLD})
    await until(lambda: cluster.dropped)
    await asyncio.sleep(0.1)
    assert cluster.dropped == [OLD]
    await started.send(Message(TOPIC, b"second"))
    await started.close()


async def test_the_routes_get_the_address_without_being_asked_for(cluster: MemoryCluster) -> None:
    """A client of a thousand topics asks no name server a thousand times when a master is gone."""
    for number in range(20):
        cluster.brokers[OLD].create(f"topic-{number}", 1)
    started = await sending(cluster)
    for number in range(20):
        await started.send(Message(f"topic-{number}", b"first"))
    new = elect(cluster)
    asked = len(cluster.requests("GetTopicRoute"))
    report(cluster, 2, {0: NEW})
    await until(lambda: cluster.dropped)
    for number in range(20):
        await started.send(Message(f"topic-{number}", b"second"))
    assert len(cluster.requests("GetTopicRoute")) == asked
    assert len(new.messages("topic-7")) == 2
    await started.close()


async def test_a_route_of_a_name_server_that_is_behind_keeps_the_new_address(
    cluster: MemoryCluster,
) -> None:
    started = await sending(cluster)
    behind = cluster._namesrv_GetTopicRoute(namesrv_pb2.GetTopicRouteRequest(topic=TOPIC))
    behind.route.brokers[0].epoch = 1
    new = elect(cluster)
    report(cluster, 2, {0: NEW})
    await until(lambda: cluster.dropped)
    cluster.answers["GetTopicRoute"] = lambda address, request: behind
    instance = started._instance
    assert instance is not None
    await instance.routes.refresh_now(TOPIC)
    assert instance.routes.address_of("broker-a") == NEW
    await started.send(Message(TOPIC, b"second"))
    assert {each.body for each in new.messages(TOPIC)} == {b"first", b"second"}
    await started.close()


async def test_a_broker_that_this_client_has_nothing_to_do_with_is_not_kept(
    cluster: MemoryCluster,
) -> None:
    instance = ClientInstance(NAMESRV, transport=cluster, clock=LoopClock())
    reported = namesrv_pb2.BrokerMembers(broker_name="broker-z", epoch=1, addresses={0: NEW})
    assert instance.routes.learn(reported) is None
    with pytest.raises(MqError):
        instance.routes.address_of("broker-z")
    await instance.close()


async def test_a_send_waits_while_a_master_is_being_elected(
    cluster: MemoryCluster, old: MemoryBroker
) -> None:
    started = await sending(cluster)
    old.has_master = False
    instance = started._instance
    assert instance is not None
    await instance.routes.refresh_now(TOPIC)
    waiting = asyncio.create_task(started.send(Message(TOPIC, b"second")))
    await asyncio.sleep(0.5)
    assert not waiting.done()
    old.has_master = True
    await waiting
    await started.close()


async def test_an_election_is_no_lack_of_permission(
    cluster: MemoryCluster, old: MemoryBroker
) -> None:
    old.has_master = False
    started = producer(cluster, clock=LoopClock())
    await started.start()
    with pytest.raises(MqError) as raised:
        await started.send(Message(TOPIC, b"first"))
    assert raised.value.code is not Code.NO_PERMISSION and raised.value.retryable
    await started.close()


async def test_other_brokers_take_messages_meanwhile(
    cluster: MemoryCluster, old: MemoryBroker
) -> None:
    other = cluster.brokers[OTHER] = MemoryBroker("broker-b", OTHER)
    other.create(TOPIC, 4)
    old.has_master = False
    started = producer(cluster, clock=LoopClock())
    await started.start()
    for _ in range(8):
        await started.send(Message(TOPIC, b"m"))
    assert len(other.messages(TOPIC)) == 8
    await started.close()


@pytest.mark.parametrize(("elsewhere", "sent"), [(False, 1), (True, 2)])
async def test_what_is_stored_and_not_replicated_goes_elsewhere_only_if_asked_for(
    cluster: MemoryCluster, *, elsewhere: bool, sent: int
) -> None:
    other = cluster.brokers[OTHER] = MemoryBroker("broker-b", OTHER)
    other.create(TOPIC, 4)
    answered = 0

    def fail_once(address: str, request: object) -> None:
        nonlocal answered
        answered += 1
        if answered == 1:
            raise MqError(Code.FLUSH_SLAVE_TIMEOUT, "stored, and not replicated")

    cluster.answers["Send"] = fail_once
    started = producer(cluster, clock=LoopClock(), retry_another_broker_when_not_store_ok=elsewhere)
    await started.start()
    if elsewhere:
        await started.send(Message(TOPIC, b"m"))
    else:
        with raises_code(Code.FLUSH_SLAVE_TIMEOUT):
            await started.send(Message(TOPIC, b"m"))
    assert len(cluster.requests("Send")) == sent
    await started.close()


async def test_what_is_not_stored_for_lack_of_replicas_goes_elsewhere_at_once(
    cluster: MemoryCluster,
) -> None:
    other = cluster.brokers[OTHER] = MemoryBroker("broker-b", OTHER)
    other.create(TOPIC, 4)
    cluster.refuse("Send", OLD, Code.SLAVE_NOT_AVAILABLE)
    started = producer(cluster, clock=LoopClock())
    await started.start()
    began = asyncio.get_running_loop().time()
    for _ in range(4):
        await started.send(Message(TOPIC, b"m"))
    assert asyncio.get_running_loop().time() == began
    assert len(other.messages(TOPIC)) == 4
    await started.close()
