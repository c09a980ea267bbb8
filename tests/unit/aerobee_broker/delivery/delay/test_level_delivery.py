"""Delivery of delayed messages: never early, in order, each once, and on after a restart."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aerobee_broker.delivery.retry.send_back import Entry
from aerobee_broker.disk import RealDisk, RealFile
from aerobee_broker.errors import StoreReadError
from aerobee_broker.store.messages import Unit
from aerobee_wire import topics as names
from support.broker.delayed import SMALL_FILES, clean, delayed, fill, lose
from support.broker.harness import Parts, message
from support.clock.virtual_loop import LoopClock


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    parts = await Parts.begin(tmp_path)
    yield parts
    await parts.end()


async def test_a_message_comes_at_its_time_and_not_a_millisecond_before(parts: Parts) -> None:
    await delayed(parts, b"a", 3)
    await asyncio.sleep(9.999)
    assert await parts.bodies("t") == []
    await asyncio.sleep(0.002)
    record = (await parts.read("t"))[0]
    assert record.body == b"a"
    assert record.store_timestamp_ms - record.born_timestamp_ms == 10_000


async def test_levels_do_not_wait_for_one_another(parts: Parts) -> None:
    for body, level in ((b"2h", 18), (b"10s", 3), (b"1s", 1), (b"5s", 2)):
        await delayed(parts, body, level)
    await asyncio.sleep(11)
    assert await parts.bodies("t") == [b"1s", b"5s", b"10s"]
    assert parts.broker.level_delivery.undelivered() == {"level 18 (7200 s)": 1}
    await asyncio.sleep(7_200)
    assert (await parts.bodies("t"))[-1] == b"2h"
    assert parts.broker.level_delivery.undelivered() == {}


async def test_a_level_beyond_the_last_is_the_last(parts: Parts) -> None:
    await delayed(parts, b"a", 99)
    assert parts.broker.level_delivery.undelivered() == {"level 18 (7200 s)": 1}


async def test_messages_of_a_level_come_in_their_order(parts: Parts) -> None:
    bodies = [b"%d" % number for number in range(600)]
    await parts.broker.sender.send([message("t", one, properties={"DELAY": "1"}) for one in bodies])
    await asyncio.sleep(1.1)
    assert await parts.bodies("t") == bodies


async def test_the_copy_is_the_message(parts: Parts) -> None:
    await parts.broker.sender.send(
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
    record = (await parts.read("t", 3))[0]
    assert (record.queue_id, record.flag, record.sys_flag & 1) == (3, 9, 1)
    assert (record.born_timestamp_ms, record.born_host) == (55, "10.0.0.7:4711")
    assert (record.unique_message_id, record.properties["TAGS"]) == ("U", "a")
    assert not {"REAL_TOPIC", "REAL_QID", "RETRY_DELAY_MS"} & record.properties.keys()


async def test_progress_counts_only_once_the_copies_are_durable(parts: Parts) -> None:
    await delayed(parts, b"a", 1)
    parts.flusher.hold()
    await asyncio.sleep(3)
    assert parts.tables.delay_offsets.get(0) == 0
    parts.flusher.let_go()
    await asyncio.sleep(0.1)
    assert parts.tables.delay_offsets.get(0) == 1


async def test_progress_of_a_log_that_went_further_skips_nothing(tmp_path: Path) -> None:
    """The log was lost, or its end was damaged; delayOffset.json was not."""
    first = await Parts.begin(tmp_path)
    for _ in range(3):
        await delayed(first, b"a", 1)
    await asyncio.sleep(2)
    await first.end()
    lose(tmp_path / "store", "commitlog", "consumequeue", "index", "checkpoint")
    second = await Parts.begin(tmp_path, clock=first.clock)
    await delayed(second, b"b", 1)
    await asyncio.sleep(0.5)
    assert second.broker.level_delivery.undelivered() == {"level 1 (1 s)": 1}
    await second.end()
    third = await Parts.begin(tmp_path, clock=first.clock)
    await asyncio.sleep(2)
    assert await third.bodies("t") == [b"b"]
    await third.end()


async def test_after_a_clean_stop_delivery_goes_on_and_repeats_nothing(tmp_path: Path) -> None:
    clock = LoopClock()
    first = await Parts.begin(tmp_path, clock=clock)
    await delayed(first, b"done", 1)
    await asyncio.sleep(2)
    await delayed(first, b"waiting", 3)
    await first.end()
    second = await Parts.begin(tmp_path, clock=clock)
    await asyncio.sleep(11)
    assert await second.bodies("t") == [b"done", b"waiting"]
    await second.end()


async def test_after_a_crash_nothing_comes_twice(tmp_path: Path) -> None:
    """The progress is in the log with the copies; delayOffset.json is long out of date."""
    clock = LoopClock()
    first = await Parts.begin(tmp_path / "live", clock=clock)
    for body in (b"a", b"b"):
        await delayed(first, body, 1)
        await delayed(first, body, 2)
        await asyncio.sleep(0.5)
    await asyncio.sleep(2)
    # As if killed here, between the deliveries of the two levels.
    shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    await first.end()
    assert not (tmp_path / "crashed" / "store" / "config" / "delayOffset.json").exists()
    second = await Parts.begin(tmp_path / "crashed", clock=clock)
    await asyncio.sleep(10)
    assert await second.bodies("t") == [b"a", b"b", b"a", b"b"]
    await second.end()


async def test_a_damaged_record_of_progress_gives_way_to_the_one_before(tmp_path: Path) -> None:
    clock = LoopClock()
    first = await Parts.begin(tmp_path, clock=clock)
    for body in (b"a", b"b"):
        await delayed(first, body, 1)
        await asyncio.sleep(2)
    await first.end()
    (tmp_path / "store" / "config" / "delayOffset.json").unlink()
    log = tmp_path / "store" / "commitlog" / ("0" * 20)
    data = log.read_bytes()
    assert data.count(b'{"0":2}') == 1
    log.write_bytes(data.replace(b'{"0":2}', b'{"0":9}'))
    second = await Parts.begin(tmp_path, clock=clock)
    await asyncio.sleep(2)
    assert await second.bodies("t") == [b"a", b"b", b"b"], "twice rather than not at all"
    await second.end()


async def test_with_asynchronous_flush_progress_waits_for_the_disk_too(tmp_path: Path) -> None:
    parts = await Parts.begin(tmp_path, flushDiskType="ASYNC_FLUSH")
    await delayed(parts, b"a", 1)
    await asyncio.sleep(0.9)
    parts.flusher.hold()
    await asyncio.sleep(3)
    assert parts.tables.delay_offsets.get(0) == 0
    parts.flusher.let_go()
    await asyncio.sleep(0.1)
    assert parts.tables.delay_offsets.get(0) == 1
    assert await parts.bodies("t") == [b"a"]
    await parts.end()


async def test_queues_of_own_delays_are_found_again_without_any_file_but_the_log(
    tmp_path: Path,
) -> None:
    clock = LoopClock()
    first = await Parts.begin(tmp_path, clock=clock)
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
    second = await Parts.begin(tmp_path, clock=clock)
    assert second.broker.delays.delay_of(18) == 250
    assert second.broker.delays.delay_of(19) == 90_000
    await asyncio.sleep(89)
    assert second.broker.level_delivery.undelivered() == {"90 s": 1}
    await asyncio.sleep(2)
    assert second.broker.level_delivery.undelivered() == {}
    await second.end()


async def test_a_clock_that_was_set_back_delays_by_one_delay_at_most(tmp_path: Path) -> None:
    clock = LoopClock()
    parts = await Parts.begin(tmp_path, clock=clock)
    await delayed(parts, b"a", 3)
    clock.jump(-3_600_000)
    await asyncio.sleep(9.9)
    assert await parts.bodies("t") == []
    await asyncio.sleep(10)
    assert await parts.bodies("t") == [b"a"]
    await parts.end()


class FullDisk(RealDisk):
    """Takes no more commit log while `full`."""

    full = False

    def open(self, path: Path, *, create: bool = False) -> RealFile:
        disk = self

        class File(RealFile):
            __slots__ = ()

            def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
                if disk.full and "commitlog" in str(self.path):
                    raise OSError(errno.ENOSPC, "injected")
                super().pwrite(data, offset)

        file = super().open(path, create=create)
        return File(file.path, file._fd)


async def test_a_full_disk_delays_and_loses_nothing(tmp_path: Path) -> None:
    disk = FullDisk()
    parts = await Parts.begin(tmp_path, disk=disk)
    await delayed(parts, b"a", 1)
    disk.full = True
    await asyncio.sleep(5)
    assert await parts.bodies("t") == []
    disk.full = False
    await asyncio.sleep(10)
    assert await parts.bodies("t") == [b"a"]
    await parts.end()


async def test_a_damaged_message_is_counted_and_holds_up_nothing(tmp_path: Path) -> None:
    clock = LoopClock()
    first = await Parts.begin(tmp_path, clock=clock)
    await delayed(first, b"a" * 100, 3)
    await delayed(first, b"b", 3)
    await first.end()
    log = tmp_path / "store" / "commitlog" / ("0" * 20)
    data = log.read_bytes()
    log.write_bytes(data.replace(b"a" * 100, b"a" * 99 + b"x", 1))
    second = await Parts.begin(tmp_path, clock=clock)
    await asyncio.sleep(11)
    assert await second.bodies("t") == [b"b"]
    assert second.meters.corrupted_records == 1
    await second.end()


async def test_retention_leaves_what_waits(tmp_path: Path) -> None:
    """A message of a level and a retry: both lie in the first file until they are delivered."""
    parts = await Parts.begin(tmp_path, **SMALL_FILES)
    await parts.group("g", retry_delays_ms=(90_000,))
    failed = (await parts.send("t", b"again"))[0]
    await parts.broker.send_back.send_back("g", [Entry(failed.physical_offset)])
    later = await delayed(parts, b"later", 9)  # 5 min
    await fill(parts)
    assert later.physical_offset < 65_536
    assert await clean(parts) == 0
    await asyncio.sleep(91)
    assert [one.body for one in await parts.read("%RETRY%g")] == [b"again"]
    assert await clean(parts) == 0, "the other one waits"
    await asyncio.sleep(210)
    assert (await parts.read("t", queue_offset=1))[0].body == b"later"
    assert await clean(parts) > later.physical_offset
    await parts.end()


async def test_after_a_restart_too_retention_leaves_what_waits(tmp_path: Path) -> None:
    clock = LoopClock()
    first = await Parts.begin(tmp_path, clock=clock, **SMALL_FILES)
    await delayed(first, b"done", 1)
    await asyncio.sleep(2)
    await fill(first)
    await delayed(first, b"waits", 9)
    await fill(first)
    await first.end()
    second = await Parts.begin(tmp_path, clock=clock, **SMALL_FILES)
    begin = await clean(second)
    assert begin > 65_536, "what was delivered keeps no file"
    assert await clean(second) == begin
    await asyncio.sleep(300)
    assert (await second.read("t", queue_offset=1))[0].body == b"waits"
    assert await clean(second) > begin
    await second.end()


async def test_a_queue_that_cannot_be_read_for_a_while_loses_nothing_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = await Parts.begin(tmp_path, **SMALL_FILES)
    await parts.send("other", b"x")
    units = parts.store.units

    def broken(topic: str, *rest: int) -> list[Unit]:
        if topic == names.SCHEDULE_TOPIC:
            raise StoreReadError(OSError(errno.EIO, "injected"))
        return units(topic, *rest)

    monkeypatch.setattr(parts.store, "units", broken)
    await delayed(parts, b"a", 1)
    await fill(parts)
    assert await clean(parts) == 0
    assert parts.store.disk_full_reason == ""
    monkeypatch.setattr(parts.store, "units", units)
    await asyncio.sleep(10)
    assert await parts.bodies("t") == [b"a"]
    assert await clean(parts) > 0
    await parts.end()


async def test_behind_a_lost_message_the_next_one_does_not_come_early(tmp_path: Path) -> None:
    """The unit in its place carries the place of the next one."""
    first = await Parts.begin(tmp_path)
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
    second = await Parts.begin(tmp_path, clock=first.clock)
    await asyncio.sleep(59)
    assert await second.bodies("t") == []
    await asyncio.sleep(2)
    assert await second.bodies("t") == [b"before", b"next"]
    await second.end()


# The last: of the newest messages, where the delay is looked for, none can be read.
@pytest.mark.parametrize(("sent", "damaged"), [(3, 1), (3, 2), (20, 19)])
async def test_a_queue_whose_newest_messages_are_damaged_delivers_none_early(
    tmp_path: Path, sent: int, damaged: int
) -> None:
    first = await Parts.begin(tmp_path)
    await first.group("g", retry_delays_ms=(90_000,))
    stored = [(await first.send("t", b"%d" % n * 50))[0] for n in range(sent)]
    for one in stored:
        await first.broker.send_back.send_back("g", [Entry(one.physical_offset)])
    units = first.store.units(names.SCHEDULE_TOPIC, 18, 0, sent)
    await first.end()
    log = tmp_path / "store" / "commitlog" / ("0" * 20)
    data = bytearray(log.read_bytes())
    for place, size, _ in units[-damaged:]:
        data[place + size - 60] ^= 1
    log.write_bytes(data)
    second = await Parts.begin(tmp_path, clock=first.clock)
    # Another delay does not get the queue meanwhile.
    await second.group("h", retry_delays_ms=(2_000,))
    await second.broker.send_back.send_back("h", [Entry(stored[0].physical_offset)])
    await asyncio.sleep(85)
    assert await second.bodies("%RETRY%g") == []
    assert await second.bodies("%RETRY%h") == [b"0" * 50]
    await asyncio.sleep(6)
    assert len(await second.bodies("%RETRY%g")) == sent - damaged
    await second.end()
