"""Requests whose records the log does not take: as if they had not happened."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aerobee_broker.errors import StoreReadError, StoreWriteError
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.store.messages import ReadResult, ReadStatus
from aerobee_wire import properties as props
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.status import Code
from support.broker.harness import BrokerHarness
from support.broker.pop_consumer import GROUP, TOPIC, PopConsumer, bodies, deliveries, lease_set
from support.broker.pop_restarts import copy_store, crash, failing_disk, restart, start_over


async def test_requests_that_the_disk_fails_are_rolled_back(consumer: PopConsumer) -> None:
    await consumer.put(b"1", b"2")
    (got,) = await consumer.pop(1)
    with failing_disk(consumer.harness):
        for request in (consumer.ack(got), consumer.change(got, 0), consumer.pop(1)):
            with pytest.raises(StoreWriteError):
                await request
            await asyncio.sleep(0)
    assert consumer.committed() == 0
    assert deliveries(await consumer.pop()) == [(b"2", 1)]
    assert await consumer.ack(got) == [Code.SUCCESS]


async def test_a_set_of_acks_is_rolled_back_as_a_whole(consumer: PopConsumer) -> None:
    await consumer.put(*(b"%d" % number for number in range(4)))
    got = await consumer.pop()
    await consumer.ack(got[1])
    with failing_disk(consumer.harness):
        with pytest.raises(StoreWriteError):
            await consumer.ack_sets(lease_set(*got[:3]))
        await asyncio.sleep(0)
    assert consumer.committed() == 0
    assert await consumer.ack_sets(lease_set(got[2])) == [Code.SUCCESS]
    await asyncio.sleep(10.1)
    assert deliveries(await consumer.pop()) == [(b"0", 2), (b"3", 2)]


async def test_acks_of_a_message_group_that_fail_together_are_rolled_back(
    harness: BrokerHarness, consumer: PopConsumer
) -> None:
    """The second of the group is acknowledged first, and settled by the other's acknowledgement."""
    await consumer.harness.group(GROUP, consume_order=ConsumeOrder.ON)
    for body in (b"1", b"2"):
        await consumer.put(body, properties={props.SHARDING_KEY: "group"})
    first, second = await consumer.pop(fifo=True)
    with failing_disk(harness):
        acks = asyncio.gather(consumer.ack(second), consumer.ack(first), return_exceptions=True)
        assert [type(error) for error in await acks] == [StoreWriteError] * 2
        await asyncio.sleep(0)
    assert await consumer.ack(first) == [Code.SUCCESS]
    assert consumer.committed() == 1
    assert await consumer.ack(second) == [Code.SUCCESS]
    assert consumer.committed() == 2


async def test_leases_of_a_failed_pop_are_rolled_back(
    harness: BrokerHarness, consumer: PopConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.tables.topics.put(TopicConfig(TOPIC, 2, 2))
    await consumer.put(b"1", b"2")
    await consumer.put(b"3", queue_id=1)
    read = harness.store.read

    def broken(topic: str, queue_id: int, *rest: Any, **named: Any) -> ReadResult:
        if queue_id == 1:
            raise StoreReadError(OSError("input/output error"))
        return read(topic, queue_id, *rest, **named)

    monkeypatch.setattr(harness.store, "read", broken)
    for _ in range(2):  # whichever queue comes first
        with pytest.raises(StoreReadError):
            await consumer.pop()
    monkeypatch.setattr(harness.store, "read", read)
    (got,) = await consumer.pop(1, queue_id=0)
    assert (got.body, got.attempt) == (b"1", 1)
    (other,) = await consumer.pop(1, queue_id=1)
    await consumer.change(other, 0)
    await asyncio.sleep(0.01)
    monkeypatch.setattr(harness.store, "read", broken)
    with pytest.raises(StoreReadError):
        await consumer.pop(1, queue_id=1)
    monkeypatch.setattr(harness.store, "read", read)
    assert deliveries(await consumer.pop(queue_id=1)) == [(b"3", 2)]
    await crash(consumer)
    assert bodies(await consumer.pop(queue_id=0)) == [b"2"]


async def test_lost_messages_that_cannot_be_journalled_keep_no_other(
    harness: BrokerHarness, consumer: PopConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await consumer.put(b"1", b"2", b"3")
    await consumer.pop(1, invisible_ms=1_000)
    await asyncio.sleep(1.1)
    read = harness.store.read

    def without_the_first(topic: str, queue_id: int, offset: int, **limits: Any) -> ReadResult:
        if offset:
            return read(topic, queue_id, offset, **limits)
        return ReadResult(ReadStatus.OFFSET_TOO_SMALL, 1, 1, 3)

    monkeypatch.setattr(harness.store, "read", without_the_first)
    harness.store.flush.block_appends(StoreWriteError("no space"))
    with pytest.raises(StoreWriteError):
        await consumer.pop(1)
    harness.store.flush.unblock_appends()
    assert deliveries(await consumer.pop(1)) == [(b"2", 1)]
    await crash(consumer)
    assert bodies(await consumer.pop()) == [b"3"]


async def test_rolled_back_leases_survive_the_loss_of_the_snapshot(consumer: PopConsumer) -> None:
    """The snapshot of a clean stop has their messages in flight, the journal has not."""
    await consumer.put(b"1", b"2", b"3")
    with failing_disk(consumer.harness), pytest.raises(StoreWriteError):
        await consumer.pop(2)
    await restart(consumer)
    assert bodies(await consumer.pop(1, invisible_ms=60_000)) == [b"1"]
    copy = copy_store(consumer.harness)
    for file in (copy / "store" / "config").glob("popLeases.json*"):
        file.unlink()
    await start_over(consumer, copy)
    assert bodies(await consumer.pop()) == [b"2", b"3"]


@pytest.mark.parametrize("how", ["cancelled", "too slow"])
async def test_a_lease_lost_by_the_log_unnoticed_loses_no_message(
    harness: BrokerHarness, consumer: PopConsumer, how: str
) -> None:
    await consumer.put(b"1", b"2", b"3", b"4")
    await consumer.ack(*await consumer.pop(1))
    harness.flusher.hold()
    with failing_disk(harness):
        popping = asyncio.create_task(consumer.pop(2, invisible_ms=60_000))
        await asyncio.sleep(0.001)
        if how == "cancelled":
            popping.cancel()
        else:
            await asyncio.sleep(harness.options.sync_flush_timeout / 1000 + 1)
        assert isinstance((await asyncio.gather(popping, return_exceptions=True))[0], BaseException)
        harness.flusher.let_go()
        await asyncio.sleep(0.01)
    await consumer.pop(1, invisible_ms=60_000)
    await crash(consumer)
    await asyncio.sleep(61)
    assert sorted(bodies(await consumer.pop())) == [b"2", b"3", b"4"]


@pytest.mark.parametrize("after", ["running", "restart", "crash"])
@pytest.mark.parametrize("how", ["cancelled", "too slow"])
async def test_a_dead_letter_lost_by_the_log_unnoticed_loses_no_message(
    harness: BrokerHarness, consumer: PopConsumer, how: str, after: str
) -> None:
    """The request has ended before the disk fails, so nothing waits for the outcome."""
    await harness.broker.topics.for_group(f"%DLQ%{GROUP}")
    await consumer.put(b"1", b"2")
    first, second = await consumer.pop(invisible_ms=60_000)
    harness.flusher.hold()
    with failing_disk(harness):
        requests: list[asyncio.Task[Any]] = [asyncio.create_task(consumer.dead_letter(first))]
        await asyncio.sleep(0.001)
        requests.append(asyncio.create_task(consumer.ack(second)))
        await asyncio.sleep(0.001)
        if how == "cancelled":
            for request in requests:
                request.cancel()
        else:
            await asyncio.sleep(harness.options.sync_flush_timeout / 1000 + 1)
        ended = await asyncio.gather(*requests, return_exceptions=True)
        assert all(isinstance(outcome, BaseException) for outcome in ended)
        harness.flusher.let_go()
        await asyncio.sleep(0.01)
    assert consumer.committed() == 0
    await harness.broker.save_tables()
    if after != "running":
        await (restart(consumer) if after == "restart" else crash(consumer))
    await asyncio.sleep(60)
    assert await consumer.harness.read(f"%DLQ%{GROUP}") == []
    assert deliveries(await consumer.pop()) == [(b"1", 2), (b"2", 2)]
