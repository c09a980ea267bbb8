"""Delivery of delay levels: never early, in order, each once, and after a restart."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path

import pytest

from aerobee_broker.delivery.retry.send_back import Entry
from aerobee_broker.errors import StoreReadError
from aerobee_broker.store.messages import Unit
from aerobee_wire import topics as names
from support.broker.delayed import SMALL_FILES, clean, delayed, fill, lose
from support.broker.harness import BrokerHarness, message
from support.clock.virtual_loop import LoopClock
from support.disk.broken_disk import BrokenDisk


async def test_a_message_is_delivered_when_due_and_never_before(harness: BrokerHarness) -> None:
    await delayed(harness, b"a", 3)
    await asyncio.sleep(9.999)
    assert await harness.bodies("t") == []
    await asyncio.sleep(0.002)
    record = (await harness.read("t"))[0]
    assert record.body == b"a"
    assert record.store_timestamp_ms - record.born_timestamp_ms == 10_000


async def test_delay_levels_do_not_wait_for_each_other(harness: BrokerHarness) -> None:
    for body, level in ((b"2h", 18), (b"10s", 3), (b"1s", 1), (b"5s", 2)):
        await delayed(harness, body, level)
    await asyncio.sleep(11)
    assert await harness.bodies("t") == [b"1s", b"5s", b"10s"]
    assert harness.broker.level_delivery.undelivered() == {"level 18 (7200 s)": 1}
    await asyncio.sleep(7_200)
    assert (await harness.bodies("t"))[-1] == b"2h"
    assert harness.broker.level_delivery.undelivered() == {}


async def test_a_level_above_the_last_is_the_last(harness: BrokerHarness) -> None:
    await delayed(harness, b"a", 99)
    assert harness.broker.level_delivery.undelivered() == {"level 18 (7200 s)": 1}


async def test_messages_of_a_level_are_delivered_in_order(harness: BrokerHarness) -> None:
    bodies = [b"%d" % number for number in range(600)]
    await harness.broker.sender.send(
        [message("t", body, properties={"DELAY": "1"}) for body in bodies]
    )
    await asyncio.sleep(1.1)
    assert await harness.bodies("t") == bodies


async def test_the_delivered_copy_has_the_fields_of_the_message(harness: BrokerHarness) -> None:
    await harness.broker.sender.send(
        [
            message(
                "t",
                b"x",
                3,
                properties={"DELAY": "1", "TAGS": "a", "KEYS": "k", "UNIQ_KEY": "U"},
                flag=9,
                sys_flag=1,
                born_timestamp_ms=55,
            )
        ]
    )
    await asyncio.sleep(2)
    record = (await harness.read("t", 3))[0]
    assert (record.queue_id, record.flag, record.sys_flag & 1) == (3, 9, 1)
    assert (record.born_timestamp_ms, record.born_host) == (55, "10.0.0.7:4711")
    assert (record.unique_message_id, record.properties["TAGS"]) == ("U", "a")
    assert not {"REAL_TOPIC", "REAL_QID", "RETRY_DELAY_MS"} & record.properties.keys()


async def test_progress_advances_when_the_copies_are_durable(harness: BrokerHarness) -> None:
    await delayed(harness, b"a", 1)
    harness.flusher.hold()
    await asyncio.sleep(3)
    assert harness.tables.delay_offsets.get(0) == 0
    harness.flusher.let_go()
    await asyncio.sleep(0.1)
    assert harness.tables.delay_offsets.get(0) == 1


async def test_progress_of_a_lost_log_skips_no_message(tmp_path: Path) -> None:
    """The log was lost, or its end was damaged; delayOffset.json is as it was."""
    first = await BrokerHarness.begin(tmp_path)
    for _ in range(3):
        await delayed(first, b"a", 1)
    await asyncio.sleep(2)
    await first.end()
    lose(tmp_path / "store", "commitlog", "consumequeue", "index", "checkpoint")
    second = await BrokerHarness.begin(tmp_path, clock=first.clock)
    await delayed(second, b"b", 1)
    await asyncio.sleep(0.5)
    assert second.broker.level_delivery.undelivered() == {"level 1 (1 s)": 1}
    await second.end()
    third = await BrokerHarness.begin(tmp_path, clock=first.clock)
    await asyncio.sleep(2)
    assert await third.bodies("t") == [b"b"]
    await third.end()


async def test_delivery_goes_on_after_a_stop_and_repeats_nothing(tmp_path: Path) -> None:
    clock = LoopClock()
    first = await BrokerHarness.begin(tmp_path, clock=clock)
    await delayed(first, b"done", 1)
    await asyncio.sleep(2)
    await delayed(first, b"waiting", 3)
    await first.end()
    second = await BrokerHarness.begin(tmp_path, clock=clock)
    await asyncio.sleep(11)
    assert await second.bodies("t") == [b"done", b"waiting"]
    await second.end()


async def test_delivery_repeats_nothing_after_a_crash(tmp_path: Path) -> None:
    """The progress records are in the log with the copies; there is no delayOffset.json."""
    clock = LoopClock()
    first = await BrokerHarness.begin(tmp_path / "live", clock=clock)
    for body in (b"a", b"b"):
        await delayed(first, body, 1)
        await delayed(first, body, 2)
        await asyncio.sleep(0.5)
    await asyncio.sleep(2)
    # A kill here, between the deliveries of the two levels.
    shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    await first.end()
    assert not (tmp_path / "crashed" / "store" / "config" / "delayOffset.json").exists()
    second = await BrokerHarness.begin(tmp_path / "crashed", clock=clock)
    await asyncio.sleep(10)
    assert await second.bodies("t") == [b"a", b"b", b"a", b"b"]
    await second.end()


async def test_damaged_progress_falls_back_to_the_record_before(tmp_path: Path) -> None:
    clock = LoopClock()
    first = await BrokerHarness.begin(tmp_path, clock=clock)
    for body in (b"a", b"b"):
        await delayed(first, body, 1)
        await asyncio.sleep(2)
    await first.end()
    (tmp_path / "store" / "config" / "delayOffset.json").unlink()
    log = tmp_path / "store" / "commitlog" / ("0" * 20)
    data = log.read_bytes()
    assert data.count(b'{"0":2}') == 1
    log.write_bytes(data.replace(b'{"0":2}', b'{"0":9}'))
    second = await BrokerHarness.begin(tmp_path, clock=clock)
    await asyncio.sleep(2)
    assert await second.bodies("t") == [b"a", b"b", b"b"], "b is delivered twice, not lost"
    await second.end()


async def test_with_asynchronous_flush_progress_waits_for_the_disk(tmp_path: Path) -> None:
    harness = await BrokerHarness.begin(tmp_path, flushDiskType="ASYNC_FLUSH")
    await delayed(harness, b"a", 1)
    await asyncio.sleep(0.9)
    harness.flusher.hold()
    await asyncio.sleep(3)
    assert harness.tables.delay_offsets.get(0) == 0
    harness.flusher.let_go()
    await asyncio.sleep(0.1)
    assert harness.tables.delay_offsets.get(0) == 1
    assert await harness.bodies("t") == [b"a"]
    await harness.end()


async def test_own_delays_of_queues_are_restored_from_the_log_alone(
    tmp_path: Path,
) -> None:
    clock = LoopClock()
    first = await BrokerHarness.begin(tmp_path, clock=clock)
    await first.group("g", retry_delays_ms=(250, 90_000))
    stored = await first.send("t", b"a")
    for _ in range(2):
        await first.broker.send_back.send_back("g", [Entry(stored[0].physical_offset)])
    record = (await first.read("%RETRY%g")) or []
    await asyncio.sleep(0.3)
    record = await first.read("%RETRY%g")
    await first.broker.send_back.send_back("g", [Entry(record[0].physical_offset)])
    await first.end()
    lose(tmp_path / "store", "consumequeue", "config", "checkpoint")
    second = await BrokerHarness.begin(tmp_path, clock=clock)
    assert second.broker.delay_queues.delay_of(18) == 250
    assert second.broker.delay_queues.delay_of(19) == 90_000
    await asyncio.sleep(89)
    assert second.broker.level_delivery.undelivered() == {"90 s": 1}
    await asyncio.sleep(2)
    assert second.broker.level_delivery.undelivered() == {}
    await second.end()


async def test_a_clock_set_back_adds_one_delay_at_most(tmp_path: Path) -> None:
    clock = LoopClock()
    harness = await BrokerHarness.begin(tmp_path, clock=clock)
    await delayed(harness, b"a", 3)
    clock.jump(-3_600_000)
    await asyncio.sleep(9.9)
    assert await harness.bodies("t") == []
    await asyncio.sleep(10)
    assert await harness.bodies("t") == [b"a"]
    await harness.end()


async def test_a_full_disk_delays_and_loses_no_message(tmp_path: Path) -> None:
    disk = BrokenDisk()
    harness = await BrokerHarness.begin(tmp_path, disk=disk)
    await delayed(harness, b"a", 1)
    disk.write_error = errno.ENOSPC
    await asyncio.sleep(5)
    assert await harness.bodies("t") == []
    disk.write_error = 0
    await asyncio.sleep(10)
    assert await harness.bodies("t") == [b"a"]
    await harness.end()


async def test_a_damaged_message_is_skipped_and_counted(tmp_path: Path) -> None:
    clock = LoopClock()
    first = await BrokerHarness.begin(tmp_path, clock=clock)
    await delayed(first, b"a" * 100, 3)
    await delayed(first, b"b", 3)
    await first.end()
    log = tmp_path / "store" / "commitlog" / ("0" * 20)
    data = log.read_bytes()
    log.write_bytes(data.replace(b"a" * 100, b"a" * 99 + b"x", 1))
    second = await BrokerHarness.begin(tmp_path, clock=clock)
    await asyncio.sleep(11)
    assert await second.bodies("t") == [b"b"]
    assert second.metrics.corrupted_records == 1
    await second.end()


async def test_retention_keeps_the_files_of_waiting_messages(tmp_path: Path) -> None:
    """A delayed message and a retry: both lie in the first file until they are delivered."""
    harness = await BrokerHarness.begin(tmp_path, **SMALL_FILES)
    await harness.group("g", retry_delays_ms=(90_000,))
    failed = (await harness.send("t", b"again"))[0]
    await harness.broker.send_back.send_back("g", [Entry(failed.physical_offset)])
    later = await delayed(harness, b"later", 9)  # 5 min
    await fill(harness)
    assert later.physical_offset < 65_536
    assert await clean(harness) == 0
    await asyncio.sleep(91)
    assert [record.body for record in await harness.read("%RETRY%g")] == [b"again"]
    assert await clean(harness) == 0, "the delayed message waits"
    await asyncio.sleep(210)
    assert (await harness.read("t", queue_offset=1))[0].body == b"later"
    assert await clean(harness) > later.physical_offset
    await harness.end()


async def test_retention_keeps_waiting_messages_after_a_restart(tmp_path: Path) -> None:
    clock = LoopClock()
    first = await BrokerHarness.begin(tmp_path, clock=clock, **SMALL_FILES)
    await delayed(first, b"done", 1)
    await asyncio.sleep(2)
    await fill(first)
    await delayed(first, b"waits", 9)
    await fill(first)
    await first.end()
    second = await BrokerHarness.begin(tmp_path, clock=clock, **SMALL_FILES)
    begin = await clean(second)
    assert begin > 65_536, "a delivered message keeps no file"
    assert await clean(second) == begin
    await asyncio.sleep(300)
    assert (await second.read("t", queue_offset=1))[0].body == b"waits"
    assert await clean(second) > begin
    await second.end()


async def test_an_unreadable_queue_is_tried_again_and_loses_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = await BrokerHarness.begin(tmp_path, **SMALL_FILES)
    await harness.send("other", b"x")
    units = harness.store.units

    def broken(topic: str, *rest: int) -> list[Unit]:
        if topic == names.SCHEDULE_TOPIC:
            raise StoreReadError(OSError(errno.EIO, "injected"))
        return units(topic, *rest)

    monkeypatch.setattr(harness.store, "units", broken)
    await delayed(harness, b"a", 1)
    await fill(harness)
    assert await clean(harness) == 0
    assert harness.store.disk_full_reason == ""
    monkeypatch.setattr(harness.store, "units", units)
    await asyncio.sleep(10)
    assert await harness.bodies("t") == [b"a"]
    assert await clean(harness) > 0
    await harness.end()


async def test_the_message_behind_a_lost_one_is_not_early(tmp_path: Path) -> None:
    """The unit of a lost record has the physical offset of the next record."""
    first = await BrokerHarness.begin(tmp_path)
    await delayed(first, b"before", 5)
    await delayed(first, b"lost" * 100, 5)
    await delayed(first, b"next", 5)
    place, size, _ = first.store.units(names.SCHEDULE_TOPIC, 4, 1, 1)[0]
    await first.end()
    log = tmp_path / "store" / "commitlog" / ("0" * 20)
    data = bytearray(log.read_bytes())
    data[place : place + size] = bytes(size)
    log.write_bytes(data)
    lose(tmp_path / "store", "consumequeue", "index", "checkpoint")
    second = await BrokerHarness.begin(tmp_path, clock=first.clock)
    await asyncio.sleep(59)
    assert await second.bodies("t") == []
    await asyncio.sleep(2)
    assert await second.bodies("t") == [b"before", b"next"]
    await second.end()


# The last case: none of the records that restore reads back can be read.
@pytest.mark.parametrize(("sent", "damaged"), [(3, 1), (3, 2), (20, 19)])
async def test_a_queue_with_damaged_newest_messages_is_not_early(
    tmp_path: Path, sent: int, damaged: int
) -> None:
    first = await BrokerHarness.begin(tmp_path)
    await first.group("g", retry_delays_ms=(90_000,))
    stored = [(await first.send("t", b"%d" % n * 50))[0] for n in range(sent)]
    for each in stored:
        await first.broker.send_back.send_back("g", [Entry(each.physical_offset)])
    units = first.store.units(names.SCHEDULE_TOPIC, 18, 0, sent)
    await first.end()
    log = tmp_path / "store" / "commitlog" / ("0" * 20)
    data = bytearray(log.read_bytes())
    for place, size, _ in units[-damaged:]:
        data[place + size - 60] ^= 1
    log.write_bytes(data)
    second = await BrokerHarness.begin(tmp_path, clock=first.clock)
    # Another delay is not given the queue meanwhile.
    await second.group("h", retry_delays_ms=(2_000,))
    await second.broker.send_back.send_back("h", [Entry(stored[0].physical_offset)])
    await asyncio.sleep(85)
    assert await second.bodies("%RETRY%g") == []
    assert await second.bodies("%RETRY%h") == [b"0" * 50]
    await asyncio.sleep(6)
    assert len(await second.bodies("%RETRY%g")) == sent - damaged
    await second.end()
