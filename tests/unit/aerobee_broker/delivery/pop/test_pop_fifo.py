"""Pops in order: when order holds, the order within a message group, and what expiry, acks and dead
letters do to it."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire import properties as props
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.status import Code
from support.broker.harness import BrokerHarness
from support.broker.pop_consumer import (
    GROUP,
    TOPIC,
    PopConsumer,
    attempts,
    bodies,
    deliveries,
    lease_set,
)
from support.observing.series import series_value


@pytest.fixture(autouse=True)
async def fifo_topic(consumer: PopConsumer) -> None:
    topic_of_type(consumer, "FIFO")


def topic_of_type(consumer: PopConsumer, message_type: str) -> None:
    attributes = {"message.type": message_type}
    consumer.harness.tables.topics.put(TopicConfig(TOPIC, 1, 1, attributes=attributes))


async def send(consumer: PopConsumer, *several: bytes) -> None:
    """The first letter is the message group."""
    for body in several:
        await consumer.put(body, properties={props.SHARDING_KEY: body[:1].decode()})


@pytest.mark.parametrize(
    ("order", "message_type", "ordered"),
    [
        (ConsumeOrder.AUTO, "FIFO", True),
        (ConsumeOrder.AUTO, "NORMAL", False),
        (ConsumeOrder.AUTO, "MIXED", False),
        (ConsumeOrder.ON, "FIFO", True),
        (ConsumeOrder.ON, "NORMAL", True),
        (ConsumeOrder.OFF, "FIFO", False),
    ],
)
@pytest.mark.parametrize("fifo", [False, True])
async def test_group_and_topic_decide_on_the_order_whoever_asks(
    consumer: PopConsumer, *, order: ConsumeOrder, message_type: str, ordered: bool, fifo: bool
) -> None:
    await consumer.harness.group(GROUP, consume_order=order)
    topic_of_type(consumer, message_type)
    await send(consumer, b"a1", b"a2")
    assert bodies(await consumer.pop(1, fifo=fifo)) == [b"a1"]
    assert bodies(await consumer.pop(1, fifo=fifo)) == ([] if ordered else [b"a2"])


async def test_a_consumer_that_does_not_keep_order_gets_one_message_of_each_message_group(
    consumer: PopConsumer,
) -> None:
    await send(consumer, b"a1", b"a2", b"b1", b"b2", b"b3", b"a3")
    a1, b1 = await consumer.pop()
    assert bodies([a1, b1]) == [b"a1", b"b1"]
    assert await consumer.pop() == []
    await consumer.ack(b1)
    [b2] = await consumer.pop()
    assert b2.body == b"b2"
    await asyncio.sleep(10.1)
    assert deliveries(await consumer.pop()) == [(b"a1", 2), (b"b2", 2)]
    assert await consumer.pop(fifo=True) == []


async def test_a_batch_that_comes_again_to_such_a_consumer_comes_message_by_message(
    consumer: PopConsumer,
) -> None:
    await send(consumer, b"a1", b"a2", b"a3")
    assert bodies(await consumer.pop(2, fifo=True)) == [b"a1", b"a2"]
    await asyncio.sleep(10.1)
    for expected in ((b"a1", 2), (b"a2", 2), (b"a3", 1)):
        got = await consumer.pop()
        assert deliveries(got) == [expected]
        await consumer.ack(*got)


async def test_a_message_group_continues_once_its_batch_is_settled(consumer: PopConsumer) -> None:
    await send(consumer, b"a1", b"a2", b"a3")
    first, second = await consumer.pop(2, fifo=True)
    assert bodies([first, second]) == [b"a1", b"a2"]
    assert await consumer.pop(fifo=True) == []
    await consumer.ack(first)
    assert await consumer.pop(fifo=True) == []
    await consumer.ack(second)
    assert bodies(await consumer.pop(fifo=True)) == [b"a3"]


async def test_a_set_of_acks_settles_message_groups_from_the_front(consumer: PopConsumer) -> None:
    await send(consumer, b"a1", b"b1", b"a2", b"b2", b"a3")
    got = {message.body: message for message in await consumer.pop(4, fifo=True)}
    ok = Code.SUCCESS
    assert await consumer.ack_sets(lease_set(got[b"a2"], got[b"b1"], got[b"b2"])) == [ok] * 3
    assert consumer.committed() == 0, "a2 is settled after a1"
    assert await consumer.ack_sets(lease_set(got[b"a2"])) == [ok], "repeated"
    assert await consumer.pop(fifo=True) == []
    assert await consumer.ack_sets(lease_set(got[b"a1"])) == [ok]
    assert bodies(await consumer.pop(fifo=True)) == [b"a3"]


async def test_other_message_groups_are_not_blocked(consumer: PopConsumer) -> None:
    await send(consumer, b"a1", b"a2", b"b1", b"a3", b"b2")
    assert bodies(await consumer.pop(1, fifo=True)) == [b"a1"]
    assert bodies(await consumer.pop(1, fifo=True)) == [b"b1"]
    assert await consumer.pop(fifo=True) == []


async def test_an_expired_batch_is_redelivered_from_its_first_unacked(
    consumer: PopConsumer,
) -> None:
    await send(consumer, b"a1", b"a2", b"a3", b"a4")
    got = await consumer.pop(3, fifo=True)
    await consumer.ack(*got[1:])
    await asyncio.sleep(9.9)
    assert await consumer.pop(3, fifo=True) == []
    await asyncio.sleep(0.2)
    again = await consumer.pop(3, fifo=True)
    assert deliveries(again) == [(b"a1", 2), (b"a2", 2), (b"a3", 2)]
    assert consumer.committed() == 0
    assert await consumer.ack(*again) == [Code.SUCCESS] * 3
    assert consumer.committed() == 3


async def test_acks_behind_an_expired_message_are_void(consumer: PopConsumer) -> None:
    await send(consumer, b"a1", b"a2", b"a3")
    got = await consumer.pop(3, fifo=True)
    await consumer.ack(*got[1:])
    await asyncio.sleep(10.1)
    await consumer.ack(*await consumer.pop(1, fifo=True))
    assert bodies(await consumer.pop(fifo=True)) == [b"a2", b"a3"]


async def test_the_acknowledged_front_is_settled_at_once(consumer: PopConsumer) -> None:
    await send(consumer, b"a1", b"a2", b"a3")
    got = await consumer.pop(fifo=True)
    await consumer.ack(got[0])
    await asyncio.sleep(10.1)
    assert bodies(await consumer.pop(fifo=True)) == [b"a2", b"a3"]
    assert consumer.committed() == 1


async def test_a_dead_letter_unblocks_its_message_group(consumer: PopConsumer) -> None:
    await consumer.harness.group(GROUP, retry_max_times=1)
    await send(consumer, b"a1", b"a2")
    assert attempts(await consumer.pop(1, fifo=True)) == [1]
    assert attempts(await consumer.pop(1, fifo=True, poll_ms=30_000)) == [2]
    assert bodies(await consumer.pop(1, fifo=True, poll_ms=30_000)) == [b"a2"]
    assert await consumer.harness.bodies(f"%DLQ%{GROUP}") == [b"a1"]


async def test_a_longer_duration_of_one_message_blocks_the_others(consumer: PopConsumer) -> None:
    await send(consumer, b"a1", b"a2")
    got = await consumer.pop(fifo=True)
    await consumer.change(got[0], 30_000)
    await asyncio.sleep(20)
    assert await consumer.pop(fifo=True) == []
    await asyncio.sleep(10.1)
    assert bodies(await consumer.pop(fifo=True)) == [b"a1", b"a2"]


async def test_a_repeated_attempt_gets_the_same_leases(consumer: PopConsumer) -> None:
    await send(consumer, b"a1", b"a2", b"b1")
    first = await consumer.pop(2, fifo=True, attempt_id="x")
    assert await consumer.pop(2, fifo=True, attempt_id="x") == first
    assert bodies(await consumer.pop(2, fifo=True, attempt_id="y")) == [b"b1"]
    await consumer.ack(first[0])
    assert bodies(await consumer.pop(2, fifo=True, attempt_id="x")) == [b"a2"]
    await consumer.ack(first[1])
    assert await consumer.pop(2, fifo=True, attempt_id="x") == []


async def test_an_ack_wakes_a_pop_parked_for_the_message_group(consumer: PopConsumer) -> None:
    await send(consumer, b"a1", b"a2")
    (got,) = await consumer.pop(1, fifo=True)
    waiting = asyncio.create_task(consumer.pop(fifo=True, poll_ms=5_000))
    await asyncio.sleep(1)
    await consumer.ack(got)
    assert bodies(await waiting) == [b"a2"]
    assert asyncio.get_running_loop().time() < 2


async def test_what_does_not_fit_into_an_answer_wakes_the_next_pop(consumer: PopConsumer) -> None:
    first, others = [b"a", b"b"], [b"a" * 1_000, b"b" * 1_000]
    await send(consumer, *first, *others)
    got = await consumer.pop()
    assert bodies(got) == first
    waiting = [asyncio.create_task(consumer.pop(max_bytes=1_500, poll_ms=20_000)) for _ in others]
    await asyncio.sleep(1)
    assert await consumer.ack_sets(lease_set(*got)) == [Code.SUCCESS] * 2
    popped = await asyncio.gather(*waiting)
    assert sorted(body for answer in popped for body in bodies(answer)) == others
    assert asyncio.get_running_loop().time() < 2


async def test_messages_without_message_group_are_one_per_queue(consumer: PopConsumer) -> None:
    await consumer.put(b"1", b"2")
    assert bodies(await consumer.pop(1, fifo=True)) == [b"1"]
    assert await consumer.pop(fifo=True) == []


async def test_a_gauge_counts_blocked_message_groups(consumer: PopConsumer) -> None:
    await send(consumer, b"a1", b"a2", b"b1")
    got = await consumer.pop(1, fifo=True)
    await consumer.pop(1, fifo=True)

    def gauge() -> object:
        consumer.harness.broker.gauges.measure(6)
        return series_value(consumer.harness.metrics.registry, "aerobee_pop_blocked_message_groups")

    assert gauge() == 1
    await consumer.ack(*got)
    assert gauge() == 0


async def test_a_group_that_turns_to_fifo_keeps_its_leases(consumer: PopConsumer) -> None:
    topic_of_type(consumer, "NORMAL")
    await send(consumer, b"a1", b"a2", b"b1", b"a3")
    got = await consumer.pop(1)
    topic_of_type(consumer, "FIFO")
    assert bodies(await consumer.pop(fifo=True)) == [b"b1"]
    await consumer.ack(*got)
    assert bodies(await consumer.pop(fifo=True)) == [b"a2", b"a3"]
    topic_of_type(consumer, "NORMAL")
    assert await consumer.pop() == []


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_repeated_attempt_waits_until_the_first_is_durable(
    harness: BrokerHarness, consumer: PopConsumer, cancelled: bool
) -> None:
    await send(consumer, b"a1")
    harness.flusher.hold()
    first = asyncio.create_task(consumer.pop(fifo=True, attempt_id="x"))
    await asyncio.sleep(0.001)
    again = asyncio.create_task(consumer.pop(fifo=True, attempt_id="x"))
    await asyncio.sleep(0.001)
    assert not first.done() and not again.done()
    if cancelled:
        first.cancel()
    await asyncio.sleep(0.001)
    harness.flusher.let_go()
    (got,) = await again
    assert (got.body, got.attempt) == (b"a1", 1)
    assert cancelled or await first == [got]
    assert await consumer.ack(got) == [Code.SUCCESS]
    await asyncio.gather(first, return_exceptions=True)
