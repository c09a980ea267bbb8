"""Sends that fail: which are retried, where, and until when."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from aerobee_client.errors import BrokerUnreachable, RequestTimeout
from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.producer import AsyncProducer
from aerobee_wire.status import Code, MqError
from support.client.memory import MemoryBroker, MemoryCluster
from support.client.producing import TOPIC, messages, producer
from support.clock.polling import until
from support.codes import raises_code


async def test_the_other_broker_takes_over_at_once(
    broker: MemoryBroker, other: MemoryBroker
) -> None:
    cluster = MemoryCluster(broker, other)
    async with producer(cluster) as sender:
        await sender.queues(TOPIC)
        cluster.down = {broker.address}
        results = [await sender.send(message) for message in messages(6)]
    assert {result.queue.broker_name for result in results} == {"b"}
    assert len(other.messages(TOPIC)) == 6


@pytest.mark.parametrize("code", [Code.SYSTEM_BUSY, Code.SYSTEM_ERROR, Code.NO_PERMISSION])
async def test_some_refusals_are_retried_on_another_broker(
    broker: MemoryBroker, other: MemoryBroker, code: Code
) -> None:
    cluster = MemoryCluster(broker, other)

    cluster.refuse("Send", broker.address, code)
    async with producer(cluster) as sender:
        results = [await sender.send(message) for message in messages(4)]
    assert {result.queue.broker_name for result in results} == {"b"}


async def test_attempts_end_after_the_retries(cluster: MemoryCluster) -> None:
    cluster.answers["Send"] = MqError(Code.SYSTEM_ERROR, "broken")
    async with producer(cluster, retries=2) as sender:
        with raises_code(Code.SYSTEM_ERROR):
            await sender.send(Message(TOPIC, b"x"))
    assert len(cluster.requests("Send")) == 3


@pytest.mark.parametrize("code", [Code.MESSAGE_ILLEGAL, Code.INVALID_PARAMETER])
async def test_a_refused_message_is_not_retried(
    cluster: MemoryCluster, sender: AsyncProducer, code: Code
) -> None:
    cluster.answers["Send"] = MqError(code, "bad message")
    with raises_code(code):
        await sender.send(Message(TOPIC, b"x"))
    assert len(cluster.requests("Send")) == 1


async def test_a_send_waits_for_the_only_broker(
    broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    async with producer(cluster, send_timeout=timedelta(seconds=30)) as sender:
        await sender.queues(TOPIC)
        cluster.down = {broker.address}
        sending = sender.send_async(Message(TOPIC, b"x"))
        await until(lambda: len(cluster.requests("Send")) >= 3)
        cluster.revive(broker)
        result = await sending
    assert len({request.batch.properties for request in cluster.requests("Send")}) == 1
    assert broker.messages(TOPIC)[0].unique_message_id == result.message_id


async def test_absent_brokers_are_retried_after_pauses(
    broker: MemoryBroker, other: MemoryBroker
) -> None:
    cluster = MemoryCluster(broker, other)
    async with producer(cluster, send_timeout=timedelta(milliseconds=300)) as sender:
        await sender.queues(TOPIC)
        cluster.down = {broker.address, other.address}
        with pytest.raises(BrokerUnreachable):
            await sender.send(Message(TOPIC, b"x"))
    assert 3 <= len(cluster.requests("Send")) <= 6  # at 0, 0, then pauses of 50, 100, 200 ms


async def test_a_send_to_an_absent_broker_ends_at_its_timeout(
    broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    async with producer(cluster, send_timeout=timedelta(milliseconds=120)) as sender:
        await sender.queues(TOPIC)
        cluster.down = {broker.address}
        with pytest.raises(BrokerUnreachable) as caught:
            await sender.send(Message(TOPIC, b"x"))
    assert broker.address in caught.value.message


async def test_a_retry_does_not_extend_the_timeout(
    broker: MemoryBroker, other: MemoryBroker
) -> None:
    cluster = MemoryCluster(broker, other)

    async def too_late(address: str) -> None:
        await asyncio.sleep(0.05)
        raise RequestTimeout(address, 0.05)

    cluster.answers["Send"] = lambda address, request: too_late(address)
    async with producer(cluster, send_timeout=timedelta(milliseconds=50)) as sender:
        await sender.queues(TOPIC)  # the route is cached: the timeout is for the send alone
        with pytest.raises(RequestTimeout):
            await sender.send(Message(TOPIC, b"x"))
    assert len(cluster.requests("Send")) == 1


async def test_latency_fault_avoids_a_failed_broker(
    broker: MemoryBroker, other: MemoryBroker
) -> None:
    cluster = MemoryCluster(broker, other)
    refused: list[str] = []

    def refuse_once(address: str, request: Any) -> None:
        if address == broker.address and not refused:
            refused.append(address)
            raise BrokerUnreachable(address, "once")

    cluster.answers["Send"] = refuse_once
    async with producer(cluster, latency_fault=True) as sender:
        for message in messages(8):  # one for each queue
            await sender.send(message)
        assert refused
        results = [await sender.send(message) for message in messages(8)]
    assert {result.queue.broker_name for result in results} == {"b"}


async def test_a_topic_created_again_with_fewer_queues_is_sent_to(
    broker: MemoryBroker, sender: AsyncProducer
) -> None:
    await sender.send(Message(TOPIC, b"first"))  # the route of four queues is known now
    broker.topics[TOPIC] = 1
    results = [await sender.send(message) for message in messages(12)]
    assert {result.queue.queue_id for result in results} == {0}
    with raises_code(Code.QUEUE_NOT_EXIST):
        await sender.send(Message(TOPIC, b"x"), queue=MessageQueue(TOPIC, "a", 3))


@pytest.mark.parametrize("known", [False, True])
async def test_hanging_name_servers_do_not_extend_the_timeout(
    broker: MemoryBroker, cluster: MemoryCluster, known: bool
) -> None:
    """Each of them has a timeout of 3 s."""
    async with producer(cluster) as sender:
        if known:
            await sender.queues(TOPIC)
            cluster.down.add(broker.address)
        cluster.answers["GetTopicRoute"] = lambda *_: asyncio.sleep(60)
        async with asyncio.timeout(10):
            with pytest.raises(MqError) as caught:
                await sender.send(Message(TOPIC, b"x"), timeout=timedelta(seconds=1))
    assert caught.value.code in (Code.NAMESRV_UNREACHABLE, Code.BROKER_UNREACHABLE)
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_a_timeout_error_names_the_whole_timeout(sender: AsyncProducer) -> None:
    await sender.queues(TOPIC)
    with pytest.raises(RequestTimeout) as caught:
        await sender.send(Message(TOPIC, b"x"), timeout=timedelta(0))
    assert caught.value.timeout_s == 0
