"""A client whose clock is an hour away from its broker's, by which leases are judged."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aerobee_client.simple_consumer import AsyncSimpleConsumer
from aerobee_wire.status import Code
from aerobee_wire.topics import dead_letter_topic
from support.client.leasing import GROUP, LEASE, NAMESRV, TOPIC, Leasing, deliveries, seconds
from support.clock.virtual_loop import LoopClock
from support.codes import raises_code

HOUR_MS = 3_600_000


async def skewed(leasing: Leasing, ahead_ms: int, **settings: Any) -> AsyncSimpleConsumer:
    clock = LoopClock()
    clock.jump(ahead_ms)
    consumer = AsyncSimpleConsumer(
        GROUP, namesrv=NAMESRV, transport=leasing.transport, clock=clock, **settings
    )
    consumer.subscribe(TOPIC)
    return await leasing.stack.enter_async_context(consumer)


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, 0, HOUR_MS])
async def test_repeated_attempt_brings_its_messages_at_once(
    leasing: Leasing, ahead_ms: int
) -> None:
    leasing.topic("ordered", message_type="FIFO")
    consumer = await skewed(leasing, ahead_ms, fifo=True)
    consumer.subscribe("ordered")
    await leasing.send(b"x", topic="ordered", message_group="m")
    loop = asyncio.get_running_loop()
    first = await consumer.receive(32, LEASE, topic="ordered", attempt_id="mine")
    await asyncio.sleep(4)
    began_s = loop.time()
    again = await consumer.receive(32, LEASE, seconds(1), topic="ordered", attempt_id="mine")
    assert deliveries(again) == deliveries(first) == [(b"x", 1)]
    assert loop.time() == began_s
    assert again[0].until_ms == round((began_s + 6) * 1_000), "what is left of the lease"


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, 0, HOUR_MS])
async def test_dead_letter_whose_answer_was_lost_is_done(leasing: Leasing, ahead_ms: int) -> None:
    consumer = await skewed(leasing, ahead_ms)
    await leasing.send(b"x")
    messages = await consumer.receive(32, LEASE)
    leasing.transport.lost["DeadLetter"] = 1
    await consumer.dead_letter(messages, "bad")
    assert leasing.brokers["a"].store.max_offset(dead_letter_topic(GROUP), 0) == 1


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, 0, HOUR_MS])
async def test_dead_letter_of_a_lease_that_ended_is_not_taken_for_done(
    leasing: Leasing, ahead_ms: int
) -> None:
    """Its first answer is lost too."""
    consumer = await skewed(leasing, ahead_ms)
    await leasing.send(b"x")
    [message] = await consumer.receive(32, LEASE)
    await asyncio.sleep(LEASE.total_seconds() + 1)
    leasing.transport.lost["DeadLetter"] = 1
    with raises_code(Code.INVALID_RECEIPT_HANDLE):
        await consumer.dead_letter(message, "bad")
