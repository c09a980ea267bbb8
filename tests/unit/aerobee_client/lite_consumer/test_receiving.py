"""Receives and settlements of lite topics: in order, one batch of each at a time, nothing leased in
vain."""

from __future__ import annotations

import asyncio

from aerobee_client.message import ReceivedMessage
from aerobee_wire.status import Code
from aerobee_wire.topics import dead_letter_topic
from support.client.leasing import LEASE, NO_WAIT, bodies, deliveries, seconds
from support.codes import raises_code
from support.lite.broker_client import GROUP
from support.lite.classic_client import LiteLeasing

NUMBERS = [b"%d" % number for number in range(40)]


async def test_each_lite_topic_comes_in_order_one_batch_at_a_time(leasing: LiteLeasing) -> None:
    """L4 by the classic client."""
    consumer = await leasing.lite_started("x", "y")
    await leasing.send_lite("x", *NUMBERS)
    await leasing.send_lite("y", *NUMBERS)
    got: dict[str, list[bytes]] = {"x": [], "y": []}
    while messages := await consumer.receive(20, LEASE, NO_WAIT):
        for message in messages:
            got[message.lite_topic].append(message.body)
        held = {message.lite_topic for message in messages}
        others = await consumer.receive(32, LEASE, NO_WAIT)
        assert held.isdisjoint(message.lite_topic for message in others)
        for message in others:
            got[message.lite_topic].append(message.body)
        await consumer.ack(messages + others)
    assert got == {"x": NUMBERS, "y": NUMBERS}


async def test_a_waiting_receive_wakes_for_a_message_on_any_broker(two: LiteLeasing) -> None:
    consumer, loop = await two.lite_started("x"), asyncio.get_running_loop()
    for broker in ("a", "b"):
        waiting = asyncio.create_task(consumer.receive(32, LEASE, seconds(15)))
        await asyncio.sleep(3)
        await two.send_lite("x", b"of " + broker.encode(), to=broker)
        began_s = loop.time()
        messages = await waiting
        assert bodies(messages) == [b"of " + broker.encode()]
        assert loop.time() - began_s < 0.1
        await consumer.ack(messages)


async def test_many_receives_wait_and_none_divides_a_batch(leasing: LiteLeasing) -> None:
    """Receives of different sizes: each message goes to one of them."""
    names = [f"s{number}" for number in range(12)]
    consumer = await leasing.lite_started(*names)
    waiting = [
        asyncio.create_task(consumer.receive(size, LEASE, seconds(5))) for size in (1, 2, 8, 32, 32)
    ]
    await asyncio.sleep(1)
    for name in names:
        await leasing.send_lite(name, b"0", b"1", b"2")
    got = [message for each in await asyncio.gather(*waiting) for message in each]
    for name in names:
        mine = [message.body for message in got if message.lite_topic == name]
        assert mine == [b"0", b"1", b"2"][: len(mine)]
    await consumer.ack(got)
    while more := await consumer.receive(32, LEASE, seconds(1)):
        await consumer.ack(more)
        got += more
    assert len(got) == 3 * len(names) and {each.delivery_attempt for each in got} == {1}


async def test_receive_that_is_cancelled_in_any_turn_leaves_nothing_on_lease(
    two: LiteLeasing,
) -> None:
    for turns in range(0, 30, 2):
        async with two.lite_consumer() as consumer:
            await consumer.subscribe_lite("x")
            await two.send_lite("x", *NUMBERS[:4])
            receiving = asyncio.create_task(consumer.receive(32, LEASE, seconds(5)))
            for _ in range(turns):
                await asyncio.sleep(0)
            receiving.cancel()
            [outcome] = await asyncio.gather(receiving, return_exceptions=True)
            if not isinstance(outcome, list):
                await asyncio.sleep(0.01)
                outcome = await consumer.receive(32, LEASE, NO_WAIT)
            assert deliveries(outcome) == [(body, 1) for body in NUMBERS[:4]], turns
            await consumer.ack(outcome)


async def test_what_a_caller_did_not_get_is_visible_at_once(leasing: LiteLeasing) -> None:
    """As after an interrupt of the plain class."""
    consumer = await leasing.lite_started("x", "y")
    for name in ("x", "y"):
        await leasing.send_lite(name, b"0", b"1")
    consumer._take_back(await consumer.receive(32, LEASE))
    await asyncio.sleep(0.01)
    again = await consumer.receive(32, LEASE, NO_WAIT)
    assert sorted(deliveries(again)) == [(b"0", 1), (b"0", 1), (b"1", 1), (b"1", 1)]


async def test_redelivery_begins_with_the_first_that_is_not_acknowledged(
    leasing: LiteLeasing,
) -> None:
    """L10 by the classic client."""
    consumer = await leasing.lite_started("x", "y")
    await leasing.send_lite("x", b"x0", b"x1")
    held = await consumer.receive(32, LEASE)
    await leasing.send_lite("x", b"x2")
    await leasing.send_lite("y", b"y0")
    [other] = await consumer.receive(32, LEASE)
    assert other.lite_topic == "y"
    await consumer.ack([held[0], other])
    assert not await consumer.receive(32, LEASE, seconds(9))
    again = await consumer.receive(32, LEASE, seconds(3))
    assert deliveries(again) == [(b"x1", 2), (b"x2", 1)]
    assert again[0].message_id == held[1].message_id
    with raises_code(Code.INVALID_RECEIPT_HANDLE):
        await consumer.ack(held[1])
    await consumer.ack(again[0].receipt_handle)


async def test_messages_are_given_back_suspended_and_renewed(leasing: LiteLeasing) -> None:
    """L12 by the classic client; a suspension is none of the attempts."""
    consumer = await leasing.lite_started("x")
    await leasing.send_lite("x", b"x0", b"x1")
    held = await consumer.receive(32, LEASE)
    await consumer.change_invisible_duration(held, seconds(2), counted=False)
    assert not await consumer.receive(32, LEASE, seconds(1))
    held = await consumer.receive(32, LEASE, seconds(2))
    assert deliveries(held) == [(b"x0", 1), (b"x1", 1)]
    await consumer.change_invisible_duration(held, seconds(0))
    held = await consumer.receive(32, LEASE, renew=True)
    assert deliveries(held) == [(b"x0", 2), (b"x1", 2)]
    await asyncio.sleep(4 * LEASE.total_seconds())
    await consumer.ack(held)
    assert not await consumer.receive(32, LEASE, seconds(11))
    assert consumer.statistics().consumed == 2


async def test_a_dead_letter_names_its_lite_topic_and_the_next_goes_on(
    leasing: LiteLeasing,
) -> None:
    """L11 by the classic client."""
    consumer = await leasing.lite_started("x")
    await leasing.send_lite("x", b"x0", b"x1")
    first, second = await consumer.receive(32, LEASE)
    await consumer.dead_letter(first, ValueError("bad"))
    await consumer.ack(second)
    [record] = await leasing.brokers["a"].read(dead_letter_topic(GROUP))
    letter = ReceivedMessage(record)
    assert (letter.body, letter.lite_topic) == (b"x0", "x")
    assert letter.failure_reason == "ValueError"


async def test_what_a_receive_leased_whose_answer_was_lost_comes_again(
    leasing: LiteLeasing,
) -> None:
    """Uncounted, and before its lease ends."""
    consumer = await leasing.lite_started("x")
    await leasing.send_lite("x", b"x0")
    leasing.transport.lost["LitePop"] = 1
    messages = await consumer.receive(32, LEASE, seconds(5))
    assert deliveries(messages) == [(b"x0", 1)]
    await consumer.ack(messages)
    assert not await consumer.receive(32, LEASE, seconds(12))


async def test_a_cancelled_receive_leaves_its_messages_to_others(leasing: LiteLeasing) -> None:
    consumer = await leasing.lite_started("x")
    waiting = asyncio.create_task(consumer.receive(32, LEASE, seconds(15)))
    await asyncio.sleep(1)
    waiting.cancel()
    await leasing.send_lite("x", b"x0")
    await asyncio.sleep(0.5)
    assert deliveries(await consumer.receive(32, LEASE, NO_WAIT)) == [(b"x0", 1)]


async def test_what_is_acknowledged_while_its_broker_restarts_is_repeated(
    leasing: LiteLeasing,
) -> None:
    consumer = await leasing.lite_started("x")
    await leasing.send_lite("x", b"x0")
    messages = await consumer.receive(32, LEASE)
    leasing.transport.away.add("a")
    acknowledging = asyncio.create_task(consumer.ack(messages))
    await asyncio.sleep(2)
    leasing.transport.away.clear()
    await acknowledging
    assert not await consumer.receive(32, LEASE, seconds(11))
