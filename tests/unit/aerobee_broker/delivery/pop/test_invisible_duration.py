"""Invisible durations: expiry, and changes by the consumer or the retry policy."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_broker.delivery.pop.invisible_duration import InvisibleChange
from aerobee_broker.delivery.pop.lease_table import LeaseName
from aerobee_broker.errors import InvalidParameter
from aerobee_wire.status import Code
from support.broker.pop_consumer import GROUP, TOPIC, PopConsumer, attempts, bodies


async def test_a_message_is_redelivered_once_its_lease_expires(consumer: PopConsumer) -> None:
    await consumer.put(b"1")
    await consumer.pop(invisible_ms=10_000)
    await asyncio.sleep(9.9)
    assert await consumer.pop() == []
    await asyncio.sleep(0.2)
    (again,) = await consumer.pop()
    assert (again.body, again.attempt) == (b"1", 2)


async def test_setting_the_time_of_day_expires_no_lease(consumer: PopConsumer) -> None:
    await consumer.put(b"1")
    await consumer.pop(invisible_ms=10_000)
    consumer.harness.clock.jump(3_600_000)  # type: ignore[attr-defined]
    await asyncio.sleep(5)
    assert await consumer.pop() == []


async def test_each_message_of_a_pop_expires_by_itself(consumer: PopConsumer) -> None:
    await consumer.put(*(b"%d" % number for number in range(5)))
    got = await consumer.pop()
    await consumer.ack(got[3])
    await consumer.change(got[0], 5_000)
    await consumer.change(got[1], 20_000)
    await asyncio.sleep(5.1)
    assert bodies(await consumer.pop(invisible_ms=60_000)) == [b"0"]
    await asyncio.sleep(5)
    assert bodies(await consumer.pop(invisible_ms=60_000)) == [b"2", b"4"]
    await asyncio.sleep(10)
    assert bodies(await consumer.pop(invisible_ms=60_000)) == [b"1"]


async def test_a_lease_may_be_changed_before_it_is_durable(consumer: PopConsumer) -> None:
    await consumer.put(b"1", b"2", b"3")
    consumer.harness.flusher.hold()
    popping = asyncio.create_task(consumer.pop())
    await asyncio.sleep(0.001)
    [queue] = consumer.harness.broker.consuming.leases.table.queues()
    lease = LeaseName(GROUP, TOPIC, 0, 0, queue.in_flight[0].lease_id)
    change = InvisibleChange(lease, 60_000)
    changing = asyncio.create_task(
        consumer.harness.broker.consuming.leases.durations.change([change])
    )
    await asyncio.sleep(0.001)
    consumer.harness.flusher.let_go()
    assert bodies(await popping) == [b"1", b"2", b"3"]
    assert [change.error for change in await changing] == [None]
    await asyncio.sleep(10.1)
    assert bodies(await consumer.pop()) == [b"2", b"3"]


async def test_a_changed_duration_counts_from_the_change(consumer: PopConsumer) -> None:
    await consumer.put(b"1")
    (got,) = await consumer.pop(invisible_ms=10_000)
    await asyncio.sleep(8)
    changed = await consumer.change(got, 20_000)
    assert (changed.error, changed.invisible_duration_ms) == (None, 20_000)
    await asyncio.sleep(19.9)
    assert await consumer.pop() == []
    assert await consumer.ack(got) == [Code.SUCCESS]


async def test_a_duration_of_0_makes_the_message_visible(consumer: PopConsumer) -> None:
    await consumer.put(b"1")
    (got,) = await consumer.pop()
    waiting = asyncio.create_task(consumer.pop(poll_ms=20_000))
    await asyncio.sleep(1)
    await consumer.change(got, 0)
    (again,) = await waiting
    assert again.attempt == 2
    assert (await consumer.change(got, 0)).error is not None


async def test_an_uncounted_delivery_keeps_the_attempt_number(consumer: PopConsumer) -> None:
    await consumer.put(b"1")
    (got,) = await consumer.pop()
    await consumer.change(got, 0, uncounted=True)
    await asyncio.sleep(0.01)
    assert attempts(await consumer.pop()) == [1]


async def test_a_change_may_use_the_retry_delays_of_the_group(consumer: PopConsumer) -> None:
    await consumer.harness.group(GROUP, retry_delays_ms=(3_000, 7_000))
    await consumer.put(b"1")
    waits = []
    for _ in range(3):
        (got,) = await consumer.pop(poll_ms=30_000)
        waits.append((await consumer.change(got, None)).invisible_duration_ms)
    assert waits == [3_000, 7_000, 7_000]


async def test_unless_changed_leaves_a_lease_changed_by_others(consumer: PopConsumer) -> None:
    await consumer.put(b"1")
    (got,) = await consumer.pop()
    renewed = await consumer.change(got, 20_000, unless_changed=True)
    assert renewed.error is None
    assert (await consumer.change(got, 30_000, unless_changed=True)).error is not None
    later = consumer.renewed(got, renewed)
    assert (await consumer.change(later, 1_000)).error is None  # given back by another caller
    assert (await consumer.change(later, 60_000, unless_changed=True)).error is not None
    await asyncio.sleep(1.1)
    assert attempts(await consumer.pop()) == [2]


async def test_durations_out_of_range_are_refused(consumer: PopConsumer) -> None:
    await consumer.put(b"1")
    (got,) = await consumer.pop()
    for wrong in (-1, 43_200_001):
        error = (await consumer.change(got, wrong)).error
        assert error is not None
        assert error.code is Code.INVALID_PARAMETER
    with pytest.raises(InvalidParameter):
        await consumer.pop(invisible_ms=0)
