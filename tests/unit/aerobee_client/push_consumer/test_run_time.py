"""What may be changed while a consumer runs: pauses, concurrency; callbacks, common thresholds."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from aerobee_client.consuming.process_queue import Allowance, ProcessQueue
from aerobee_client.message import ReceivedMessage
from aerobee_client.message_queue import MessageQueue
from aerobee_client.options.consumer import ConsumerOptions
from aerobee_wire.status import Code
from support.client.consumer_group import RETRY, TOPIC, Join, committed, fill, owned
from support.client.memory import MemoryBroker, MemoryCluster
from support.clock.polling import until
from support.codes import raises_code

FIRST = MessageQueue(TOPIC, "a", 0)


class Listener:
    """Holds each call until it is let go."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.running = 0
        self.most = 0
        self.gate = asyncio.Event()

    async def __call__(self, message: ReceivedMessage) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        await self.gate.wait()
        self.running -= 1
        self.seen.append(message.body)


# ---- pause and resume ----


@pytest.mark.parametrize("settings", [{}, {"orderly": True}])
async def test_a_paused_topic_waits_and_loses_nothing(
    broker: MemoryBroker, join: Join, settings: dict[str, Any]
) -> None:
    seen: list[bytes] = []
    consumer = await join(lambda message: seen.append(message.body), **settings)
    await until(lambda: len(owned(consumer)) == 4)
    consumer.pause(TOPIC)
    fill(broker, 20)
    await broker.wake()  # pulls that are held bring messages, which wait here
    await asyncio.sleep(0.2)
    assert seen == [] and len(owned(consumer)) == 4
    consumer.resume(TOPIC)
    await until(lambda: len(seen) == 20)
    fill(broker, 20)
    await broker.wake()
    await until(lambda: len(seen) == 40)


@pytest.mark.parametrize("settings", [{}, {"orderly": True}])
async def test_what_waits_for_the_listener_is_held_too(
    broker: MemoryBroker, join: Join, settings: dict[str, Any]
) -> None:
    """The call that runs goes on; no other one begins."""
    fill(broker, 40)
    listener = Listener()
    consumer = await join(listener, concurrency=4, **settings)
    await until(lambda: listener.running == 4)
    consumer.pause()
    listener.gate.set()
    await until(lambda: len(listener.seen) == 4)
    await asyncio.sleep(0.2)
    assert len(listener.seen) == 4
    consumer.resume()
    await until(lambda: len(listener.seen) == 40)
    assert len(set(listener.seen)) == 40
    await consumer.close()
    assert committed(broker) == 40


async def test_one_queue_may_be_paused(broker: MemoryBroker, join: Join) -> None:
    seen: list[int] = []
    consumer = await join(lambda message: seen.append(message.queue_id))
    await until(lambda: len(owned(consumer)) == 4)
    consumer.pause(FIRST)
    fill(broker, 40)
    await broker.wake()
    await until(lambda: len(seen) == 30)
    await asyncio.sleep(0.1)
    assert set(seen) == {1, 2, 3}
    consumer.resume(TOPIC)
    await until(lambda: len(seen) == 40)


async def test_a_pause_holds_for_queues_that_come_later(broker: MemoryBroker, join: Join) -> None:
    seen: list[bytes] = []
    first = await join(lambda message: seen.append(message.body))
    first.pause(TOPIC)
    second = await join(lambda message: seen.append(message.body))
    await until(lambda: len(owned(first)) == len(owned(second)) == 2)
    await second.close()
    await until(lambda: len(owned(first)) == 4)
    fill(broker, 8)
    await broker.wake()
    await asyncio.sleep(0.2)
    assert seen == []
    first.resume(TOPIC)
    await until(lambda: len(seen) == 8)


async def test_retries_are_held_only_by_a_pause_of_everything(
    broker: MemoryBroker, join: Join
) -> None:
    seen: list[str] = []

    def listen(message: ReceivedMessage) -> None:
        seen.append(message.stored_topic)
        if message.reconsume_times < 2:
            raise ValueError

    consumer = await join(listen)
    fill(broker, 1)
    await broker.wake()
    await until(lambda: seen == [TOPIC, RETRY, RETRY])
    consumer.pause()
    fill(broker, 1, topic=RETRY)
    await broker.wake()
    await asyncio.sleep(0.2)
    assert len(seen) == 3
    with raises_code(Code.INVALID_PARAMETER):
        consumer.pause("other")
    with raises_code(Code.INVALID_PARAMETER):
        consumer.resume(MessageQueue("other", "a", 0))


# ---- concurrency ----


async def test_concurrency_grows_and_shrinks_in_tasks(broker: MemoryBroker, join: Join) -> None:
    fill(broker, 100)
    listener = Listener()
    consumer = await join(listener, concurrency=2)
    await until(lambda: listener.running == 2)
    consumer.set_concurrency(5)
    await until(lambda: listener.running == 5)
    consumer.set_concurrency(1)
    listener.gate.set()
    await until(lambda: len(listener.seen) == 5 or listener.running <= 1)
    listener.most = 0
    await until(lambda: len(listener.seen) == 100)
    assert listener.most <= 1
    with raises_code(Code.INVALID_PARAMETER):
        consumer.set_concurrency(0)


async def test_concurrency_grows_and_shrinks_in_threads(broker: MemoryBroker, join: Join) -> None:
    gate = threading.Event()
    seen: list[str] = []

    def listen(message: ReceivedMessage) -> None:
        seen.append(threading.current_thread().name)
        gate.wait(10)

    fill(broker, 100)
    consumer = await join(listen, concurrency=2)
    await until(lambda: len(seen) == 2)
    consumer.set_concurrency(6)
    await until(lambda: len(seen) == 6)
    consumer.set_concurrency(1)
    gate.set()
    await until(lambda: len(seen) == 100)
    assert consumer._membership is not None
    runner = consumer._membership.consumption._runner
    await until(lambda: len(runner.threads) == 1)
    consumer.set_concurrency(3)
    fill(broker, 10)
    await broker.wake()
    await until(lambda: len(seen) == 110)
    assert len(runner.threads) == 3


# ---- callbacks ----


async def test_callbacks_are_called_before_and_after(broker: MemoryBroker, join: Join) -> None:
    events: list[tuple[str, frozenset[MessageQueue]]] = []
    fill(broker, 4)
    at_first: list[int] = []

    def on_assigned(queues: frozenset[MessageQueue]) -> None:
        events.append(("assigned", queues))
        assert threading.current_thread() is not threading.main_thread()

    async def on_revoked(queues: frozenset[MessageQueue]) -> None:
        events.append(("revoked", queues))

    first = await join(
        lambda _: at_first.append(len(events)), on_assigned=on_assigned, on_revoked=on_revoked
    )
    await until(lambda: len(at_first) == 4)
    assert min(at_first) > 0, "no message comes before the call"
    everything = frozenset(MessageQueue(TOPIC, "a", n) for n in range(4))
    assert events == [("assigned", everything)], "nothing of the retry topic"
    second = await join(print)
    await until(lambda: len(owned(first)) == len(owned(second)) == 2 and len(events) == 2)
    assert events[1] == ("revoked", everything - first.queues)
    await first.close()
    assert {name for name, _ in events[2:]} == {"revoked"}
    assert (
        frozenset().union(*(queues for name, queues in events if name == "revoked")) == everything
    )


async def test_a_callback_that_fails_changes_nothing(broker: MemoryBroker, join: Join) -> None:
    def fail(_: Iterable[MessageQueue]) -> None:
        raise ValueError

    consumer = await join(print, on_assigned=fail, on_revoked=fail)
    await until(lambda: len(owned(consumer)) == 4)


# ---- common thresholds ----


@pytest.mark.parametrize(
    "limits", [{"pull_threshold_for_topic": 30}, {"pull_threshold_for_all": 30}]
)
async def test_queues_share_a_threshold(
    broker: MemoryBroker, join: Join, limits: dict[str, int]
) -> None:
    fill(broker, 400)
    listener = Listener()
    consumer = await join(listener, pull_batch_size=5, concurrency=1, **limits)

    def waiting() -> int:
        assert consumer._membership is not None
        return sum(map(len, consumer._membership.assignment.process_queues()))

    await until(lambda: waiting() > 30)
    await asyncio.sleep(0.2)
    assert waiting() <= 30 + 4 * 5, "what was asked for before it was full"
    listener.gate.set()
    await until(lambda: len(listener.seen) == 400)
    assert committed(broker) <= 400


def test_an_allowance_counts_what_is_held() -> None:
    class Waiting:
        def __init__(self, queue_offset: int) -> None:
            self.queue_offset, self.store_size = queue_offset, 10

    allowance = Allowance(3, 1_000)
    options = ConsumerOptions()
    queues = [ProcessQueue(FIRST, options, allowances=[allowance]) for _ in range(2)]
    held: Any = [Waiting(n) for n in range(4)]
    queues[0].put(held, 4)
    assert not queues[0].has_room() and not queues[1].has_room()
    queues[0].pause()
    assert queues[1].has_room(), "what is paused holds up nobody else"
    queues[0].resume()
    assert not queues[1].has_room()
    queues[0].remove(held[:1])
    assert queues[1].has_room()
    queues[0].put([], 9)
    queues[0].drop()
    queues[0].drop()
    queues[0].remove(held[1:])
    assert (allowance._messages, allowance._size_bytes) == (0, 0)


# ---- a topic of the type FIFO ----


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_concurrent_listener_on_a_fifo_topic_is_warned_of_once(
    broker: MemoryBroker,
    cluster: MemoryCluster,
    join: Join,
    caplog: pytest.LogCaptureFixture,
    orderly: bool,
) -> None:
    caplog.set_level(logging.WARNING)
    cluster.types[TOPIC] = "FIFO"
    consumer = await join(print, orderly=orderly)
    await until(lambda: len(owned(consumer)) == 4)
    consumer.subscribe(TOPIC, "blue")
    await asyncio.sleep(0.5)
    assert caplog.text.count("type FIFO") == (0 if orderly else 1)
