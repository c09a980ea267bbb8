"""Closing: what is waited for, what is committed, and what cancelling it skips."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from aerobee_client.consume_result import ConsumeResult
from aerobee_client.errors import ClientClosed
from aerobee_client.message import ReceivedMessage
from aerobee_client.push_consumer import AsyncPushConsumer
from aerobee_wire.status import Code, MqError
from support.client.consumer_group import GROUP, TOPIC, Join, committed, fill, owned
from support.client.memory import NAMESRV, MemoryBroker, MemoryCluster
from support.clock.polling import until
from support.codes import raises_code


async def test_close_waits_for_running_listeners_and_commits(
    broker: MemoryBroker, join: Join
) -> None:
    fill(broker, 40)
    begun = threading.Event()
    finish = threading.Event()
    seen: list[bytes] = []

    def listen(message: ReceivedMessage) -> None:
        begun.set()
        finish.wait(10)
        seen.append(message.body)

    consumer = await join(listen, concurrency=4)
    await until(begun.is_set)
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0.05)
    assert not closing.done() and broker.clients
    finish.set()
    await closing
    assert 1 <= len(seen) <= 8  # the running ones, and no further ones
    assert not broker.clients and not consumer.queues
    assert committed(broker) <= len(seen)


@pytest.mark.parametrize("timeout", [5, timedelta(-1)])
async def test_a_close_with_a_wrong_timeout_closes_nothing(
    broker: MemoryBroker, join: Join, timeout: Any
) -> None:
    seen: list[bytes] = []
    consumer = await join(lambda message: seen.append(message.body))
    with raises_code(Code.INVALID_PARAMETER, "timeout"):
        await consumer.close(timeout)
    fill(broker, 1)
    await broker.wake()
    await until(lambda: seen)
    await consumer.close()
    assert not broker.clients


async def test_close_has_a_timeout_for_listeners(broker: MemoryBroker, join: Join) -> None:
    fill(broker, 1)
    begun = asyncio.Event()

    async def listen(message: ReceivedMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    consumer = await join(listen)
    await begun.wait()
    await consumer.close(timedelta(milliseconds=10))
    assert committed(broker) == 0


async def test_cancelled_close_leaves_the_group(broker: MemoryBroker, join: Join) -> None:
    """A member that still sends heartbeats keeps its queues."""
    fill(broker, 1)
    begun = asyncio.Event()

    async def listen(message: ReceivedMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    consumer = await join(listen)
    await begun.wait()
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0.05)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not broker.clients
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


@pytest.mark.parametrize("turns", range(1, 24))
async def test_close_may_be_cancelled_at_any_step(
    broker: MemoryBroker, join: Join, turns: int
) -> None:
    fill(broker, 8)
    seen: list[bytes] = []
    consumer = await join(lambda message: seen.append(message.body), concurrency=2)
    await until(lambda: len(seen) == 8)
    closing = asyncio.create_task(consumer.close())
    for _ in range(turns):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert not broker.clients
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_the_listener_cannot_close_its_consumer(broker: MemoryBroker, join: Join) -> None:
    fill(broker, 1)
    refusals: list[MqError] = []

    async def listen(message: ReceivedMessage) -> None:
        try:
            await consumer.close()
        except MqError as error:
            refusals.append(error)

    consumer = await join(listen)
    await until(lambda: refusals)
    assert refusals[0].code is Code.ILLEGAL_OPERATION
    assert len(owned(consumer)) == 4


async def test_close_sends_back_to_a_failing_broker_once_more(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join
) -> None:
    """Each request may take 5 s, and thousands of messages may wait."""
    fill(broker, 800)
    frozen = asyncio.Event()

    async def hang() -> None:
        await frozen.wait()
        raise MqError(Code.REQUEST_TIMEOUT, "it is frozen")

    cluster.answers["SendBack"] = lambda address, request: hang()
    seen: list[bytes] = []

    async def listen(message: ReceivedMessage) -> ConsumeResult:
        seen.append(message.body)
        return ConsumeResult.RECONSUME_LATER

    consumer = await join(listen)
    await until(lambda: len(seen) == 800)
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0.1)  # until it waits for the broker
    frozen.set()
    await closing
    assert len(cluster.requests("SendBack")) <= 2
    assert committed(broker) == 0


async def test_close_commits_what_a_rebalance_released(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join
) -> None:
    fill(broker, 40)
    seen: list[bytes] = []
    consumer = await join(lambda message: seen.append(message.body))
    await until(lambda: len(seen) == 40)
    broker.offsets.clear()
    asked: list[str] = []

    def hang_once(address: str, request: Any) -> Any:
        asked.append(address)
        return asyncio.Event().wait() if len(asked) == 1 else None

    cluster.answers["UpdateConsumerOffsets"] = hang_once
    consumer.unsubscribe(TOPIC)
    await until(lambda: asked)
    await consumer.close()
    assert committed(broker) == 40


async def test_close_during_start_leaves_nothing(
    broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    beaten, go_on = asyncio.Event(), asyncio.Event()

    async def beat(address: str, request: Any) -> Any:
        beaten.set()
        await go_on.wait()
        return cluster._Heartbeat(broker, request)

    cluster.answers["Heartbeat"] = beat
    consumer = AsyncPushConsumer(GROUP, print, namesrv=NAMESRV, transport=cluster)
    consumer.subscribe(TOPIC)
    starting = asyncio.create_task(consumer.start())
    await beaten.wait()
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0)
    go_on.set()
    await closing
    async with asyncio.timeout(10):
        with pytest.raises(ClientClosed):
            await starting
    assert not broker.clients and not consumer.queues
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
