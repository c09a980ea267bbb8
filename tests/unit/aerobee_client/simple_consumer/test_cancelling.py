"""Receives that are cancelled, and consumers that close, at any moment: the group gets at once what
their callers did not, and the delivery does not count."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_client.leasing.leased_message import LeasedMessage
from support.client.leasing import LEASE, NO_WAIT, TOPIC, Leasing, deliveries, seconds
from support.clock.virtual_loop import run_ready_tasks

BODIES = [b"%d" % number for number in range(4)]


async def turns_of_the_loop(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("ending", ["cancel", "close"])
@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("waits", [False, True])
async def test_receive_that_ends_in_any_turn_leaves_nothing_on_lease(
    two: Leasing, fifo: bool, waits: bool, ending: str
) -> None:
    """`waits`: the messages come while it waits for them."""
    for turns in range(0, 36, 2):
        async with two.consumer(fifo=fifo) as consumer:
            sending = asyncio.create_task(_send(two, 0.5 if waits else 0))
            await asyncio.sleep(0 if waits else 0.1)
            receiving = asyncio.create_task(consumer.receive(32, LEASE, seconds(5)))
            await asyncio.sleep(0.5 if waits else 0)
            await turns_of_the_loop(turns)
            if ending == "close":
                await consumer.close()
            receiving.cancel()
            [outcome] = await asyncio.gather(receiving, return_exceptions=True)
            got = deliveries(outcome) if isinstance(outcome, list) else []
            await sending
            await asyncio.sleep(0.01)
        async with two.consumer(fifo=fifo) as other:
            if isinstance(outcome, list):
                await other.ack(outcome)
            while messages := await other.receive(32, LEASE, seconds(0.1)):
                await other.ack(messages)
                got += deliveries(messages)
        assert sorted(got) == [(body, 1) for body in BODIES], turns


async def _send(leasing: Leasing, after_s: float) -> None:
    await asyncio.sleep(after_s)
    await leasing.send(*BODIES)


async def test_what_a_caller_did_not_get_is_visible_at_once_and_not_renewed(
    leasing: Leasing,
) -> None:
    """As after an interrupt of the plain class."""
    consumer, other = await leasing.started(), await leasing.started()
    await leasing.send(*BODIES)
    messages = await consumer.receive(32, LEASE, renew=True)
    assert consumer.statistics().waiting == 4
    consumer._take_back(messages)
    await run_ready_tasks()
    assert consumer.statistics().waiting == 0
    again: list[LeasedMessage] = await other.receive(32, LEASE, NO_WAIT)
    assert deliveries(again) == [(body, 1) for body in BODIES]
    await asyncio.sleep(LEASE.total_seconds() + 1)
    assert [one.delivery_attempt for one in await other.receive(32, LEASE, NO_WAIT)] == [2] * 4


async def test_close_waits_for_what_is_given_back(leasing: Leasing) -> None:
    async with leasing.consumer() as consumer:
        await leasing.send(*BODIES)
        consumer._take_back(await consumer.receive(32, LEASE))
        await consumer.close()
        assert leasing.transport.count("ChangeInvisibleDuration") == 1
    async with leasing.consumer() as other:
        assert len(await other.receive(32, LEASE, NO_WAIT, topic=TOPIC)) == 4
