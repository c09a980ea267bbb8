"""Leases when a group is reset, or a group or a topic deleted; also across crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

import pytest

from aerobee_broker.delivery.pull.reading import PullRequest
from aerobee_broker.errors import DiskFull, StoreWriteError
from aerobee_broker.filter.filter import compile_filter
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire.status import Code
from support.broker.harness import BrokerHarness
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
from support.broker.pop_restarts import copy_store, crash, failing_disk, start_over
from support.codes import raises_code


async def test_a_reset_voids_leases(consumer: PopConsumer) -> None:
    await consumer.put(b"1", b"2")
    got = await consumer.pop()
    await consumer.ack(got[0])
    await consumer.reset(0)
    assert attempts(await consumer.pop()) == [1, 1]
    assert await consumer.ack(got[1]) == [Code.INVALID_RECEIPT_HANDLE]


async def test_deleting_a_topic_voids_its_leases(consumer: PopConsumer) -> None:
    await consumer.put(b"1", b"2")
    await consumer.pop()
    await consumer.harness.broker.administration.delete_topic(TOPIC)
    consumer.harness.tables.topics.put(TopicConfig(TOPIC, 1, 1))
    await consumer.put(b"new")
    assert deliveries(await consumer.pop()) == [(b"new", 1)]


async def test_a_reset_survives_a_crash(consumer: PopConsumer) -> None:
    await consumer.put(b"1", b"2")
    await consumer.ack(*await consumer.pop())
    await consumer.reset(1)
    await consumer.put(b"3")
    await crash(consumer)
    assert bodies(await consumer.pop()) == [b"2", b"3"]


async def test_a_reset_of_a_group_that_pulls_survives_a_crash(consumer: PopConsumer) -> None:
    await consumer.put(b"1", b"2", b"3")
    await consumer.reset(2)
    await crash(consumer)
    assert consumer.harness.tables.offsets.get(GROUP, TOPIC, 0) == 2


async def test_a_reset_returns_once_it_is_durable(consumer: PopConsumer) -> None:
    await consumer.put(b"1", b"2", b"3")
    await consumer.pop()
    consumer.harness.flusher.hold()
    reset = asyncio.create_task(consumer.reset(1))
    await asyncio.sleep(0.1)
    assert not reset.done()
    consumer.harness.flusher.let_go()
    assert [offset.queue_offset for offset in await reset] == [1]
    await crash(consumer)
    assert bodies(await consumer.pop()) == [b"2", b"3"]


async def test_a_lost_reset_is_journalled_before_later_leases(consumer: PopConsumer) -> None:
    """Else a start would apply those leases to the old cursor, and lose the messages between."""
    await consumer.put(b"1", b"2", b"3")
    await consumer.ack(*await consumer.pop())
    with failing_disk(consumer.harness, DiskFull("injected")), pytest.raises(DiskFull):
        await consumer.reset(0)
    assert bodies(await consumer.pop(1)) == [b"1"]
    await crash(consumer)
    assert bodies(await consumer.pop()) == [b"2", b"3"]


async def test_a_lost_reset_is_journalled_again_by_itself(consumer: PopConsumer) -> None:
    await consumer.put(b"1", b"2", b"3")
    await consumer.ack(*await consumer.pop())
    with failing_disk(consumer.harness, DiskFull("injected")):
        with pytest.raises(DiskFull):
            await consumer.reset(0)
        await asyncio.sleep(5)
    await asyncio.sleep(2)
    await crash(consumer)
    assert bodies(await consumer.pop()) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("what", ["reset", "topic", "group"])
async def test_a_full_disk_refuses_a_reset_before_anything_is_done(
    harness: BrokerHarness, consumer: PopConsumer, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    await consumer.put(b"1", b"2", b"3")
    got = await consumer.pop(2)
    await consumer.ack(got[0])
    administration = harness.broker.administration
    requests: dict[str, Callable[[], Awaitable[object]]] = {
        "reset": lambda: harness.broker.consuming.offset_queries.reset(
            GROUP, TOPIC, [0], queue_offset=3
        ),
        "topic": lambda: administration.delete_topic(TOPIC),
        "group": lambda: administration.delete_group(GROUP, remove_offsets=True),
    }
    request = requests[what]
    monkeypatch.setattr(harness.store._retention, "stop", "the disk is at its stop mark")
    with pytest.raises(DiskFull):
        await request()
    monkeypatch.setattr(harness.store._retention, "stop", "")
    assert consumer.committed() == 1
    assert await harness.bodies(TOPIC) == [b"1", b"2", b"3"]
    assert harness.tables.groups.get(GROUP) is not None
    assert await consumer.ack(got[1]) == [Code.SUCCESS]
    assert await request()


async def test_an_expired_lease_of_a_deleted_topic_is_void(consumer: PopConsumer) -> None:
    await consumer.harness.group(GROUP, retry_max_times=0)
    await consumer.put(b"old")
    await consumer.pop(invisible_ms=10_000)
    await consumer.harness.broker.administration.delete_topic(TOPIC)
    consumer.harness.tables.topics.put(TopicConfig(TOPIC, 1, 1))
    await consumer.put(b"new")
    await asyncio.sleep(5)
    await consumer.pop(invisible_ms=60_000)
    await asyncio.sleep(6)
    assert f"%DLQ%{GROUP}" not in consumer.harness.tables.topics
    await crash(consumer)
    await consumer.harness.group(GROUP, retry_max_times=1)
    await asyncio.sleep(60)
    assert bodies(await consumer.pop()) == [b"new"]


@pytest.mark.parametrize("is_flushed", [True, False])
async def test_a_kill_after_a_deletion_leaves_nothing_of_the_topic(
    harness: BrokerHarness, consumer: PopConsumer, is_flushed: bool
) -> None:
    await consumer.put(*(b"%d" % number for number in range(5)))
    await consumer.ack(*await consumer.pop())
    await harness.tables.saved_offsets.save()
    if not is_flushed:
        harness.flusher.hold()
    deletion = asyncio.create_task(harness.broker.administration.delete_topic(TOPIC))
    await asyncio.sleep(0.001)
    assert deletion.done() is is_flushed
    copy = copy_store(harness)
    harness.flusher.let_go()
    assert await deletion
    harness = await start_over(consumer, copy)
    await consumer.put(b"new 1", b"new 2")
    assert bodies(await consumer.pop()) == [b"new 1", b"new 2"]


@pytest.mark.parametrize("slow", ["the name server", "the disk of the tables"])
async def test_a_kill_after_a_topic_was_recreated_hides_no_message_of_it(
    harness: BrokerHarness, consumer: PopConsumer, slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion has not ended when the topic is created again."""
    await consumer.put(b"1", b"2", b"3")
    await consumer.ack(*await consumer.pop())
    await harness.broker.save_tables()
    topics = harness.broker.topics
    gate = asyncio.Event()
    with monkeypatch.context() as patch:
        if slow == "the name server":

            async def announce() -> list[str]:
                await gate.wait()
                return []

            patch.setattr(topics, "_announce", announce)
        else:
            save = harness.tables.saved_offsets.save

            async def save_late() -> None:
                await gate.wait()
                await save()

            patch.setattr(harness.tables.saved_offsets, "save", save_late)
        deletion = asyncio.create_task(harness.broker.administration.delete_topic(TOPIC))
        await asyncio.sleep(0.01)
    sending = asyncio.create_task(recreate(consumer))
    await asyncio.sleep(0.01)
    if slow == "the name server":
        await sending
        copy = copy_store(harness)
        gate.set()
    else:
        assert not sending.done()
        gate.set()
        await sending
        copy = copy_store(harness)
    assert await deletion
    await start_over(consumer, copy)
    assert bodies(await consumer.pop()) == [b"new"]


async def recreate(consumer: PopConsumer) -> None:
    await consumer.harness.broker.topics.put(TopicConfig(TOPIC, 1, 1))
    await consumer.put(b"new")


async def test_an_ack_under_way_does_not_touch_a_recreated_topic(consumer: PopConsumer) -> None:
    await consumer.put(b"1", b"2")
    got = await consumer.pop(2)
    consumer.harness.flusher.hold()
    acking = asyncio.create_task(consumer.ack_sets(lease_set(*got)))
    await asyncio.sleep(0.001)
    deleting = asyncio.create_task(consumer.harness.broker.administration.delete_topic(TOPIC))
    await asyncio.sleep(0.001)
    consumer.harness.flusher.let_go()
    await asyncio.gather(acking, deleting)
    consumer.harness.tables.topics.put(TopicConfig(TOPIC, 1, 1))
    await consumer.put(b"new 1", b"new 2", b"new 3")
    assert bodies(await consumer.pop()) == [b"new 1", b"new 2", b"new 3"]


async def test_an_ack_rolled_back_after_a_reset_restores_nothing(consumer: PopConsumer) -> None:
    await consumer.put(b"1", b"2", b"3")
    got = await consumer.pop(2)
    with failing_disk(consumer.harness):
        consumer.harness.flusher.hold()
        acking = asyncio.create_task(consumer.ack_sets(lease_set(*got)))
        await asyncio.sleep(0.001)
        resetting = asyncio.create_task(consumer.reset(3))
        await asyncio.sleep(0.001)
        consumer.harness.flusher.let_go()
        with pytest.raises(StoreWriteError):
            await acking
        with pytest.raises(StoreWriteError):
            await resetting
        await asyncio.sleep(0.01)
    assert consumer.committed() == 3
    await asyncio.sleep(11)
    assert await consumer.pop() == []


Held = Callable[[PopConsumer], Coroutine[object, object, object]]


async def held_pop(consumer: PopConsumer) -> object:
    return await consumer.pop(poll_ms=30_000)


async def held_notification(consumer: PopConsumer) -> object:
    asked = pop_request(invisible_duration_ms=1_000)
    return await consumer.harness.broker.consuming.notifications.wait(asked, 30_000)


async def held_pull(consumer: PopConsumer) -> object:
    asked = PullRequest(
        GROUP,
        TOPIC,
        0,
        1,
        max_messages=1,
        suspend_timeout_ms=20_000,
        filter=compile_filter("TAG", "*"),
    )
    return await consumer.harness.broker.consuming.pull.pull(asked)


@pytest.mark.parametrize("held", [held_pop, held_notification, held_pull])
@pytest.mark.parametrize("remove_offsets", [True, False])
async def test_a_held_receive_of_a_deleted_group_ends_and_leaves_nothing_behind(
    consumer: PopConsumer, held: Held, remove_offsets: bool
) -> None:
    await consumer.put(b"1")
    await consumer.ack(*await consumer.pop())
    holding = asyncio.create_task(held(consumer))
    await asyncio.sleep(1)
    deleted = consumer.harness.broker.administration.delete_group(
        GROUP, remove_offsets=remove_offsets
    )
    assert await deleted
    await consumer.put(b"2")
    with raises_code(Code.SUBSCRIPTION_GROUP_NOT_EXIST):
        await holding
    assert consumer.committed() == (None if remove_offsets else 1)
    assert consumer.harness.tables.groups.get(GROUP) is None
    leases = consumer.harness.broker.consuming.leases
    assert not remove_offsets or not list(leases.table)


@pytest.mark.parametrize("held", [held_pop, held_notification])
@pytest.mark.parametrize("has_consumed", [True, False])
async def test_a_held_receive_does_not_restore_an_offset_that_is_forgotten(
    consumer: PopConsumer, held: Held, has_consumed: bool
) -> None:
    if has_consumed:
        await consumer.put(b"1")
        await consumer.ack(*await consumer.pop())
    holding = asyncio.create_task(held(consumer))
    await asyncio.sleep(1)
    queries = consumer.harness.broker.consuming.offset_queries
    assert await queries.forget(GROUP, TOPIC, dry_run=False)
    assert not await holding
    await consumer.put(b"2")
    assert consumer.committed() is None
    assert not list(consumer.harness.broker.consuming.leases.table)


async def test_an_ack_under_way_does_not_restore_an_offset_that_is_forgotten(
    consumer: PopConsumer,
) -> None:
    await consumer.put(b"1", b"2")
    got = await consumer.pop()
    consumer.harness.flusher.hold()
    acking = asyncio.create_task(consumer.ack(got[0]))
    changing = asyncio.create_task(consumer.change(got[1], 60_000))
    await asyncio.sleep(0.001)
    queries = consumer.harness.broker.consuming.offset_queries
    forgetting = asyncio.create_task(queries.forget(GROUP, TOPIC, dry_run=False))
    await asyncio.sleep(0.001)
    consumer.harness.flusher.let_go()
    await asyncio.gather(acking, changing, forgetting)
    await asyncio.sleep(120)
    assert consumer.committed() is None
    assert await consumer.ack(got[1]) == [Code.INVALID_RECEIPT_HANDLE]
    await crash(consumer)
    assert consumer.committed() is None
