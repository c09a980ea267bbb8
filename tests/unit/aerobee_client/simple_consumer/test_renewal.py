"""Leases are renewed while a handler runs, and no longer."""

from __future__ import annotations

import asyncio

from aerobee_client.errors import Code
from aerobee_cluster.leases import MAX_RENEWED_MS
from support.client.leasing import LEASE, NO_WAIT, Leasing, deliveries, seconds
from support.codes import raises_code


async def test_a_lease_is_renewed_while_the_block_runs(leasing: Leasing) -> None:
    consumer = await leasing.started()
    await leasing.send(b"1", b"2")
    messages = await consumer.receive(32, LEASE)
    with consumer.renewing(messages) as renewal:
        assert not await consumer.receive(32, LEASE, seconds(62))
        await consumer.ack(messages[0])
    assert not renewal.lost
    changes = [len(request.changes) for request in leasing.transport.of("ChangeInvisibleDuration")]
    assert changes == [2] * 12, "both in one request, every five seconds"
    assert deliveries(await consumer.receive(32, LEASE, seconds(11))) == [(b"2", 2)]


async def test_a_received_message_may_be_renewed_until_it_is_settled(leasing: Leasing) -> None:
    consumer = await leasing.started()
    await leasing.send(b"1", b"2")
    first, second = await consumer.receive(32, LEASE, renew=True)
    await asyncio.sleep(60)
    await consumer.ack(first)
    await consumer.change_invisible_duration(second, seconds(3))
    renewals = leasing.transport.count("ChangeInvisibleDuration")
    assert deliveries(await consumer.receive(32, LEASE, seconds(4))) == [(b"2", 2)]
    assert leasing.transport.count("ChangeInvisibleDuration") == renewals


async def test_a_lease_that_is_nearly_over_is_renewed_at_once(leasing: Leasing) -> None:
    consumer = await leasing.started()
    await leasing.send(b"x")
    [message] = await consumer.receive(32, LEASE)
    await asyncio.sleep(9.5)
    with consumer.renewing(message):
        assert not await consumer.receive(32, LEASE, seconds(20))
        await consumer.ack(message)


async def test_a_settlement_that_fails_leaves_the_renewal(leasing: Leasing) -> None:
    consumer = await leasing.started(request_timeout=seconds(1))
    await leasing.send(b"x")
    [message] = await consumer.receive(32, LEASE, renew=True)
    leasing.transport.away.add("a")
    with raises_code(Code.BROKER_UNREACHABLE):
        await consumer.ack(message)
    leasing.transport.away.clear()
    await asyncio.sleep(60)
    await consumer.ack(message)


async def test_a_renewal_is_tried_again_until_the_lease_ends(leasing: Leasing) -> None:
    consumer = await leasing.started(request_timeout=seconds(1))
    await leasing.send(b"x")
    [message] = await consumer.receive(32, LEASE)
    with consumer.renewing(message) as renewal:
        leasing.transport.away.add("a")
        await asyncio.sleep(9)
        leasing.transport.away.clear()
        await asyncio.sleep(20)
        assert not renewal.lost
        leasing.transport.away.add("a")
        await asyncio.sleep(20)
        assert renewal.lost == [message]
        leasing.transport.away.clear()
    assert deliveries(await consumer.receive(32, LEASE)) == [(b"x", 2)]


async def test_a_message_that_somebody_else_settles_is_lost(leasing: Leasing) -> None:
    consumer, other = await leasing.started(), await leasing.started()
    await leasing.send(b"x")
    [message] = await consumer.receive(32, LEASE)
    with consumer.renewing(message) as renewal:
        await other.ack(message.receipt_handle)
        await asyncio.sleep(10)
        assert renewal.lost == [message]


async def test_no_lease_is_renewed_for_more_than_three_hours(leasing: Leasing) -> None:
    consumer = await leasing.started()
    await leasing.send(b"x")
    await consumer.receive(32, seconds(600), renew=True)
    await asyncio.sleep(MAX_RENEWED_MS / 1_000 - 1)
    assert not await consumer.receive(32, LEASE, NO_WAIT)
    await asyncio.sleep(602)
    assert deliveries(await consumer.receive(32, LEASE, NO_WAIT)) == [(b"x", 2)]


async def test_a_settled_message_makes_nobody_look_at_all_leases(leasing: Leasing) -> None:
    """Otherwise each acknowledgement would take time for each message that is renewed."""
    consumer = await leasing.started()
    await leasing.send(*(b"%d" % number for number in range(32)))
    messages = await consumer.receive(32, LEASE, renew=True)
    renewal = consumer._running().settlements._renewal
    await asyncio.sleep(1)
    for message in messages[:30]:
        await consumer.ack(message)
        assert not renewal._sooner.is_set()
    await asyncio.sleep(60)
    await consumer.ack(messages[30:])
