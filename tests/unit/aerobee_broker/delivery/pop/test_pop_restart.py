"""Leases across stops and crashes. A crash is a copy of the directory, opened anew."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.errors import DiskFull, StoreReadError, StoreWriteError
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.store.messages import ReadResult, ReadStatus
from aerobee_wire import properties as props
from aerobee_wire.checked_json import decode
from aerobee_wire.status import Code
from support.broker.harness import Parts
from support.broker.pop_consumer import GROUP, TOPIC, PopConsumer, bodies, lease_set


async def begin(path: Path, **options: Any) -> Parts:
    parts = await Parts.begin(path, **options)
    parts.tables.topics.put(TopicConfig(TOPIC, 1, 1))
    await parts.group(GROUP)
    return parts


async def crash(parts: Parts, path: Path) -> Parts:
    """What a killed broker leaves behind, started again. Stops the one before."""
    shutil.copytree(parts.store.path, path / "store")
    await parts.end()
    return await begin_again(path, parts)


async def begin_again(path: Path, parts: Parts) -> Parts:
    again = await Parts.begin(path, clock=parts.clock)
    again.tables.topics.put(TopicConfig(TOPIC, 1, 1))
    return again


async def stop(parts: Parts, path: Path) -> Parts:
    await parts.end()
    return await begin_again(path, parts)


@pytest.mark.parametrize("how", ["crash", "stop"])
async def test_leases_and_settlements_survive(tmp_path: Path, how: str) -> None:
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, *(b"%d" % number for number in range(6)))
    consumer = PopConsumer(parts)
    got = await consumer.pop(5, invisible_ms=20_000)
    await consumer.ack(got[0], got[2])
    await consumer.change(got[4], 60_000)
    await asyncio.sleep(5)
    parts = await (crash(parts, tmp_path / "b") if how == "crash" else stop(parts, tmp_path / "a"))

    consumer = PopConsumer(parts)
    assert consumer.committed() == 1
    assert bodies(await consumer.pop(invisible_ms=60_000)) == [b"5"]
    assert await consumer.ack(got[0], got[1], got[2]) == [Code.SUCCESS] * 3
    await asyncio.sleep(14.9)
    assert await consumer.pop() == [], "15 s of the lease were left"
    await asyncio.sleep(0.2)
    assert [(one.body, one.attempt) for one in await consumer.pop()] == [(b"3", 2)]
    assert await consumer.ack(got[4]) == [Code.SUCCESS]
    await parts.end()


async def test_a_lease_that_ended_meanwhile_comes_again_at_the_start(tmp_path: Path) -> None:
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, b"1")
    await PopConsumer(parts).pop()
    shutil.copytree(parts.store.path, tmp_path / "b" / "store")
    await asyncio.sleep(60)
    await parts.end()
    parts = await begin_again(tmp_path / "b", parts)
    await asyncio.sleep(0.01)
    assert [one.attempt for one in await PopConsumer(parts).pop()] == [2]
    await parts.end()


async def test_attempts_are_counted_across_crashes(tmp_path: Path) -> None:
    parts = await begin(tmp_path / "a")
    await parts.group(GROUP, retry_max_times=3)
    await parts.send(TOPIC, b"1")
    attempts = []
    for number in range(4):
        consumer = PopConsumer(parts)
        attempts += [one.attempt for one in await consumer.pop(poll_ms=30_000)]
        parts = await crash(parts, tmp_path / str(number))
    assert attempts == [1, 2, 3, 4]
    assert await PopConsumer(parts).pop(poll_ms=30_000) == []
    assert len(await parts.read(f"%DLQ%{GROUP}")) == 1
    await parts.end()


async def test_the_log_alone_is_enough(tmp_path: Path) -> None:
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, b"1", b"2", b"3")
    consumer = PopConsumer(parts)
    got = await consumer.pop()
    await consumer.ack(got[1])
    await parts.end()
    for name in ("popLeases.json", "popLeases.json.bak", "consumerOffset.json"):
        (tmp_path / "a" / "store" / "config" / name).unlink(missing_ok=True)
    parts = await begin_again(tmp_path / "a", parts)
    await asyncio.sleep(11)
    assert bodies(await PopConsumer(parts).pop()) == [b"1", b"3"]
    await parts.end()


async def test_a_snapshot_spares_the_log_before_it(tmp_path: Path) -> None:
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, *[b"x"] * 50)
    consumer = PopConsumer(parts)
    for _ in range(50):
        await consumer.ack(*await consumer.pop(1))
    parts = await stop(parts, tmp_path / "a")
    saved = decode((parts.store.path / "config" / "popLeases.json").read_bytes())
    assert saved["position"] == 100
    assert parts.broker.lease_table.loaded_position == 100
    assert PopConsumer(parts).committed() == 50
    await parts.end()


async def test_a_snapshot_and_the_log_it_already_has_agree(tmp_path: Path) -> None:
    """A snapshot may hold more than its position says: then the log is applied twice."""
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, b"1", b"2", b"3")
    consumer = PopConsumer(parts)
    got = await consumer.pop()
    await consumer.ack(got[0])
    await consumer.change(got[1], 30_000, uncounted=True)
    await parts.end()
    file = parts.store.path / "config" / "popLeases.json"
    file.write_text(json.dumps({**decode(file.read_bytes()), "position": 0}))
    parts = await begin_again(tmp_path / "a", parts)
    consumer = PopConsumer(parts)
    assert consumer.committed() == 1
    await asyncio.sleep(31)
    again = {one.body: one.attempt for one in await consumer.pop()}
    assert again == {b"2": 1, b"3": 2}
    await parts.end()


async def test_a_group_that_began_at_the_end_does_not_move_on(tmp_path: Path) -> None:
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, b"old")
    assert await PopConsumer(parts).pop(start="latest") == []
    await parts.send(TOPIC, b"new")
    parts = await crash(parts, tmp_path / "b")
    assert bodies(await PopConsumer(parts).pop(start="latest")) == [b"new"]
    await parts.end()


async def test_a_reset_survives(tmp_path: Path) -> None:
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, b"1", b"2")
    consumer = PopConsumer(parts)
    await consumer.ack(*await consumer.pop())
    await parts.broker.offset_queries.reset(GROUP, TOPIC, [0], queue_offset=1)
    await parts.send(TOPIC, b"3")
    parts = await crash(parts, tmp_path / "b")
    assert bodies(await PopConsumer(parts).pop()) == [b"2", b"3"]
    await parts.end()


async def test_the_order_of_message_groups_survives(tmp_path: Path) -> None:
    parts = await begin(tmp_path / "a")
    for body in (b"a1", b"a2", b"b1", b"a3"):
        await parts.send(TOPIC, body, properties={props.SHARDING_KEY: body[:1].decode()})
    consumer = PopConsumer(parts)
    got = await consumer.pop(2, fifo=True)
    await consumer.ack(got[1])
    parts = await crash(parts, tmp_path / "b")
    consumer = PopConsumer(parts)
    assert bodies(await consumer.pop(fifo=True)) == [b"b1"]
    assert await consumer.ack(got[0]) == [Code.SUCCESS]
    assert bodies(await consumer.pop(fifo=True)) == [b"a3"]
    await parts.end()


async def test_an_acknowledgement_that_no_longer_counts_does_not_count_after_a_restart(
    tmp_path: Path,
) -> None:
    """The log does not tell that the lease ended by time, and the acknowledgement with it."""
    parts = await begin(tmp_path / "a")
    for body in (b"a1", b"a2"):
        await parts.send(TOPIC, body, properties={props.SHARDING_KEY: "a"})
    consumer = PopConsumer(parts)
    got = await consumer.pop(2, fifo=True, invisible_ms=1_000)
    await consumer.ack(got[1])
    await asyncio.sleep(1.1)
    [again] = await consumer.pop(1, fifo=True, invisible_ms=60_000)
    assert again.body == b"a1"
    parts = await crash(parts, tmp_path / "b")
    consumer = PopConsumer(parts)
    assert await consumer.ack(again) == [Code.SUCCESS]
    assert bodies(await consumer.pop(fifo=True)) == [b"a2"]
    await parts.end()


async def test_a_message_that_waits_for_its_turn_survives(tmp_path: Path) -> None:
    parts = await begin(tmp_path / "a")
    for body in (b"a1", b"a2", b"b1"):
        await parts.send(TOPIC, body, properties={props.SHARDING_KEY: body[:1].decode()})
    consumer = PopConsumer(parts)
    got = await consumer.pop(1, fifo=True)
    assert bodies(await consumer.pop(1, fifo=True)) == [b"b1"]
    parts = await crash(parts, tmp_path / "b")
    consumer = PopConsumer(parts)
    assert await consumer.pop(fifo=True) == []
    await consumer.ack(*got)
    assert bodies(await consumer.pop(fifo=True)) == [b"a2"]
    await parts.end()


async def test_an_uncounted_delivery_may_still_be_counted_after_a_restart(tmp_path: Path) -> None:
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, b"1")
    (got,) = await PopConsumer(parts).pop()
    await PopConsumer(parts).change(got, 5_000, uncounted=True)
    parts = await stop(parts, tmp_path / "a")
    consumer = PopConsumer(parts)
    await consumer.change(got, 0)
    await asyncio.sleep(0.01)
    assert [one.attempt for one in await consumer.pop()] == [2]
    await parts.end()


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_a_snapshot_waits_until_the_log_has_what_it_says(tmp_path: Path, flush: str) -> None:
    """Else a power cut could leave a message settled whose dead letter it took."""
    parts = await begin(tmp_path, flushDiskType=flush)
    await parts.send(TOPIC, b"1")
    consumer = PopConsumer(parts)
    (got,) = await consumer.pop(poll_ms=1_000)
    await parts.broker.lease_journal.save_snapshot()
    file = tmp_path / "store" / "config" / "popLeases.json"
    before = file.read_bytes()
    parts.flusher.hold()
    giving_up = asyncio.create_task(consumer.dead_letter(got))
    await asyncio.sleep(0.001)
    saving = asyncio.create_task(parts.broker.lease_journal.save_snapshot())
    await asyncio.sleep(1)
    assert giving_up.done() is (flush == "ASYNC_FLUSH")
    assert not saving.done() and file.read_bytes() == before
    parts.flusher.let_go()
    await saving
    assert await giving_up is Code.SUCCESS and file.read_bytes() != before
    await parts.end()


async def test_a_set_that_the_disk_does_not_take_is_on_lease_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, *(b"%d" % number for number in range(4)))
    consumer = PopConsumer(parts)
    got = await consumer.pop()
    await consumer.ack(got[1])
    write = parts.store.flush.write_and_sync

    def broken() -> int:
        raise StoreWriteError("no space")

    monkeypatch.setattr(parts.store.flush, "write_and_sync", broken)
    with pytest.raises(StoreWriteError):
        await consumer.ack_sets(lease_set(*got[:3]))
    await asyncio.sleep(0)
    monkeypatch.setattr(parts.store.flush, "write_and_sync", write)
    assert consumer.committed() == 0
    assert await consumer.ack_sets(lease_set(got[2])) == [Code.SUCCESS]
    await asyncio.sleep(10.1)
    assert [(one.body, one.attempt) for one in await consumer.pop()] == [(b"0", 2), (b"3", 2)]
    await parts.end()


async def test_what_the_disk_does_not_take_is_as_if_it_had_not_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, b"1", b"2")
    consumer = PopConsumer(parts)
    (got,) = await consumer.pop(1)
    write = parts.store.flush.write_and_sync

    def broken() -> int:
        raise StoreWriteError("no space")

    monkeypatch.setattr(parts.store.flush, "write_and_sync", broken)
    for attempt in (consumer.ack(got), consumer.change(got, 0), consumer.pop(1)):
        with pytest.raises(StoreWriteError):
            await attempt
        await asyncio.sleep(0)
    monkeypatch.setattr(parts.store.flush, "write_and_sync", write)
    assert consumer.committed() == 0
    assert [(one.body, one.attempt) for one in await consumer.pop()] == [(b"2", 1)]
    assert await consumer.ack(got) == [Code.SUCCESS]
    await parts.end()


async def test_what_is_leased_before_a_queue_cannot_be_read_comes_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = await begin(tmp_path / "a")
    parts.tables.topics.put(TopicConfig(TOPIC, 2, 2))
    await parts.send(TOPIC, b"1", b"2")
    await parts.send(TOPIC, b"3", queue_id=1)
    consumer = PopConsumer(parts)
    read = parts.store.read

    def broken(topic: str, queue_id: int, *rest: Any, **named: Any) -> ReadResult:
        if queue_id == 1:
            raise StoreReadError(OSError("input/output error"))
        return read(topic, queue_id, *rest, **named)

    monkeypatch.setattr(parts.store, "read", broken)
    for _ in range(2):  # whichever queue comes first
        with pytest.raises(StoreReadError):
            await consumer.pop()
    monkeypatch.setattr(parts.store, "read", read)
    (got,) = await consumer.pop(1, queue_id=0)
    assert (got.body, got.attempt) == (b"1", 1)
    (other,) = await consumer.pop(1, queue_id=1)
    await consumer.change(other, 0)
    await asyncio.sleep(0.01)
    monkeypatch.setattr(parts.store, "read", broken)
    with pytest.raises(StoreReadError):
        await consumer.pop(1, queue_id=1)
    monkeypatch.setattr(parts.store, "read", read)
    assert [(one.body, one.attempt) for one in await consumer.pop(queue_id=1)] == [(b"3", 2)]
    parts = await crash(parts, tmp_path / "b")
    assert bodies(await PopConsumer(parts).pop(queue_id=0)) == [b"2"]
    await parts.end()


async def test_what_is_lost_when_the_log_takes_nothing_keeps_no_other_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, b"1", b"2", b"3")
    consumer = PopConsumer(parts)
    await consumer.pop(1, invisible_ms=1_000)
    await asyncio.sleep(1.1)
    read = parts.store.read

    def without_the_first(topic: str, queue_id: int, offset: int, **limits: Any) -> ReadResult:
        if offset:
            return read(topic, queue_id, offset, **limits)
        return ReadResult(ReadStatus.OFFSET_TOO_SMALL, 1, 1, 3)

    monkeypatch.setattr(parts.store, "read", without_the_first)
    parts.store.flush.block_appends(StoreWriteError("no space"))
    with pytest.raises(StoreWriteError):
        await consumer.pop(1)
    parts.store.flush.unblock_appends()
    assert [(one.body, one.attempt) for one in await consumer.pop(1)] == [(b"2", 1)]
    parts = await crash(parts, tmp_path / "b")
    assert bodies(await PopConsumer(parts).pop()) == [b"3"]
    await parts.end()


async def test_a_lease_of_a_deleted_topic_does_nothing_to_the_topic_that_is_made_again(
    tmp_path: Path,
) -> None:
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


@pytest.mark.parametrize("forgotten", ["in the log, not in the file", "nowhere"])
async def test_a_kill_right_after_a_deletion_leaves_nothing_of_the_topic(
    tmp_path: Path, forgotten: str
) -> None:
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, *(b"%d" % number for number in range(5)))
    consumer = PopConsumer(parts)
    await consumer.ack(*await consumer.pop())
    await parts.tables.saved_offsets.save()
    if forgotten == "nowhere":
        parts.flusher.hold()
    deletion = asyncio.create_task(parts.broker.administration.delete_topic(TOPIC))
    await asyncio.sleep(0.001)
    assert deletion.done() == (forgotten != "nowhere")
    shutil.copytree(parts.store.path, tmp_path / "b" / "store")
    parts.flusher.let_go()
    assert await deletion
    await parts.end()
    parts = await begin_again(tmp_path / "b", parts)
    await parts.send(TOPIC, b"new 1", b"new 2")
    assert bodies(await PopConsumer(parts).pop()) == [b"new 1", b"new 2"]
    await parts.end()


async def test_a_group_that_began_in_an_empty_topic_gets_what_comes_while_it_is_away(
    tmp_path: Path,
) -> None:
    parts = await begin(tmp_path)
    assert await PopConsumer(parts).pop(start="latest") == []
    parts = await stop(parts, tmp_path)
    await parts.send(TOPIC, b"1")
    assert bodies(await PopConsumer(parts).pop(start="latest")) == [b"1"]
    await parts.end()


async def test_a_settlement_on_its_way_says_nothing_of_the_topic_that_is_made_again(
    tmp_path: Path,
) -> None:
    parts = await begin(tmp_path)
    await parts.send(TOPIC, b"1", b"2")
    consumer = PopConsumer(parts)
    got = await consumer.pop(2)
    parts.flusher.hold()
    settling = asyncio.create_task(consumer.ack_sets(lease_set(*got)))
    await asyncio.sleep(0.001)
    deleting = asyncio.create_task(parts.broker.administration.delete_topic(TOPIC))
    await asyncio.sleep(0.001)
    parts.flusher.let_go()
    await asyncio.gather(settling, deleting)
    parts.tables.topics.put(TopicConfig(TOPIC, 1, 1))
    await parts.send(TOPIC, b"new 1", b"new 2", b"new 3")
    assert bodies(await consumer.pop()) == [b"new 1", b"new 2", b"new 3"]
    await parts.end()


async def test_a_settlement_that_the_disk_does_not_take_after_a_reset_brings_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, b"1", b"2", b"3")
    consumer = PopConsumer(parts)
    got = await consumer.pop(2)
    write = parts.store.flush.write_and_sync

    def broken() -> int:
        raise StoreWriteError("no space")

    monkeypatch.setattr(parts.store.flush, "write_and_sync", broken)
    parts.flusher.hold()
    settling = asyncio.create_task(consumer.ack_sets(lease_set(*got)))
    await asyncio.sleep(0.001)
    reset = parts.broker.offset_queries.reset(GROUP, TOPIC, [0], queue_offset=3)
    moving = asyncio.create_task(reset)
    await asyncio.sleep(0.001)
    parts.flusher.let_go()
    with pytest.raises(StoreWriteError):
        await settling
    with pytest.raises(StoreWriteError):
        await moving
    await asyncio.sleep(0.01)
    monkeypatch.setattr(parts.store.flush, "write_and_sync", write)
    assert consumer.committed() == 3
    await asyncio.sleep(11)
    assert await consumer.pop() == []
    await parts.end()


@pytest.mark.parametrize("how", ["cancelled", "too slow"])
async def test_a_lease_that_the_log_lost_after_nobody_waited_any_more_loses_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, b"1", b"2", b"3", b"4")
    consumer = PopConsumer(parts)
    await consumer.ack(*await consumer.pop(1))
    parts.flusher.hold()
    write = parts.store.flush.write_and_sync

    def broken() -> int:
        raise StoreWriteError("no space")

    monkeypatch.setattr(parts.store.flush, "write_and_sync", broken)
    popping = asyncio.create_task(consumer.pop(2, invisible_ms=60_000))
    await asyncio.sleep(0.001)
    if how == "cancelled":
        popping.cancel()
    else:
        await asyncio.sleep(parts.options.sync_flush_timeout / 1000 + 1)
    assert isinstance((await asyncio.gather(popping, return_exceptions=True))[0], BaseException)
    parts.flusher.let_go()
    await asyncio.sleep(0.01)
    monkeypatch.setattr(parts.store.flush, "write_and_sync", write)
    await consumer.pop(1, invisible_ms=60_000)
    parts = await crash(parts, tmp_path / "b")
    await asyncio.sleep(61)
    assert sorted(bodies(await PopConsumer(parts).pop())) == [b"2", b"3", b"4"]
    await parts.end()


async def test_a_reset_is_answered_when_it_is_durable(tmp_path: Path) -> None:
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
    assert [one.queue_offset for one in await reset] == [1]
    parts = await crash(parts, tmp_path / "b")
    assert bodies(await PopConsumer(parts).pop()) == [b"2", b"3"]
    await parts.end()


async def test_a_classic_group_s_reset_survives_a_kill(tmp_path: Path) -> None:
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, b"1", b"2", b"3")
    await parts.broker.offset_queries.reset(GROUP, TOPIC, [0], queue_offset=2)
    parts = await crash(parts, tmp_path / "b")
    assert parts.tables.offsets.get(GROUP, TOPIC, 0) == 2
    await parts.end()


@contextmanager
def no_room(parts: Parts) -> Iterator[None]:
    """What is written meanwhile fails."""

    def full() -> int:
        raise DiskFull("no room")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts.store.flush, "write_and_sync", full)
        yield


async def test_a_reset_that_the_log_lost_is_told_again_before_what_builds_on_it(
    tmp_path: Path,
) -> None:
    """Else a start would put the leases made since behind the old cursor, and lose the rest."""
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, b"1", b"2", b"3")
    consumer = PopConsumer(parts)
    await consumer.ack(*await consumer.pop())
    with no_room(parts), pytest.raises(DiskFull):
        await parts.broker.offset_queries.reset(GROUP, TOPIC, [0], queue_offset=0)
    assert bodies(await consumer.pop(1)) == [b"1"]
    parts = await crash(parts, tmp_path / "b")
    assert bodies(await PopConsumer(parts).pop()) == [b"2", b"3"]
    await parts.end()


async def test_a_reset_that_the_log_lost_is_told_again_though_nothing_else_happens(
    tmp_path: Path,
) -> None:
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, b"1", b"2", b"3")
    consumer = PopConsumer(parts)
    await consumer.ack(*await consumer.pop())
    with no_room(parts):
        with pytest.raises(DiskFull):
            await parts.broker.offset_queries.reset(GROUP, TOPIC, [0], queue_offset=0)
        await asyncio.sleep(5)
    await asyncio.sleep(2)
    parts = await crash(parts, tmp_path / "b")
    assert bodies(await PopConsumer(parts).pop()) == [b"1", b"2", b"3"]
    await parts.end()


@pytest.mark.parametrize("what", ["reset", "topic", "group"])
async def test_what_the_log_does_not_take_is_refused_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    parts = await begin(tmp_path / "a")
    await parts.send(TOPIC, b"1", b"2", b"3")
    consumer = PopConsumer(parts)
    got = await consumer.pop(2)
    await consumer.ack(got[0])
    administration = parts.broker.administration
    ways: dict[str, Callable[[], Awaitable[object]]] = {
        "reset": lambda: parts.broker.offset_queries.reset(GROUP, TOPIC, [0], queue_offset=3),
        "topic": lambda: administration.delete_topic(TOPIC),
        "group": lambda: administration.delete_group(GROUP, remove_offsets=True),
    }
    doing = ways[what]
    monkeypatch.setattr(parts.store._retention, "stop", "the disk is at its stop mark")
    with pytest.raises(DiskFull):
        await doing()
    monkeypatch.setattr(parts.store._retention, "stop", "")
    assert consumer.committed() == 1
    assert await parts.bodies(TOPIC) == [b"1", b"2", b"3"]
    assert parts.tables.groups.get(GROUP) is not None
    assert await consumer.ack(got[1]) == [Code.SUCCESS]
    assert await doing()
    await parts.end()
