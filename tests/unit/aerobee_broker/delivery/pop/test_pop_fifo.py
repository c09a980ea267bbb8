"""Pop by message group: order, and what a failure does to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire import properties as props
from aerobee_wire.status import Code
from support.broker.harness import Parts
from support.broker.pop_consumer import GROUP, TOPIC, PopConsumer, bodies, lease_set


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    parts = await Parts.begin(tmp_path)
    parts.tables.topics.put(TopicConfig(TOPIC, 1, 1))
    await parts.group(GROUP)
    yield parts
    await parts.end()


@pytest.fixture
def consumer(parts: Parts) -> PopConsumer:
    return PopConsumer(parts)


async def send(parts: Parts, *several: bytes) -> None:
    """The first letter is the message group."""
    for body in several:
        await parts.send(TOPIC, body, properties={props.SHARDING_KEY: body[:1].decode()})


async def test_a_message_group_goes_on_once_the_batch_is_settled(
    parts: Parts, consumer: PopConsumer
) -> None:
    await send(parts, b"a1", b"a2", b"a3")
    one, two = await consumer.pop(2, fifo=True)
    assert (one.body, two.body) == (b"a1", b"a2")
    assert await consumer.pop(fifo=True) == []
    await consumer.ack(one)
    assert await consumer.pop(fifo=True) == []
    await consumer.ack(two)
    assert bodies(await consumer.pop(fifo=True)) == [b"a3"]


async def test_a_set_settles_message_groups_from_their_fronts_on(
    parts: Parts, consumer: PopConsumer
) -> None:
    await send(parts, b"a1", b"b1", b"a2", b"b2", b"a3")
    got = {one.body: one for one in await consumer.pop(4, fifo=True)}
    ok = Code.SUCCESS
    assert await consumer.ack_sets(lease_set(got[b"a2"], got[b"b1"], got[b"b2"])) == [ok] * 3
    assert consumer.committed() == 0, "a2 waits for a1"
    assert await consumer.ack_sets(lease_set(got[b"a2"])) == [ok], "repeated"
    assert await consumer.pop(fifo=True) == []
    assert await consumer.ack_sets(lease_set(got[b"a1"])) == [ok]
    assert bodies(await consumer.pop(fifo=True)) == [b"a3"]


async def test_another_message_group_is_not_held_up(parts: Parts, consumer: PopConsumer) -> None:
    await send(parts, b"a1", b"a2", b"b1", b"a3", b"b2")
    assert bodies(await consumer.pop(1, fifo=True)) == [b"a1"]
    assert bodies(await consumer.pop(1, fifo=True)) == [b"b1"]
    assert await consumer.pop(fifo=True) == []


async def test_a_batch_with_a_hole_comes_again_from_the_hole_on(
    parts: Parts, consumer: PopConsumer
) -> None:
    await send(parts, b"a1", b"a2", b"a3", b"a4")
    got = await consumer.pop(3, fifo=True)
    await consumer.ack(*got[1:])
    await asyncio.sleep(9.9)
    assert await consumer.pop(3, fifo=True) == []
    await asyncio.sleep(0.2)
    again = await consumer.pop(3, fifo=True)
    assert [(one.body, one.attempt) for one in again] == [(b"a1", 2), (b"a2", 2), (b"a3", 2)]
    assert consumer.committed() == 0
    assert await consumer.ack(*again) == [Code.SUCCESS] * 3
    assert consumer.committed() == 3


async def test_what_was_acknowledged_behind_a_hole_comes_again_though_the_hole_is_filled(
    parts: Parts, consumer: PopConsumer
) -> None:
    await send(parts, b"a1", b"a2", b"a3")
    got = await consumer.pop(3, fifo=True)
    await consumer.ack(*got[1:])
    await asyncio.sleep(10.1)
    await consumer.ack(*await consumer.pop(1, fifo=True))
    assert bodies(await consumer.pop(fifo=True)) == [b"a2", b"a3"]


async def test_an_acknowledged_front_is_settled_at_once(
    parts: Parts, consumer: PopConsumer
) -> None:
    await send(parts, b"a1", b"a2", b"a3")
    got = await consumer.pop(fifo=True)
    await consumer.ack(got[0])
    await asyncio.sleep(10.1)
    assert bodies(await consumer.pop(fifo=True)) == [b"a2", b"a3"]
    assert consumer.committed() == 1


async def test_a_dead_letter_lets_the_next_message_proceed(
    parts: Parts, consumer: PopConsumer
) -> None:
    await parts.group(GROUP, retry_max_times=1)
    await send(parts, b"a1", b"a2")
    assert [one.attempt for one in await consumer.pop(1, fifo=True)] == [1]
    assert [one.attempt for one in await consumer.pop(1, fifo=True, poll_ms=30_000)] == [2]
    assert bodies(await consumer.pop(1, fifo=True, poll_ms=30_000)) == [b"a2"]
    assert [one.body for one in await parts.read(f"%DLQ%{GROUP}")] == [b"a1"]


async def test_a_longer_duration_of_the_first_holds_the_others_back(
    parts: Parts, consumer: PopConsumer
) -> None:
    await send(parts, b"a1", b"a2")
    got = await consumer.pop(fifo=True)
    await consumer.change(got[0], 30_000)
    await asyncio.sleep(20)
    assert await consumer.pop(fifo=True) == []
    await asyncio.sleep(10.1)
    assert bodies(await consumer.pop(fifo=True)) == [b"a1", b"a2"]


async def test_the_same_attempt_gets_the_same_messages_under_the_same_leases(
    parts: Parts, consumer: PopConsumer
) -> None:
    await send(parts, b"a1", b"a2", b"b1")
    first = await consumer.pop(2, fifo=True, attempt_id="x")
    assert await consumer.pop(2, fifo=True, attempt_id="x") == first
    assert bodies(await consumer.pop(2, fifo=True, attempt_id="y")) == [b"b1"]
    await consumer.ack(first[0])
    assert bodies(await consumer.pop(2, fifo=True, attempt_id="x")) == [b"a2"]
    await consumer.ack(first[1])
    assert await consumer.pop(2, fifo=True, attempt_id="x") == []


async def test_a_settlement_wakes_who_waits_for_the_message_group(
    parts: Parts, consumer: PopConsumer
) -> None:
    await send(parts, b"a1", b"a2")
    (got,) = await consumer.pop(1, fifo=True)
    waiting = asyncio.create_task(consumer.pop(fifo=True, poll_ms=5_000))
    await asyncio.sleep(1)
    await consumer.ack(got)
    assert bodies(await waiting) == [b"a2"]
    assert asyncio.get_running_loop().time() < 2


async def test_messages_without_a_group_keep_the_order_of_their_queue(
    parts: Parts, consumer: PopConsumer
) -> None:
    await parts.send(TOPIC, b"1", b"2")
    assert bodies(await consumer.pop(1, fifo=True)) == [b"1"]
    assert await consumer.pop(fifo=True) == []


async def test_blocked_message_groups_are_measured(parts: Parts, consumer: PopConsumer) -> None:
    await send(parts, b"a1", b"a2", b"b1")
    got = await consumer.pop(1, fifo=True)
    await consumer.pop(1, fifo=True)

    def gauge() -> float:
        parts.broker.administration.measure(6)
        return float(parts.meters._gauges["pop_blocked_message_groups"]._value.get())

    assert gauge() == 1
    await consumer.ack(*got)
    assert gauge() == 0


async def test_a_group_that_becomes_orderly_keeps_what_is_on_lease(
    parts: Parts, consumer: PopConsumer
) -> None:
    await send(parts, b"a1", b"a2", b"b1", b"a3")
    got = await consumer.pop(1)
    assert bodies(await consumer.pop(fifo=True)) == [b"b1"]
    await consumer.ack(*got)
    assert bodies(await consumer.pop(fifo=True)) == [b"a2", b"a3"]
    assert await consumer.pop() == []


@pytest.mark.parametrize("cancelled", [False, True])
async def test_an_attempt_that_is_repeated_while_the_disk_works_gets_what_is_durable(
    parts: Parts, consumer: PopConsumer, cancelled: bool
) -> None:
    await send(parts, b"a1")
    parts.flusher.hold()
    first = asyncio.create_task(consumer.pop(fifo=True, attempt_id="x"))
    await asyncio.sleep(0.001)
    again = asyncio.create_task(consumer.pop(fifo=True, attempt_id="x"))
    await asyncio.sleep(0.001)
    assert not first.done() and not again.done()
    if cancelled:
        first.cancel()
    await asyncio.sleep(0.001)
    parts.flusher.let_go()
    (got,) = await again
    assert (got.body, got.attempt) == (b"a1", 1)
    assert cancelled or await first == [got]
    assert await consumer.ack(got) == [Code.SUCCESS]
    await asyncio.gather(first, return_exceptions=True)
