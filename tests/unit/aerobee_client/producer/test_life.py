"""Start, close, callbacks and one-way sends of a producer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aerobee_client.errors import ClientClosed
from aerobee_client.message import Message
from aerobee_client.send_result import SendResult
from aerobee_client.sending.cross_thread_queue import QueuedSend
from aerobee_client.sending.order.queue_choice import SendOrdering
from aerobee_client.sending.single_sends import WINDOW
from aerobee_wire.status import Code, MqError
from support.client.answers import Gate
from support.client.memory import MemoryBroker, MemoryCluster
from support.client.producing import TOPIC, producer
from support.clock.polling import until


def _raise(error: Exception) -> None:
    raise error


async def _after(release: asyncio.Event, cluster: MemoryCluster, request: Any) -> Any:
    await release.wait()
    (broker,) = cluster.brokers.values()
    return await cluster._Send(broker, request)


async def test_callback_gets_result_or_error(broker: MemoryBroker) -> None:
    outcomes: list[tuple[Any, Any]] = []
    async with producer(MemoryCluster(broker)) as sender:
        good = sender.send_async(Message(TOPIC, b"x"), lambda *outcome: outcomes.append(outcome))
        bad = sender.send_async(
            Message("SCHEDULE_TOPIC_XXXX", b"x"), lambda *outcome: outcomes.append(outcome)
        )
        await asyncio.gather(good, bad, return_exceptions=True)
        await asyncio.sleep(0)
    by_kind = sorted(outcomes, key=lambda pair: pair[1] is not None)
    assert by_kind[0] == (good.result(), None)
    assert by_kind[1] == (None, bad.exception())


async def test_close_waits_for_one_way_sends_which_never_raise(
    broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    async with producer(cluster) as sender:
        await sender.send_oneway(Message(TOPIC, b"x"))
        await sender.queues(TOPIC)
    assert len(broker.messages(TOPIC)) == 1
    cluster.answers["Send"] = lambda address, request: _raise(MqError(Code.SYSTEM_BUSY, "busy"))
    async with producer(cluster) as sender:
        await sender.send_oneway(Message(TOPIC, b"x"))
    assert len(cluster.requests("Send")) == 2


async def test_close_waits_for_sends_in_flight(cluster: MemoryCluster) -> None:
    release = asyncio.Event()

    cluster.answers["Send"] = lambda address, request: _after(release, cluster, request)
    sender = producer(cluster)
    await sender.start()
    sending = sender.send_async(Message(TOPIC, b"x"))
    await until(lambda: cluster.requests("Send"))
    closing = asyncio.create_task(sender.close())
    await asyncio.sleep(0)
    assert not closing.done()
    release.set()
    await closing
    assert sending.done() and sending.result().queue_offset == 0


async def test_a_producer_that_closes_does_not_stall_another(cluster: MemoryCluster) -> None:
    """They share nothing, in one process either."""
    gate = Gate(cluster)
    first, second = producer(cluster), producer(cluster)
    async with first, second:
        waiting = first.send_async(Message(TOPIC, b"x"))
        await gate.come(1)
        closing = asyncio.create_task(first.close())
        del cluster.answers["Send"]  # from now on only what is held is
        for _ in range(3):
            await second.send(Message(TOPIC, b"y"))
        await second.close()
        assert not closing.done() and not waiting.done()
        gate.open()
        await closing
    assert waiting.result().message_id


async def test_close_waits_for_a_send_that_was_just_started(broker: MemoryBroker) -> None:
    outcomes: list[tuple[Any, Any]] = []
    async with producer(MemoryCluster(broker)) as sender:
        sending = sender.send_async(Message(TOPIC, b"x"), lambda *outcome: outcomes.append(outcome))
    assert sending.result().queue_offset == 0
    assert len(broker.messages(TOPIC)) == 1
    assert outcomes == [(sending.result(), None)]


async def test_close_does_not_wait_for_a_cancelled_send(broker: MemoryBroker) -> None:
    async with producer(MemoryCluster(broker)) as sender:
        sender.send_async(Message(TOPIC, b"x")).cancel()
    assert not broker.messages(TOPIC)


async def test_cancelled_close_unregisters(broker: MemoryBroker, cluster: MemoryCluster) -> None:
    sender = producer(cluster)
    await sender.start()
    await sender.queues(TOPIC)
    await until(lambda: broker.clients)
    cluster.answers["Send"] = lambda address, request: _after(asyncio.Event(), cluster, request)
    sending = sender.send_async(Message(TOPIC, b"x"))
    await until(lambda: cluster.requests("Send"))
    closing = asyncio.create_task(sender.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert not broker.clients
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_use_before_start_or_after_close_is_refused(broker: MemoryBroker) -> None:
    sender = producer(MemoryCluster(broker))
    with pytest.raises(ClientClosed):
        await sender.send(Message(TOPIC, b"x"))
    await sender.start()
    await sender.close()
    await sender.close()
    with pytest.raises(ClientClosed):
        await sender.queues(TOPIC)


async def test_a_producer_registers_and_unregisters(
    broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    async with producer(cluster) as sender:
        await sender.send(Message(TOPIC, b"x"))
        await until(lambda: broker.clients)
        (beat,) = broker.clients.values()
        assert list(beat.producer_groups) == ["p"]
        assert not broker.watchers
    assert not broker.clients


def test_a_producer_may_start_again_in_another_loop(
    broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    """As the plain Producer does."""
    sender = producer(cluster)

    async def life() -> None:
        release = asyncio.Event()
        cluster.answers["Send"] = lambda address, request: _after(release, cluster, request)
        async with sender:
            sending = sender.send_async(Message(TOPIC, b"x"))
            for _ in range(WINDOW):
                await sender.send_oneway(Message(TOPIC, b"y"))
            waiting = asyncio.create_task(sender.send_oneway(Message(TOPIC, b"z")))
            await asyncio.sleep(0.01)
            asyncio.get_running_loop().call_later(0.01, release.set)
        assert sending.result().message_id
        await waiting

    for _ in range(2):
        asyncio.run(life())
    assert len(broker.messages(TOPIC)) == 2 * (WINDOW + 2)


@pytest.mark.parametrize("waits_for", ["its route", "a request of its own", "its order"])
async def test_a_send_that_is_about_to_begin_fails_when_the_producer_gives_up(
    cluster: MemoryCluster, waits_for: str
) -> None:
    """Its task is cancelled before it begins, and somebody waits for its outcome."""
    in_order, alone = waits_for == "its order", waits_for == "a request of its own"
    async with producer(cluster) as sender:
        singles = sender._singles
        assert singles is not None
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        message = Message(TOPIC, b"x", message_group="g" if in_order else "")
        ordering = SendOrdering() if in_order else None
        singles.accept(QueuedSend(message, None, ordering, 3, future, alone))
        await singles.abort()
        assert isinstance(future.exception(), ClientClosed)
        assert singles._budget.taken() == (0, 0)
