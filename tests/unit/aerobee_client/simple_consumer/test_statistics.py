"""What a simple consumer counts: acknowledged, failed, and on lease."""

from __future__ import annotations

import asyncio

from aerobee_client.observing.statistics import ConsumerStatistics
from aerobee_client.simple_consumer import AsyncSimpleConsumer
from aerobee_wire.status import Code
from support.client.leasing import LEASE, NO_WAIT, Leasing, seconds
from support.codes import raises_code


def counts(consumer: AsyncSimpleConsumer) -> tuple[int, int, int, int]:
    found = consumer.statistics()
    return found.consumed, found.failed, found.sent_back, found.waiting


async def test_a_simple_consumer_counts_what_it_settles(leasing: Leasing) -> None:
    consumer = leasing.consumer()
    assert consumer.statistics() == ConsumerStatistics()
    async with consumer:
        await leasing.send(*(b"%d" % number for number in range(10)))
        messages = await consumer.receive(8, LEASE)
        assert counts(consumer) == (0, 0, 0, 8)
        whole = consumer.statistics().waiting_bytes
        assert whole == sum(message.store_size for message in messages)
        await asyncio.sleep(2)
        await consumer.ack(messages[:4])
        await consumer.ack(messages[0])  # again: not counted twice
        assert counts(consumer) == (4, 0, 0, 4)
        found = consumer.statistics()
        assert 2_000 <= found.average_ms < 2_100 and found.waiting_bytes == whole // 2
        assert found.consumed_per_second > 0
        await consumer.dead_letter(messages[4], "poison")
        await consumer.change_invisible_duration(messages[5], NO_WAIT, counted=False)
        await consumer.change_invisible_duration(messages[6], None)
        assert counts(consumer) == (4, 2, 2, 1)
        await consumer.ack(messages[7].receipt_handle)
        assert counts(consumer) == (5, 2, 2, 0)
    assert counts(consumer) == (5, 2, 2, 0), "after close"


async def test_leases_that_end_wait_no_longer(leasing: Leasing) -> None:
    consumer = await leasing.started()
    await leasing.send(b"1", b"2", b"3")
    late, renewed, changed = await consumer.receive(8, LEASE)
    with consumer.renewing(renewed):
        await consumer.change_invisible_duration(changed, seconds(60))
        await asyncio.sleep(LEASE.total_seconds() * 2)
        assert consumer.statistics().waiting == 3, "of a pop whose last lease has not ended"
        with raises_code(Code.INVALID_RECEIPT_HANDLE):
            await consumer.ack(late)
        assert counts(consumer) == (0, 1, 0, 2)
    await asyncio.sleep(60)
    assert counts(consumer) == (0, 1, 0, 0)


async def test_receives_that_fail_are_counted(two: Leasing) -> None:
    consumer = await two.started()
    two.transport.away.add("b")
    await two.send(b"x")
    [message] = await consumer.receive(8, LEASE, seconds(5))
    assert await consumer.receive(8, LEASE, seconds(5)) == []
    found = consumer.statistics()
    assert found.failed_requests > 0 and found.waiting == 1
    two.transport.away.clear()
    await consumer.ack(message)
    assert counts(consumer) == (1, 0, 0, 0)
