"""Pop: which messages it leases, in which order, and its long poll. Notifications: told of what a
pop would find, and of nothing that another pop takes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.delivery.pop import in_flight, selector
from aerobee_broker.delivery.pop.selector import PopRequest
from aerobee_broker.filter.filter import compile_filter
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.status import Code
from support.broker.harness import Begin, BrokerHarness
from support.broker.pop_consumer import (
    GROUP,
    TOPIC,
    PopConsumer,
    attempts,
    bodies,
    deliveries,
    lease_set,
    pop_request,
)
from support.codes import raises_code


async def test_a_leased_message_is_given_to_no_other_pop(consumer: PopConsumer) -> None:
    await consumer.put(b"1", b"2", b"3")
    first, second = await consumer.pop(2), await consumer.pop(2)
    assert (bodies(first), bodies(second)) == ([b"1", b"2"], [b"3"])
    assert attempts(first) == [1, 1]
    assert await consumer.pop() == []


async def test_groups_lease_independently(harness: BrokerHarness, consumer: PopConsumer) -> None:
    await consumer.put(b"1")
    assert (
        bodies(await consumer.pop()) == bodies(await PopConsumer(harness, "other").pop()) == [b"1"]
    )


async def test_messages_that_do_not_match_are_settled(consumer: PopConsumer) -> None:
    for size in range(6):
        await consumer.put(b"%d" % size, properties={"size": str(size)})
    wanted = compile_filter("SQL92", "size > 3")
    got = await consumer.pop(wanted=wanted)
    assert bodies(got) == [b"4", b"5"]
    await consumer.ack(*got)
    assert consumer.committed() == 6


async def test_a_pop_keeps_to_max_bytes(consumer: PopConsumer) -> None:
    await consumer.put(b"a" * 5_000, b"b" * 5_000, b"c" * 5_000)
    assert len(await consumer.pop(max_bytes=100)) == 1
    assert len(await consumer.pop(max_bytes=11_000)) == 2


async def test_a_pop_takes_from_all_queues_of_a_topic(consumer: PopConsumer) -> None:
    consumer.harness.tables.topics.put(TopicConfig(TOPIC, 4, 4))
    for queue_id in range(4):
        await consumer.put(b"%d" % queue_id, queue_id=queue_id)
    got = bodies(await consumer.pop(3)) + bodies(await consumer.pop(3))
    assert sorted(got) == [b"0", b"1", b"2", b"3"]


async def test_of_a_priority_topic_the_highest_queue_goes_first(consumer: PopConsumer) -> None:
    consumer.harness.tables.topics.put(
        TopicConfig(TOPIC, 3, 3, attributes={"message.type": "PRIORITY"})
    )
    for queue_id, body in ((0, b"low"), (2, b"high"), (1, b"middle"), (2, b"high too")):
        await consumer.put(body, queue_id=queue_id)
    first = await consumer.pop(1, invisible_ms=10_000)
    assert bodies(first) == [b"high"]
    await consumer.pop(1)  # the other one of the highest queue
    assert bodies(await consumer.pop(1)) == [b"middle"]
    # A redelivery goes before messages of lower queues, and after those of higher ones.
    await consumer.put(b"high at last", queue_id=2)
    await consumer.change(first[0], 0)
    await asyncio.sleep(0.01)
    assert bodies(await consumer.pop()) == [b"high", b"high at last", b"low"]


async def test_a_lower_priority_waits_for_the_scan_of_a_higher_one(
    harness: BrokerHarness, consumer: PopConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selector, "SCAN_ROUNDS", 1)
    harness.tables.topics.put(TopicConfig(TOPIC, 2, 2, attributes={"message.type": "PRIORITY"}))
    await consumer.put(*(b"other" for _ in range(900)), queue_id=1)
    await consumer.put(b"high", queue_id=1, properties={"color": "red"})
    await consumer.put(b"low", queue_id=0, properties={"color": "red"})
    wanted = compile_filter("SQL92", "color = 'red'")
    assert bodies(await consumer.pop(1, wanted=wanted)) == [b"high"]
    assert bodies(await consumer.pop(1, wanted=wanted)) == [b"low"]


async def test_a_damaged_record_is_left_out(harness: BrokerHarness, consumer: PopConsumer) -> None:
    stored = await consumer.put(b"first", b"broken", b"third")
    [log] = sorted((harness.store.path / "commitlog").iterdir())
    with log.open("r+b") as file:
        content = file.read(stored[2].physical_offset)
        file.seek(content.rindex(b"broken"))
        file.write(b"BROKEN")
    got = await consumer.pop()
    found = [(message.body, message.lease.queue_offset) for message in got]
    assert found == [(b"first", 0), (b"third", 2)]
    assert await consumer.ack_sets(lease_set(*got)) == [Code.SUCCESS] * 2
    assert consumer.committed() == 3


async def test_a_parked_pop_is_woken_by_a_matching_message(consumer: PopConsumer) -> None:
    waiting = asyncio.create_task(consumer.pop(poll_ms=20_000, wanted="red"))
    await asyncio.sleep(1)
    await consumer.put(b"1", properties={"TAGS": "blue"})
    await asyncio.sleep(1)
    assert not waiting.done()
    await consumer.put(b"2", properties={"TAGS": "red"})
    assert bodies(await waiting) == [b"2"]
    assert asyncio.get_running_loop().time() < 3


async def test_each_message_wakes_one_parked_pop(consumer: PopConsumer) -> None:
    waiting = [asyncio.create_task(consumer.pop(1, poll_ms=20_000)) for _ in range(5)]
    await asyncio.sleep(1)
    await consumer.put(b"1", b"2")
    await asyncio.sleep(1)
    assert [task.done() for task in waiting] == [True, True, False, False, False]
    await asyncio.gather(*waiting)


async def test_room_in_a_full_queue_wakes_a_parked_pop(
    consumer: PopConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_flight, "MAX_IN_FLIGHT", 2)
    await consumer.put(b"1", b"2", b"3")
    first, _ = await consumer.pop(2)
    waiting = asyncio.create_task(consumer.pop(poll_ms=20_000))
    await asyncio.sleep(1)
    await consumer.ack(first)
    assert bodies(await waiting) == [b"3"]
    assert asyncio.get_running_loop().time() < 2


async def test_a_parked_pop_makes_asynchronous_flush_flush(begin: Begin, tmp_path: Path) -> None:
    harness = await begin(tmp_path / "async", flushDiskType="ASYNC_FLUSH")
    harness.tables.topics.put(TopicConfig(TOPIC, 1, 1))
    waiting = asyncio.create_task(PopConsumer(harness).pop(poll_ms=20_000))
    await asyncio.sleep(0.1)
    sent_at = asyncio.get_running_loop().time()
    await harness.send(TOPIC, b"1")
    assert bodies(await waiting) == [b"1"]
    assert asyncio.get_running_loop().time() - sent_at < 2, "not in 10 s only"


async def test_a_cancelled_pop_counts_no_delivery_attempt(consumer: PopConsumer) -> None:
    await consumer.put(b"1")
    consumer.harness.flusher.hold()
    gone = asyncio.create_task(consumer.pop())
    await asyncio.sleep(0.1)
    gone.cancel()
    await asyncio.wait([gone])
    consumer.harness.flusher.let_go()
    await asyncio.sleep(0.1)
    assert deliveries(await consumer.pop()) == [(b"1", 1)]


@pytest.mark.parametrize(("from_min", "expected"), [(True, [b"old", b"new"]), (False, [b"new"])])
async def test_consume_from_min_enable_decides_where_a_new_group_begins(
    consumer: PopConsumer, from_min: bool, expected: list[bytes]
) -> None:
    await consumer.harness.group(consumer.group, consume_from_min_enable=from_min)
    await consumer.put(b"old")
    found = await consumer.pop()
    await consumer.put(b"new")
    assert bodies(found + await consumer.pop()) == expected


# ---- notifications ----

POLL_MS = 5_000


def wanted(**fields: Any) -> PopRequest:
    filter_ = compile_filter("TAG", fields.pop("tags", "*"))
    return pop_request(max_bytes=1, invisible_duration_ms=0, filter=filter_, **fields)


async def notified(harness: BrokerHarness, poll_ms: int = 0, **fields: Any) -> bool:
    return await harness.broker.consuming.notifications.wait(wanted(**fields), poll_ms)


async def parked(harness: BrokerHarness, **fields: Any) -> asyncio.Task[bool]:
    task = asyncio.create_task(notified(harness, POLL_MS, **fields))
    await asyncio.sleep(0.01)
    assert not task.done()
    return task


@pytest.mark.parametrize("order", [ConsumeOrder.OFF, ConsumeOrder.ON])
@pytest.mark.parametrize("fields", [{}, {"tags": "a"}])
async def test_peek_finds_a_message_and_leases_nothing(
    harness: BrokerHarness, consumer: PopConsumer, order: ConsumeOrder, fields: dict[str, Any]
) -> None:
    await harness.group(GROUP, consume_order=order)
    assert not await notified(harness, **fields)
    await harness.send(TOPIC, b"first", properties={"TAGS": "a"})
    assert await notified(harness, **fields) and await notified(harness, **fields)
    [message] = await consumer.pop(wanted=fields.get("tags", "*"))
    assert (message.body, message.attempt) == (b"first", 1)
    assert not await notified(harness, **fields)


async def test_filter_counts(harness: BrokerHarness) -> None:
    waiting = await parked(harness, tags="b")
    await harness.send(TOPIC, b"other", properties={"TAGS": "a"})
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await harness.send(TOPIC, b"mine", properties={"TAGS": "b"})
    assert await waiting


async def test_wakes_at_an_arrival(harness: BrokerHarness) -> None:
    waiting = [await parked(harness), await parked(harness)]
    await harness.send(TOPIC, b"first")
    assert await asyncio.gather(*waiting) == [True, True]


async def test_parked_pops_come_first(harness: BrokerHarness, consumer: PopConsumer) -> None:
    waiting = await parked(harness)
    popping = asyncio.create_task(consumer.pop(poll_ms=POLL_MS))
    await asyncio.sleep(0.01)
    await harness.send(TOPIC, b"first")
    assert len(await popping) == 1
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await harness.send(TOPIC, b"second")
    assert await waiting


async def test_wakes_when_a_lease_ends(harness: BrokerHarness, consumer: PopConsumer) -> None:
    await harness.send(TOPIC, b"first")
    [message] = await consumer.pop()
    waiting = await parked(harness)
    await consumer.change(message, 0, uncounted=True)
    assert await waiting
    [again] = await consumer.pop()
    assert again.attempt == 1


async def test_message_group_on_lease_is_no_news(consumer: PopConsumer) -> None:
    await consumer.harness.group(GROUP, consume_order=ConsumeOrder.ON)
    in_group = {"__SHARDINGKEY": "g"}
    await consumer.harness.send(TOPIC, b"first", properties=in_group)
    [first] = await consumer.pop()
    await consumer.harness.send(TOPIC, b"second", properties=in_group)
    waiting = await parked(consumer.harness)
    await consumer.ack(first)
    assert await waiting
    assert [message.body for message in await consumer.pop()] == [b"second"]


async def test_repeated_attempt(harness: BrokerHarness, consumer: PopConsumer) -> None:
    await harness.group(GROUP, consume_order=ConsumeOrder.ON)
    repeated = harness.broker.consuming.notifications.is_repeated
    request = wanted(attempt_id="x")
    assert not await repeated(request)
    await harness.send(TOPIC, b"first")
    [message] = await consumer.pop(attempt_id="x")
    assert await repeated(request) and not await repeated(replace(request, attempt_id="y"))
    await consumer.ack(message)
    assert not await repeated(request)


async def test_a_topic_that_is_not_there_leaves_nothing_behind(harness: BrokerHarness) -> None:
    await harness.group(GROUP)
    consuming = harness.broker.consuming
    with raises_code(Code.TOPIC_NOT_EXIST):
        await consuming.notifications.is_repeated(replace(wanted(attempt_id="x"), topic="none"))
    assert not list(consuming.leases.table)


async def test_ends_in_time(harness: BrokerHarness) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert not await notified(harness, 50)
    assert loop.time() - began >= 0.05
