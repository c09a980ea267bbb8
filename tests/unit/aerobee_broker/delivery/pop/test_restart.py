"""Leases after a clean stop and after a crash: a copy of the store, opened again."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from aerobee_broker.delivery.pop import lease_journal, lease_space, selector
from aerobee_broker.delivery.pull.offsets import QueueOffset
from aerobee_broker.delivery.pull.reading import PullRequest
from aerobee_broker.filter.filter import compile_filter
from aerobee_wire import properties as props
from aerobee_wire.checked_json import decode
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.status import Code
from support.broker.harness import BrokerHarness
from support.broker.pop_consumer import GROUP, TOPIC, PopConsumer, attempts, bodies, deliveries
from support.broker.pop_restarts import begin, copy_store, crash, restart, start_over


@pytest.mark.parametrize("how", ["crash", "stop"])
async def test_leases_and_settlements_survive(consumer: PopConsumer, how: str) -> None:
    await consumer.put(*(b"%d" % number for number in range(6)))
    got = await consumer.pop(5, invisible_ms=20_000)
    await consumer.ack(got[0], got[2])
    await consumer.change(got[4], 60_000)
    await asyncio.sleep(5)
    await (crash(consumer) if how == "crash" else restart(consumer))
    assert consumer.committed() == 1
    assert bodies(await consumer.pop(invisible_ms=60_000)) == [b"5"]
    assert await consumer.ack(got[0], got[1], got[2]) == [Code.SUCCESS] * 3
    await asyncio.sleep(14.9)
    assert await consumer.pop() == [], "15 s of the lease were left"
    await asyncio.sleep(0.2)
    assert deliveries(await consumer.pop()) == [(b"3", 2)]
    assert await consumer.ack(got[4]) == [Code.SUCCESS]


async def test_leases_are_restored_in_slices(
    consumer: PopConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that is blocked for seconds renews no lease of a replica at etcd."""
    for where, constant in (lease_space, "SLICE"), (selector, "SLICE_RECORDS"):
        monkeypatch.setattr(where, constant, 2)
    monkeypatch.setattr(lease_journal, "SLICE_RECORDS", 1)
    await consumer.put(
        *(b"%d" % number for number in range(6)), properties={props.SHARDING_KEY: "g"}
    )
    for _ in range(3):
        await consumer.pop(2, fifo=True)
    await crash(consumer)
    restored = consumer.harness.broker.consuming.leases.restore_slices()
    assert len(list(restored)) >= 3


async def test_a_lease_that_expired_meanwhile_is_redelivered(consumer: PopConsumer) -> None:
    await consumer.put(b"1")
    await consumer.pop()
    copy = copy_store(consumer.harness)
    await asyncio.sleep(60)
    await start_over(consumer, copy)
    await asyncio.sleep(0.01)
    assert attempts(await consumer.pop()) == [2]


async def test_attempts_are_counted_across_crashes(consumer: PopConsumer) -> None:
    await consumer.harness.group(GROUP, retry_max_times=3)
    await consumer.put(b"1")
    counted = []
    for _ in range(4):
        counted += attempts(await consumer.pop(poll_ms=30_000))
        await crash(consumer)
    assert counted == [1, 2, 3, 4]
    assert await consumer.pop(poll_ms=30_000) == []
    assert len(await consumer.harness.read(f"%DLQ%{GROUP}")) == 1


async def test_the_journal_alone_is_enough(harness: BrokerHarness, consumer: PopConsumer) -> None:
    await consumer.put(b"1", b"2", b"3")
    got = await consumer.pop()
    await consumer.ack(got[1])
    copy = copy_store(harness)
    for name in ("popLeases.json", "popLeases.json.bak", "consumerOffset.json"):
        (copy / "store" / "config" / name).unlink(missing_ok=True)
    await start_over(consumer, copy)
    await asyncio.sleep(11)
    assert bodies(await consumer.pop()) == [b"1", b"3"]


async def test_records_before_the_snapshot_are_not_applied(consumer: PopConsumer) -> None:
    await consumer.put(*[b"x"] * 50)
    for _ in range(50):
        await consumer.ack(*await consumer.pop(1))
    await restart(consumer)
    saved = decode((consumer.harness.store.path / "config" / "popLeases.json").read_bytes())
    assert saved["position"] == 100
    assert consumer.harness.broker.consuming.leases.table.loaded_position == 100
    assert consumer.committed() == 50


async def test_records_that_the_snapshot_has_may_be_applied_again(consumer: PopConsumer) -> None:
    """A snapshot may hold more than its position says."""
    await consumer.put(b"1", b"2", b"3")
    got = await consumer.pop()
    await consumer.ack(got[0])
    await consumer.change(got[1], 30_000, uncounted=True)
    await consumer.harness.broker.consuming.leases.journal.save_snapshot()
    copy = copy_store(consumer.harness)
    file = copy / "store" / "config" / "popLeases.json"
    file.write_text(json.dumps({**decode(file.read_bytes()), "position": 0}))
    await start_over(consumer, copy)
    assert consumer.committed() == 1
    await asyncio.sleep(31)
    assert sorted(deliveries(await consumer.pop())) == [(b"2", 1), (b"3", 2)]


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_a_snapshot_waits_until_the_log_is_flushed(tmp_path: Path, flush: str) -> None:
    """Else a power cut could lose a dead letter and keep its message settled."""
    harness = await begin(tmp_path, flushDiskType=flush)
    await harness.send(TOPIC, b"1")
    consumer = PopConsumer(harness)
    (got,) = await consumer.pop(poll_ms=1_000)
    await harness.broker.consuming.leases.journal.save_snapshot()
    file = tmp_path / "store" / "config" / "popLeases.json"
    before = file.read_bytes()
    harness.flusher.hold()
    dead_lettering = asyncio.create_task(consumer.dead_letter(got))
    await asyncio.sleep(0.001)
    saving = asyncio.create_task(harness.broker.consuming.leases.journal.save_snapshot())
    await asyncio.sleep(1)
    assert dead_lettering.done() is (flush == "ASYNC_FLUSH")
    assert not saving.done() and file.read_bytes() == before
    harness.flusher.let_go()
    await saving
    assert await dead_lettering is Code.SUCCESS and file.read_bytes() != before
    await harness.end()


async def test_a_group_begins_at_the_end_only_once(consumer: PopConsumer) -> None:
    await consumer.put(b"old")
    assert await consumer.pop(start="latest") == []
    await consumer.put(b"new")
    await crash(consumer)
    assert bodies(await consumer.pop(start="latest")) == [b"new"]


async def test_a_group_that_began_in_an_empty_topic_stays_there(consumer: PopConsumer) -> None:
    assert await consumer.pop(start="latest") == []
    await restart(consumer)
    await consumer.put(b"1")
    assert bodies(await consumer.pop(start="latest")) == [b"1"]


async def test_the_order_of_message_groups_survives(consumer: PopConsumer) -> None:
    await consumer.harness.group(GROUP, consume_order=ConsumeOrder.ON)
    for body in (b"a1", b"a2", b"b1", b"a3"):
        await consumer.put(body, properties={props.SHARDING_KEY: body[:1].decode()})
    got = await consumer.pop(2, fifo=True)
    await consumer.ack(got[1])
    await crash(consumer)
    assert bodies(await consumer.pop(fifo=True)) == [b"b1"]
    assert await consumer.ack(got[0]) == [Code.SUCCESS]
    assert bodies(await consumer.pop(fifo=True)) == [b"a3"]


async def test_a_message_waiting_in_its_message_group_survives(consumer: PopConsumer) -> None:
    await consumer.harness.group(GROUP, consume_order=ConsumeOrder.ON)
    for body in (b"a1", b"a2", b"b1"):
        await consumer.put(body, properties={props.SHARDING_KEY: body[:1].decode()})
    got = await consumer.pop(1, fifo=True)
    assert bodies(await consumer.pop(1, fifo=True)) == [b"b1"]
    await crash(consumer)
    assert await consumer.pop(fifo=True) == []
    await consumer.ack(*got)
    assert bodies(await consumer.pop(fifo=True)) == [b"a2"]


async def test_acks_of_an_expired_lease_stay_void(consumer: PopConsumer) -> None:
    """Lease expiry is not journalled, nor that it voids the acks of the lease."""
    await consumer.harness.group(GROUP, consume_order=ConsumeOrder.ON)
    for body in (b"a1", b"a2"):
        await consumer.put(body, properties={props.SHARDING_KEY: "a"})
    got = await consumer.pop(2, fifo=True, invisible_ms=1_000)
    await consumer.ack(got[1])
    await asyncio.sleep(1.1)
    [again] = await consumer.pop(1, fifo=True, invisible_ms=60_000)
    assert again.body == b"a1"
    await crash(consumer)
    assert await consumer.ack(again) == [Code.SUCCESS]
    assert bodies(await consumer.pop(fifo=True)) == [b"a2"]


async def test_an_uncounted_delivery_may_be_counted_later(consumer: PopConsumer) -> None:
    await consumer.put(b"1")
    (got,) = await consumer.pop()
    await consumer.change(got, 5_000, uncounted=True)
    await restart(consumer)
    await consumer.change(got, 0)
    await asyncio.sleep(0.01)
    assert attempts(await consumer.pop()) == [2]


@pytest.mark.parametrize("how", ["update", "pull"])
@pytest.mark.parametrize("left", ["nothing", "a message that was not acknowledged"])
@pytest.mark.parametrize("after", [crash, restart])
async def test_a_group_that_pulls_now_keeps_its_offset(
    consumer: PopConsumer,
    after: Callable[[PopConsumer], Awaitable[BrokerHarness]],
    left: str,
    how: str,
) -> None:
    """Its leases are those of an earlier kind of members."""
    await consumer.put(b"1", b"2")
    got = await consumer.pop()
    await consumer.ack(*(got if left == "nothing" else got[:1]))
    await asyncio.sleep(11)
    await consumer.put(b"3", b"4", b"5")
    await pulled_to(consumer, 4, how)
    await consumer.harness.broker.save_tables()
    await after(consumer)
    assert consumer.committed() == 4
    assert bodies(await consumer.pop()) == [b"5"]


async def test_tables_that_are_newer_than_the_log_hide_no_message(consumer: PopConsumer) -> None:
    """The files of the log were copied earlier than those of the tables, while the broker ran."""
    await consumer.harness.group("pulls")
    await consumer.put(b"1", b"2")
    copy = copy_store(consumer.harness)
    await consumer.put(b"3", b"4", b"5")
    got = await consumer.pop(invisible_ms=20_000)
    await consumer.ack(*got[:1], *got[2:])
    consumer.harness.broker.consuming.offset_queries.update("pulls", [QueueOffset(TOPIC, 0, 5)])
    await consumer.harness.broker.save_tables()
    await consumer.harness.end()
    shutil.rmtree(copy / "store" / "config")
    shutil.copytree(consumer.harness.store.path / "config", copy / "store" / "config")
    harness = await start_over(consumer, copy)
    assert harness.tables.offsets.get("pulls", TOPIC, 0) == 2
    await consumer.put(b"new 3", b"new 4", b"new 5", b"new 6")
    assert bodies(await consumer.pop()) == [b"new 3", b"new 4", b"new 5", b"new 6"]
    await asyncio.sleep(21)
    assert deliveries(await consumer.pop()) == [
        (b"2", 2),
        *((b"new %d" % number, 2) for number in range(3, 7)),
    ]


async def test_a_pop_continues_where_members_that_pull_have_committed(
    consumer: PopConsumer,
) -> None:
    await consumer.put(b"1", b"2", b"3")
    await consumer.ack(*await consumer.pop(1))
    await pulled_to(consumer, 2)
    (got,) = await consumer.pop()
    assert got.body == b"3"
    await crash(consumer)
    await asyncio.sleep(11)
    assert bodies(await consumer.pop()) == [b"3"]


async def test_a_message_on_lease_stays_so_when_a_member_pulls(consumer: PopConsumer) -> None:
    await consumer.put(b"1", b"2", b"3")
    got = await consumer.pop(1)
    await pulled_to(consumer, 3)
    assert await consumer.ack(*got) == [Code.SUCCESS]
    assert bodies(await consumer.pop()) == [b"2", b"3"]


async def test_an_offset_before_the_last_pop_repeats_no_message_of_it(
    consumer: PopConsumer,
) -> None:
    await consumer.put(b"1", b"2")
    await consumer.ack(*await consumer.pop())
    await pulled_to(consumer, 1)
    assert await consumer.pop() == []


async def pulled_to(consumer: PopConsumer, offset: int, how: str = "update") -> None:
    """A member of the group that pulls commits this offset in queue 0."""
    consuming = consumer.harness.broker.consuming
    if how == "update":
        assert consuming.offset_queries.update(GROUP, [QueueOffset(TOPIC, 0, offset)]) == []
        return
    every = compile_filter("TAG", "*")
    request = PullRequest(GROUP, TOPIC, 0, offset, filter=every, commit_offset=offset)
    await consuming.pull.pull(request)
