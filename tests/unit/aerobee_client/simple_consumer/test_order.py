"""Message groups in order, and receives that are repeated under their name."""

from __future__ import annotations

import asyncio

import pytest

from support.client.leasing import LEASE, NO_WAIT, TOPIC, Leasing, bodies, deliveries, seconds
from support.clock.virtual_loop import run_ready_tasks

FIFO = "fifo-flights"


@pytest.fixture
async def ordered(two: Leasing) -> Leasing:
    two.topic(FIFO, message_type="FIFO")
    return two


async def test_a_message_group_goes_on_when_what_is_leased_of_it_is_settled(
    ordered: Leasing,
) -> None:
    consumer = await ordered.started(FIFO, fifo=True)
    for number in range(6):
        await ordered.send(b"%d" % number, topic=FIFO, message_group="x" if number % 2 else "y")
    first = await consumer.receive(4, LEASE)
    assert bodies(first) == [b"0", b"1", b"2", b"3"]
    assert not await consumer.receive(32, LEASE, seconds(1))
    await consumer.ack([message for message in first if message.body in (b"0", b"2")])
    assert bodies(await consumer.receive(32, LEASE)) == [b"4"]
    again = await consumer.receive(32, LEASE, LEASE)
    assert deliveries(again) == [(b"1", 2), (b"3", 2), (b"5", 1)]


async def test_without_fifo_one_message_of_a_group_comes_at_a_time(ordered: Leasing) -> None:
    consumer = await ordered.started(FIFO)
    await ordered.send(b"1", b"2", b"3", topic=FIFO, message_group="x")
    for body in (b"1", b"2", b"3"):
        messages = await consumer.receive(32, LEASE)
        assert bodies(messages) == [body]
        await consumer.ack(messages)


async def test_a_waiting_receive_in_order_leases_nothing_in_vain(ordered: Leasing) -> None:
    consumer = await ordered.started(FIFO, fifo=True)
    waiting = asyncio.create_task(consumer.receive(32, LEASE, seconds(15)))
    await asyncio.sleep(3)
    await ordered.send(b"x", to="b", topic=FIFO, message_group="x")
    assert deliveries(await waiting) == [(b"x", 1)]
    waiting = asyncio.create_task(consumer.receive(32, LEASE, seconds(15)))
    await run_ready_tasks()
    waiting.cancel()
    await ordered.send(b"y", to="b", topic=FIFO, message_group="y")
    await asyncio.sleep(1)
    assert not ordered.transport.of("ChangeInvisibleDuration")
    assert deliveries(await consumer.receive(32, LEASE, NO_WAIT)) == [(b"y", 1)]


async def test_a_receive_whose_answer_was_lost_is_repeated_by_the_next(ordered: Leasing) -> None:
    consumer = await ordered.started(FIFO, fifo=True)
    await ordered.send(b"1", b"2", topic=FIFO, message_group="x")
    ordered.transport.lost["Pop"] = 1
    got = await consumer.receive(32, LEASE, seconds(5))
    assert deliveries(got) == [(b"1", 1), (b"2", 1)]
    await consumer.ack(got)
    assert not await consumer.receive(32, LEASE, seconds(30))


async def test_a_named_receive_brings_the_same_to_another_process(ordered: Leasing) -> None:
    first, second = [await ordered.started(FIFO, fifo=True) for _ in "12"]
    await ordered.send(b"1", to="b", topic=FIFO, message_group="x")
    assert bodies(await first.receive(32, LEASE, attempt_id="worker-1")) == [b"1"]
    await ordered.send(b"2", to="a", topic=FIFO, message_group="y")
    again = await second.receive(32, LEASE, attempt_id="worker-1")
    assert deliveries(again) == [(b"1", 1)]
    await second.ack(again)
    assert bodies(await second.receive(32, LEASE, attempt_id="worker-1")) == [b"2"]


async def test_a_consumer_in_order_of_a_group_that_is_in_none_is_warned_of(
    ordered: Leasing, caplog: pytest.LogCaptureFixture
) -> None:
    await ordered.started(FIFO, fifo=True)
    await ordered.started(TOPIC)
    assert not caplog.records
    await ordered.started(TOPIC, fifo=True)
    [record] = caplog.records
    assert TOPIC in record.getMessage()
