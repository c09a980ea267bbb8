"""Acknowledgements: what they settle, their repetition, and sets of them."""

from __future__ import annotations

import asyncio

from aerobee_broker.delivery.pop.lease_table import LeaseSet
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire.status import Code
from support.broker.harness import BrokerHarness
from support.broker.pop_consumer import GROUP, TOPIC, PopConsumer, bodies, lease_set


async def test_an_acknowledged_message_is_not_redelivered(consumer: PopConsumer) -> None:
    await consumer.put(b"1", b"2")
    got = await consumer.pop()
    assert await consumer.ack(*got) == [Code.SUCCESS, Code.SUCCESS]
    await asyncio.sleep(60)
    assert await consumer.pop() == []
    assert consumer.committed() == 2


async def test_the_committed_offset_is_the_first_unsettled_message(consumer: PopConsumer) -> None:
    await consumer.put(b"1", b"2", b"3")
    first, second, third = await consumer.pop()
    await consumer.ack(third)
    assert consumer.committed() == 0
    await consumer.ack(first)
    assert consumer.committed() == 1
    await consumer.ack(second)
    assert consumer.committed() == 3


async def test_an_expired_lease_cannot_be_acknowledged(consumer: PopConsumer) -> None:
    await consumer.put(b"1")
    (stale,) = await consumer.pop()
    await asyncio.sleep(10.1)
    assert await consumer.ack(stale) == [Code.INVALID_RECEIPT_HANDLE]
    (again,) = await consumer.pop()
    assert await consumer.ack(stale) == [Code.INVALID_RECEIPT_HANDLE]
    assert await consumer.ack(again) == [Code.SUCCESS]
    assert await consumer.ack(stale) == [Code.INVALID_RECEIPT_HANDLE]


async def test_an_ack_may_be_repeated_until_its_lease_expires(consumer: PopConsumer) -> None:
    await consumer.put(b"1")
    (got,) = await consumer.pop()
    assert await consumer.ack(got, got) == [Code.SUCCESS, Code.SUCCESS]
    assert await consumer.ack(got) == [Code.SUCCESS]
    await asyncio.sleep(10.1)
    assert await consumer.ack(got) == [Code.INVALID_RECEIPT_HANDLE]


async def test_an_invalid_lease_fails_alone(harness: BrokerHarness, consumer: PopConsumer) -> None:
    await consumer.put(b"1", b"2")
    first, second = await consumer.pop()
    other = PopConsumer(harness, group="other")
    await other.pop()
    foreign = (await PopConsumer(harness, group="third").pop())[0]
    assert await consumer.ack(first, second, foreign) == [Code.SUCCESS] * 3
    made_up = LeaseSet(GROUP, TOPIC, 0, 1, 2**60, [7])
    assert await consumer.ack_sets(made_up) == [Code.INVALID_RECEIPT_HANDLE]


async def test_the_leases_of_one_pop_are_acknowledged_as_a_set(consumer: PopConsumer) -> None:
    await consumer.put(*(b"%d" % number for number in range(6)))
    got = await consumer.pop()
    assert await consumer.ack_sets(lease_set(got[4], got[0], got[1])) == [Code.SUCCESS] * 3
    assert consumer.committed() == 2
    assert await consumer.ack_sets(lease_set(got[0], got[2])) == [Code.SUCCESS] * 2, "repeated"
    assert consumer.committed() == 3
    await asyncio.sleep(10.1)
    assert bodies(await consumer.pop()) == [b"3", b"5"]


async def test_sets_of_several_groups_share_one_flush(consumer: PopConsumer) -> None:
    consumer.harness.tables.topics.put(TopicConfig(TOPIC, 2, 2))
    await consumer.harness.group("other")
    for queue_id in (0, 1):
        await consumer.put(b"1", b"2", b"3", queue_id=queue_id)
    low, high = await consumer.pop(2, queue_id=0), await consumer.pop(2, queue_id=1)
    low += await consumer.pop(queue_id=0)
    other = PopConsumer(consumer.harness, group="other")
    theirs = await other.pop(queue_id=1)
    calls = consumer.harness.flusher.calls
    sets = lease_set(*low[:2]), lease_set(low[2]), lease_set(high[1]), lease_set(*theirs)
    assert await consumer.ack_sets(*sets) == [Code.SUCCESS] * 7
    assert consumer.harness.flusher.calls == calls + 1, "one wait for the disk"
    assert [consumer.committed(queue_id) for queue_id in (0, 1)] == [3, 0]
    assert other.committed(1) == 3


async def test_an_expired_lease_of_a_set_fails_alone(consumer: PopConsumer) -> None:
    await consumer.put(b"1", b"2", b"3", b"4")
    got = await consumer.pop()
    await consumer.change(got[1], 1_000)
    await consumer.change(got[2], 60_000)
    await asyncio.sleep(1.1)
    (again,) = await consumer.pop()
    whole = lease_set(*got)._replace(queue_offsets=[0, 1, 2, 3, 4, -1, 2**62])
    ok, over = Code.SUCCESS, Code.INVALID_RECEIPT_HANDLE
    assert await consumer.ack_sets(whole) == [ok, over, ok, ok, over, over, over]
    assert await consumer.ack_sets(whole._replace(consumer_group="nobody")) == [over] * 7
    assert await consumer.ack_sets(whole._replace(lease_id=1, queue_offsets=[1])) == [over]
    assert await consumer.ack_sets(lease_set(again)) == [ok]
    assert consumer.committed() == 4


async def test_an_expired_set_is_no_repetition(consumer: PopConsumer) -> None:
    await consumer.put(b"1", b"2")
    got = await consumer.pop()
    assert await consumer.ack(*got) == [Code.SUCCESS] * 2
    await asyncio.sleep(10.1)
    over = Code.INVALID_RECEIPT_HANDLE
    assert await consumer.ack_sets(lease_set(*got)) == [over] * 2
    assert await consumer.ack_sets(lease_set(*got)._replace(expires_ms=0)) == [over] * 2
    assert await consumer.ack_sets() == []
