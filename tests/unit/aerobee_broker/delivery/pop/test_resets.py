"""Leases when a group is reset, or a group or a topic deleted; also across crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from aerobee_broker.errors import DiskFull, StoreWriteError
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire.status import Code
from support.broker.harness import Parts
from support.broker.pop_consumer import (
    GROUP,
    TOPIC,
    PopConsumer,
    attempts,
    bodies,
    deliveries,
    lease_set,
)
from support.broker.pop_restarts import begin, begin_again, copy_store, crash, failing_disk


async def test_a_reset_voids_leases(parts: Parts, consumer: PopConsumer) -> None:
    await parts.send(TOPIC, b"1", b"2")
    got = await consumer.pop()
    await consumer.ack(got[0])
    await parts.broker.offset_queries.reset(GROUP, TOPIC, [0], queue_offset=0)
    assert attempts(await consumer.pop()) == [1, 1]
    assert await consumer.ack(got[1]) == [Code.INVALID_RECEIPT_HANDLE]


async def test_deleting_a_topic_voids_its_leases(parts: Parts, consumer: PopConsumer) -> None:
    await parts.send(TOPIC, b"1", b"2")
    await consumer.pop()
    await parts.broker.administration.delete_topic(TOPIC)
    parts.tables.topics.put(TopicConfig(TOPIC, 1, 1))
    await parts.send(TOPIC, b"new")
    assert deliveries(await consumer.pop()) == [(b"new", 1)]


async def test_a_reset_survives_a_crash(tmp_path: Path) -> None:
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, b"1", b"2")
    consumer = PopConsumer(parts)
    await consumer.ack(*await consumer.pop())
    await parts.broker.offset_queries.reset(GROUP, TOPIC, [0], queue_offset=1)
    await parts.send(TOPIC, b"3")
    parts = await crash(parts, tmp_path / "b")
    assert bodies(await PopConsumer(parts).pop()) == [b"2", b"3"]
    await parts.end()


async def test_a_reset_of_a_group_that_pulls_survives_a_crash(tmp_path: Path) -> None:
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, b"1", b"2", b"3")
    await parts.broker.offset_queries.reset(GROUP, TOPIC, [0], queue_offset=2)
    parts = await crash(parts, tmp_path / "b")
    assert parts.tables.offsets.get(GROUP, TOPIC, 0) == 2
    await parts.end()


async def test_a_reset_returns_once_it_is_durable(tmp_path: Path) -> None:
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, b"1", b"2", b"3")
    await PopConsumer(parts).pop()
    parts.flusher.hold()
    reset = asyncio.create_task(
        parts.broker.offset_queries.reset(GROUP, TOPIC, [0], queue_offset=1)
    )
    await asyncio.sleep(0.1)
    assert not reset.done()
    parts.flusher.let_go()
    assert [offset.queue_offset for offset in await reset] == [1]
    parts = await crash(parts, tmp_path / "b")
    assert bodies(await PopConsumer(parts).pop()) == [b"2", b"3"]
    await parts.end()


async def test_a_lost_reset_is_journalled_before_later_leases(tmp_path: Path) -> None:
    """Else a start would apply those leases to the old cursor, and lose the messages between."""
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, b"1", b"2", b"3")
    consumer = PopConsumer(parts)
    await consumer.ack(*await consumer.pop())
    with failing_disk(parts, DiskFull("injected")), pytest.raises(DiskFull):
        await parts.broker.offset_queries.reset(GROUP, TOPIC, [0], queue_offset=0)
    assert bodies(await consumer.pop(1)) == [b"1"]
    parts = await crash(parts, tmp_path / "b")
    assert bodies(await PopConsumer(parts).pop()) == [b"2", b"3"]
    await parts.end()


async def test_a_lost_reset_is_journalled_again_by_itself(tmp_path: Path) -> None:
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, b"1", b"2", b"3")
    consumer = PopConsumer(parts)
    await consumer.ack(*await consumer.pop())
    with failing_disk(parts, DiskFull("injected")):
        with pytest.raises(DiskFull):
            await parts.broker.offset_queries.reset(GROUP, TOPIC, [0], queue_offset=0)
        await asyncio.sleep(5)
    await asyncio.sleep(2)
    parts = await crash(parts, tmp_path / "b")
    assert bodies(await PopConsumer(parts).pop()) == [b"1", b"2", b"3"]
    await parts.end()


@pytest.mark.parametrize("what", ["reset", "topic", "group"])
async def test_a_full_disk_refuses_a_reset_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, b"1", b"2", b"3")
    consumer = PopConsumer(parts)
    got = await consumer.pop(2)
    await consumer.ack(got[0])
    administration = parts.broker.administration
    requests: dict[str, Callable[[], Awaitable[object]]] = {
        "reset": lambda: parts.broker.offset_queries.reset(GROUP, TOPIC, [0], queue_offset=3),
        "topic": lambda: administration.delete_topic(TOPIC),
        "group": lambda: administration.delete_group(GROUP, remove_offsets=True),
    }
    request = requests[what]
    monkeypatch.setattr(parts.store._retention, "stop", "the disk is at its stop mark")
    with pytest.raises(DiskFull):
        await request()
    monkeypatch.setattr(parts.store._retention, "stop", "")
    assert consumer.committed() == 1
    assert await parts.bodies(TOPIC) == [b"1", b"2", b"3"]
    assert parts.tables.groups.get(GROUP) is not None
    assert await consumer.ack(got[1]) == [Code.SUCCESS]
    assert await request()
    await parts.end()


async def test_an_expired_lease_of_a_deleted_topic_is_void(tmp_path: Path) -> None:
    parts = await begin(tmp_path / "a")
    await parts.group(GROUP, retry_max_times=0)
    await parts.send(TOPIC, b"old")
    await PopConsumer(parts).pop(invisible_ms=10_000)
    await parts.broker.administration.delete_topic(TOPIC)
    parts.tables.topics.put(TopicConfig(TOPIC, 1, 1))
    await parts.send(TOPIC, b"new")
    await asyncio.sleep(5)
    await PopConsumer(parts).pop(invisible_ms=60_000)
    await asyncio.sleep(6)
    assert f"%DLQ%{GROUP}" not in parts.tables.topics
    parts = await crash(parts, tmp_path / "b")
    await parts.group(GROUP, retry_max_times=1)
    await asyncio.sleep(60)
    assert bodies(await PopConsumer(parts).pop()) == [b"new"]
    await parts.end()


@pytest.mark.parametrize("is_flushed", [True, False])
async def test_a_kill_after_a_deletion_leaves_nothing_of_the_topic(
    tmp_path: Path, is_flushed: bool
) -> None:
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, *(b"%d" % number for number in range(5)))
    consumer = PopConsumer(parts)
    await consumer.ack(*await consumer.pop())
    await parts.tables.saved_offsets.save()
    if not is_flushed:
        parts.flusher.hold()
    deletion = asyncio.create_task(parts.broker.administration.delete_topic(TOPIC))
    await asyncio.sleep(0.001)
    assert deletion.done() is is_flushed
    copy_store(parts, tmp_path / "b")
    parts.flusher.let_go()
    assert await deletion
    await parts.end()
    parts = await begin_again(tmp_path / "b", parts)
    await parts.send(TOPIC, b"new 1", b"new 2")
    assert bodies(await PopConsumer(parts).pop()) == [b"new 1", b"new 2"]
    await parts.end()


async def test_an_ack_under_way_does_not_touch_a_recreated_topic(tmp_path: Path) -> None:
    parts = await begin(tmp_path)
    await parts.send(TOPIC, b"1", b"2")
    consumer = PopConsumer(parts)
    got = await consumer.pop(2)
    parts.flusher.hold()
    acking = asyncio.create_task(consumer.ack_sets(lease_set(*got)))
    await asyncio.sleep(0.001)
    deleting = asyncio.create_task(parts.broker.administration.delete_topic(TOPIC))
    await asyncio.sleep(0.001)
    parts.flusher.let_go()
    await asyncio.gather(acking, deleting)
    parts.tables.topics.put(TopicConfig(TOPIC, 1, 1))
    await parts.send(TOPIC, b"new 1", b"new 2", b"new 3")
    assert bodies(await consumer.pop()) == [b"new 1", b"new 2", b"new 3"]
    await parts.end()


async def test_an_ack_rolled_back_after_a_reset_restores_nothing(tmp_path: Path) -> None:
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, b"1", b"2", b"3")
    consumer = PopConsumer(parts)
    got = await consumer.pop(2)
    with failing_disk(parts):
        parts.flusher.hold()
        acking = asyncio.create_task(consumer.ack_sets(lease_set(*got)))
        await asyncio.sleep(0.001)
        reset = parts.broker.offset_queries.reset(GROUP, TOPIC, [0], queue_offset=3)
        resetting = asyncio.create_task(reset)
        await asyncio.sleep(0.001)
        parts.flusher.let_go()
        with pytest.raises(StoreWriteError):
            await acking
        with pytest.raises(StoreWriteError):
            await resetting
        await asyncio.sleep(0.01)
    assert consumer.committed() == 3
    await asyncio.sleep(11)
    assert await consumer.pop() == []
    await parts.end()
