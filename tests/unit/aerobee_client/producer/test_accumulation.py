"""Single sends that travel together: when they leave, and what each of them is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from aerobee_client.errors import ClientClosed
from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.producer import AsyncProducer
from aerobee_client.sending.accumulator import WINDOW
from aerobee_wire.status import Code, MqError
from support.client.answers import Gate
from support.client.memory import MemoryBroker, MemoryCluster
from support.client.producing import TOPIC, messages, producer
from support.clock.polling import until
from support.codes import raises_code


@pytest.fixture
async def sender(cluster: MemoryCluster) -> AsyncIterator[AsyncProducer]:
    async with producer(cluster) as sender:
        await sender.queues(TOPIC)
        yield sender


def start(sender: AsyncProducer, count: int, **arguments: Any) -> list[asyncio.Future[Any]]:
    return [sender.send_async(message, **arguments) for message in messages(count)]


async def test_a_lone_send_waits_for_nothing(cluster: MemoryCluster, sender: AsyncProducer) -> None:
    for message in messages(3):
        await sender.send(message)
    assert len(cluster.requests("Send")) == 3


async def test_sends_of_one_turn_share_a_request(
    cluster: MemoryCluster, sender: AsyncProducer, broker: MemoryBroker
) -> None:
    results = await asyncio.gather(*(sender.send(message) for message in messages(100)))
    assert len(cluster.requests("Send")) == 1
    stored = broker.messages(TOPIC)
    assert [record.body for record in stored] == [b"%d" % number for number in range(100)]
    assert [record.unique_message_id for record in stored] == [r.message_id for r in results]
    assert [result.queue_offset for result in results] == list(range(100))


async def test_what_comes_during_a_request_leaves_with_its_answer(
    cluster: MemoryCluster, sender: AsyncProducer
) -> None:
    gate = Gate(cluster)
    first = start(sender, 1)
    await gate.come(1)
    later = start(sender, 20)
    await asyncio.sleep(0)
    assert gate.sizes == [1]
    gate.held[0].set_result(None)
    await asyncio.gather(*first)
    await gate.come(2)
    gate.open()
    await asyncio.gather(*later)
    assert gate.sizes == [1, 20]


async def test_full_batches_do_not_wait_but_for_the_window(
    cluster: MemoryCluster, sender: AsyncProducer
) -> None:
    gate = Gate(cluster)
    sending = start(sender, 512 * (WINDOW + 1) + 7)
    await gate.come(WINDOW)
    assert gate.sizes == [512] * WINDOW
    gate.open()
    await asyncio.gather(*sending)
    sizes = [len(request.batch.body_sizes) for request in cluster.requests("Send")]
    assert sizes == [512] * (WINDOW + 1) + [7]


async def test_a_batch_is_full_at_240_kib(cluster: MemoryCluster, sender: AsyncProducer) -> None:
    big = [Message(TOPIC, b"x" * 100_000) for _ in range(5)]
    await asyncio.gather(*(sender.send(message) for message in big))
    assert [len(r.batch.body_sizes) for r in cluster.requests("Send")] == [2, 2, 1]


async def test_each_request_takes_the_next_queue_unless_one_is_chosen(
    cluster: MemoryCluster, sender: AsyncProducer
) -> None:
    for _ in range(8):
        await asyncio.gather(*(sender.send(message) for message in messages(2)))
    queues = [request.batch.queue_id for request in cluster.requests("Send")]
    assert sorted(queues) == [0, 0, 1, 1, 2, 2, 3, 3]
    chosen = MessageQueue(TOPIC, "a", 3)
    results = await asyncio.gather(*(sender.send(m, queue=chosen) for m in messages(5)))
    assert {result.queue for result in results} == {chosen}


async def test_a_chosen_queue_has_one_request_in_flight(
    cluster: MemoryCluster, sender: AsyncProducer, broker: MemoryBroker
) -> None:
    gate = Gate(cluster)
    sending = start(sender, 1_100, queue=MessageQueue(TOPIC, "a", 0))
    await gate.come(1)
    await asyncio.sleep(0)
    assert len(gate.held) == 1
    gate.open()
    await asyncio.gather(*sending)
    bodies = [record.body for record in broker.messages(TOPIC)]
    assert bodies == [b"%d" % number for number in range(1_100)]


async def test_the_end_of_another_request_does_not_free_a_chosen_queue(
    cluster: MemoryCluster, sender: AsyncProducer
) -> None:
    gate = Gate(cluster)
    sending = start(sender, 512)
    await gate.come(1)
    (first,) = cluster.requests("Send")
    chosen = MessageQueue(TOPIC, "a", first.batch.queue_id)
    sending += start(sender, 600, queue=chosen)  # a full batch of 512, and the rest behind it
    await gate.come(2)
    gate.held[0].set_result(None)
    await asyncio.gather(*sending[:512])
    await asyncio.sleep(0)
    assert gate.sizes == [512, 512], "the rest waits for the answer of its own queue"
    gate.open()
    await asyncio.gather(*sending)


async def test_delayed_messages_accumulate_apart(
    cluster: MemoryCluster, sender: AsyncProducer
) -> None:
    mixed = [*messages(3), *messages(2, delay_level=3)]
    await asyncio.gather(*(sender.send(message) for message in mixed))
    shapes = [(len(r.batch.body_sizes), len(r.messages)) for r in cluster.requests("Send")]
    assert sorted(shapes) == [(0, 2), (3, 0)]


async def test_an_idle_broker_is_not_left_idle(broker: MemoryBroker, other: MemoryBroker) -> None:
    cluster = MemoryCluster(broker, other)
    async with producer(cluster) as sender:
        await sender.queues(TOPIC)
        gate = Gate(cluster)
        sending = start(sender, 1)
        await gate.come(1)
        sending += start(sender, 1)
        await gate.come(2)
        assert set(gate.addresses) == {broker.address, other.address}
        gate.open()
        await asyncio.gather(*sending)


async def test_a_route_is_asked_for_once(cluster: MemoryCluster, broker: MemoryBroker) -> None:
    async with producer(cluster) as sender:
        await asyncio.gather(*start(sender, 1_000))
        asked = [request.topic for request in cluster.requests("GetTopicRoute")]
        assert asked.count(TOPIC) == 1
        assert len(broker.messages(TOPIC)) == 1_000
        lost = [sender.send_async(Message("nowhere", b"x")) for _ in range(1_000)]
        outcomes = await asyncio.gather(*lost, return_exceptions=True)
        assert {getattr(outcome, "code", None) for outcome in outcomes} == {Code.TOPIC_NOT_EXIST}
        asked = [request.topic for request in cluster.requests("GetTopicRoute")]
        assert asked.count("nowhere") == 1
        await sender.send(Message(TOPIC, b"there is room"))


# ---- failures ----


@pytest.mark.parametrize("bad", [0, 499, 999])
async def test_one_bad_message_fails_only_its_caller(
    cluster: MemoryCluster, sender: AsyncProducer, broker: MemoryBroker, bad: int
) -> None:
    async def refuse(address: str, request: Any) -> Any:
        if b"tags\x01bad".upper() in request.batch.properties.upper():
            raise MqError(Code.MESSAGE_ILLEGAL, "not that one")
        return await cluster._Send(broker, request)

    cluster.answers["Send"] = refuse
    sent = [Message(TOPIC, b"x", tag="bad" if n == bad else "good") for n in range(1_000)]
    outcomes = await asyncio.gather(*map(sender.send, sent), return_exceptions=True)
    failed = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, BaseException)]
    assert failed == [bad]
    assert len(broker.messages(TOPIC)) == 999


async def test_a_refusal_of_the_broker_is_everybodys(
    cluster: MemoryCluster, sender: AsyncProducer
) -> None:
    cluster.answers["Send"] = MqError(Code.DISK_FULL, "no room", retryable=False)
    outcomes = await asyncio.gather(*map(sender.send, messages(9)), return_exceptions=True)
    assert {getattr(outcome, "code", None) for outcome in outcomes} == {Code.DISK_FULL}
    assert len(cluster.requests("Send")) == 1


async def test_a_batch_goes_to_another_broker_whole(
    broker: MemoryBroker, other: MemoryBroker
) -> None:
    cluster = MemoryCluster(broker, other)
    async with producer(cluster) as sender:
        await sender.queues(TOPIC)
        cluster.down = {broker.address}
        for _ in range(3):
            results = await asyncio.gather(*map(sender.send, messages(20)))
            assert {result.queue.broker_name for result in results} == {"b"}
    assert len(other.messages(TOPIC)) == 60


async def test_a_cancelled_send_that_has_not_left_is_not_sent(
    cluster: MemoryCluster, sender: AsyncProducer, broker: MemoryBroker
) -> None:
    gate = Gate(cluster)
    first = start(sender, 1)
    await gate.come(1)
    later = start(sender, 3)
    later[1].cancel()
    gate.open()
    await asyncio.gather(*first, later[0], later[2])
    assert sorted(record.body for record in broker.messages(TOPIC)) == [b"0", b"0", b"2"]


async def test_everybody_is_answered_at_his_deadline(
    cluster: MemoryCluster, broker: MemoryBroker
) -> None:
    """The broker is frozen. What had no room is told so, and room comes back."""
    async with producer(cluster, max_pending_messages=100) as sender:
        await sender.queues(TOPIC)
        gate = Gate(cluster)
        short, long = timedelta(milliseconds=50), timedelta(milliseconds=150)
        sending = [*start(sender, 50, timeout=long), *start(sender, 50, timeout=short)]
        with raises_code(Code.FLOW_CONTROL):
            await sender.send(Message(TOPIC, b"x"), block=False)
        with raises_code(Code.FLOW_CONTROL):
            await sender.send_async(Message(TOPIC, b"x"))
        with raises_code(Code.FLOW_CONTROL):
            await sender.send(Message(TOPIC, b"x"), timeout=short)
        outcomes = await asyncio.gather(*sending, return_exceptions=True)
        codes = {getattr(outcome, "code", None) for outcome in outcomes}
        assert codes == {Code.REQUEST_TIMEOUT}
        gate.open()
        assert (await sender.send(Message(TOPIC, b"room again"))).queue.broker_name == "a"
    assert b"room again" in [record.body for record in broker.messages(TOPIC)]


@pytest.mark.parametrize("accumulate", [True, False])
async def test_every_way_of_sending_takes_room(cluster: MemoryCluster, accumulate: bool) -> None:
    """Also what travels alone, and batches. Who finds none is told so until his deadline."""
    long, short = timedelta(seconds=60), timedelta(milliseconds=50)
    settings = {"accumulate": accumulate, "max_pending_messages": 4, "send_timeout": short}
    async with producer(cluster, **settings) as sender:
        await sender.queues(TOPIC)
        gate = Gate(cluster)
        waiting: list[asyncio.Future[Any]] = [
            sender.send_async(Message(TOPIC, b"1"), timeout=long),
            asyncio.ensure_future(sender.send(Message(TOPIC, b"2"), timeout=long)),
            asyncio.ensure_future(sender.send_batch(messages(2), timeout=long)),
        ]
        await until(lambda: sender.statistics().waiting == 4)
        one = Message(TOPIC, b"more")
        for refused in (
            sender.send(one, block=False, timeout=long),
            sender.send(one),
            sender.send_async(one, timeout=long),
            sender.send_oneway(one),
            sender.send_batch(messages(9)),
        ):
            with raises_code(Code.FLOW_CONTROL):
                await refused
        cancelled = asyncio.ensure_future(sender.send(one, timeout=long))
        waiting.append(asyncio.ensure_future(sender.send_batch(messages(9), timeout=long)))
        await asyncio.sleep(0)
        cancelled.cancel()
        gate.open()
        await asyncio.gather(*waiting)
        await sender.send_oneway(one, accumulate=False)
    assert sender.statistics().waiting == 0
    stored = [
        record.body for broker in cluster.brokers.values() for record in broker.messages(TOPIC)
    ]
    assert len(stored) == 14


@pytest.mark.parametrize(
    "settings",
    [
        {"properties": {"note": "x" * 900}},
        {"keys": ["k" * 500, "l" * 400]},
        {"tag": "t" * 900},
    ],
    ids=["properties", "keys", "tag"],
)
async def test_properties_take_room_too(cluster: MemoryCluster, settings: dict[str, Any]) -> None:
    """A message of one byte, however it is sent, and also one that an interceptor made larger."""
    large = Message(TOPIC, b"x", **settings)
    async with producer(cluster, max_pending_bytes=2_500) as sender:
        await sender.queues(TOPIC)
        gate = Gate(cluster)
        sending: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(sender.send(large)),
            asyncio.ensure_future(sender.send_batch([large])),
        ]
        await gate.come(2)
        with raises_code(Code.FLOW_CONTROL):
            await sender.send(Message(TOPIC, b"y").with_properties({"n": "z" * 900}), block=False)
        with raises_code(Code.FLOW_CONTROL):
            await sender.send_async(large)
        with raises_code(Code.FLOW_CONTROL):
            await sender.send(Message(TOPIC, b"y", **settings, message_group="g"), block=False)
        await sender.send_oneway(Message(TOPIC, b"y"))
        gate.open()
        await asyncio.gather(*sending)
    assert sender.statistics().waiting_bytes == 0


async def test_a_send_waits_for_room(cluster: MemoryCluster) -> None:
    async with producer(cluster, max_pending_bytes=10) as sender:
        await sender.queues(TOPIC)
        gate = Gate(cluster)
        sending = [asyncio.create_task(sender.send(Message(TOPIC, b"12345678"))) for _ in range(3)]
        cancelled = asyncio.create_task(sender.send(Message(TOPIC, b"12345678")))
        await gate.come(1)
        cancelled.cancel()
        assert gate.sizes == [1]
        gate.open()
        await asyncio.gather(*sending)
    assert [len(r.batch.body_sizes) for r in cluster.requests("Send")] == [1, 1, 1]


# ---- life ----


async def test_close_drains(cluster: MemoryCluster, broker: MemoryBroker) -> None:
    """Also sends whose route is not known yet, and one-way ones."""
    async with producer(cluster) as sender:
        sending = start(sender, 700)
        await sender.send_oneway(Message(TOPIC, b"one way"))
    assert all(future.done() and not future.exception() for future in sending)
    assert len(broker.messages(TOPIC)) == 701


async def test_a_cancelled_close_fails_what_waits(
    cluster: MemoryCluster, sender: AsyncProducer
) -> None:
    gate = Gate(cluster)
    sending = start(sender, 1)
    await gate.come(1)
    sending += start(sender, 3)
    closing = asyncio.create_task(sender.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    outcomes = await asyncio.gather(*sending, return_exceptions=True)
    assert all(isinstance(outcome, Exception) for outcome in outcomes)


async def test_a_cancelled_close_fails_what_is_about_to_leave(sender: AsyncProducer) -> None:
    """Their turn is not over: nothing is in flight, and no task has begun."""
    sending = start(sender, 3)
    singles = sender._singles
    assert singles is not None
    await singles.abort()
    outcomes = await asyncio.gather(*sending, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ClientClosed] * 3
    assert sender.statistics().waiting == 0


async def test_sends_with_other_timeouts_have_deadlines_of_their_own(
    cluster: MemoryCluster, sender: AsyncProducer
) -> None:
    """One timer is set for all of them, again when a send has less time."""
    gate = Gate(cluster)
    long, short, middle = (
        sender.send_async(message, timeout=timedelta(milliseconds=timeout_ms))
        for message, timeout_ms in zip(messages(3), (60_000, 20, 60), strict=True)
    )
    for expired in (short, middle):
        with raises_code(Code.REQUEST_TIMEOUT):
            await expired
    assert not long.done()
    gate.open()
    assert (await long).queue.topic == TOPIC


async def test_without_accumulation_each_send_is_a_request(cluster: MemoryCluster) -> None:
    async with producer(cluster, accumulate=False) as sender:
        await asyncio.gather(*map(sender.send, messages(5)))
        assert len(cluster.requests("Send")) == 5
        await asyncio.gather(*(sender.send(m, accumulate=True) for m in messages(5)))
        assert len(cluster.requests("Send")) == 6
