"""Delivery of delay levels: never early, in order, each once, and after a restart."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from aerobee_broker.delivery.retry.send_back import Entry
from aerobee_broker.errors import StoreReadError
from aerobee_broker.store.messages import Unit
from aerobee_wire import topics as names
from support.broker.delayed import SMALL_FILES, clean, delayed, fill, lose, timed
from support.broker.harness import Begin, BrokerHarness, message
from support.broker.pop_restarts import copy_store
from support.clock.virtual_loop import LoopClock
from support.disk.broken_disk import BrokenDisk
from support.disk.simulated_disk import SimulatedDisk


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
    assert harness.broker.delay.levels.undelivered() == {"level 18 (7200 s)": 1}
    await asyncio.sleep(7_200)
    assert (await harness.bodies("t"))[-1] == b"2h"
    assert harness.broker.delay.levels.undelivered() == {}


async def test_a_level_above_the_last_is_the_last(harness: BrokerHarness) -> None:
    await delayed(harness, b"a", 99)
    assert harness.broker.delay.levels.undelivered() == {"level 18 (7200 s)": 1}


async def test_messages_of_a_level_are_delivered_in_order(harness: BrokerHarness) -> None:
    bodies = [b"%d" % number for number in range(600)]
    await harness.broker.sending.sender.send(
        [message("t", body, properties={"DELAY": "1"}) for body in bodies]
    )
    await asyncio.sleep(1.1)
    assert await harness.bodies("t") == bodies


async def test_progress_advances_when_the_copies_are_durable(harness: BrokerHarness) -> None:
    await delayed(harness, b"a", 1)
    harness.flusher.hold()
    await asyncio.sleep(3)
    assert harness.tables.delay_offsets.get(0) == 0
    harness.flusher.let_go()
    await asyncio.sleep(0.1)
    assert harness.tables.delay_offsets.get(0) == 1


async def test_progress_of_a_lost_log_skips_no_message(
    harness: BrokerHarness, begin: Begin
) -> None:
    """The log was lost, or its end was damaged; delayOffset.json is as it was."""
    for _ in range(3):
        await delayed(harness, b"a", 1)
    await asyncio.sleep(2)
    await harness.end()
    lose(harness.store.path, "commitlog", "consumequeue", "index", "checkpoint")
    second = await begin()
    await delayed(second, b"b", 1)
    await asyncio.sleep(0.5)
    assert second.broker.delay.levels.undelivered() == {"level 1 (1 s)": 1}
    third = await begin()
    await asyncio.sleep(2)
    assert await third.bodies("t") == [b"b"]


async def test_delivery_goes_on_after_a_stop_and_repeats_nothing(
    harness: BrokerHarness, begin: Begin
) -> None:
    await delayed(harness, b"done", 1)
    await asyncio.sleep(2)
    await delayed(harness, b"waiting", 3)
    second = await begin()
    await asyncio.sleep(11)
    assert await second.bodies("t") == [b"done", b"waiting"]


async def test_delivery_repeats_nothing_after_a_crash(harness: BrokerHarness, begin: Begin) -> None:
    """The progress records are in the log with the copies; there is no delayOffset.json."""
    for body in (b"a", b"b"):
        await delayed(harness, body, 1)
        await delayed(harness, body, 2)
        await asyncio.sleep(0.5)
    await asyncio.sleep(2)
    crashed = copy_store(harness)  # a kill here, between the deliveries of the two levels
    assert not (crashed / "store" / "config" / "delayOffset.json").exists()
    second = await begin(crashed)
    await asyncio.sleep(10)
    assert await second.bodies("t") == [b"a", b"b", b"a", b"b"]


async def test_damaged_progress_falls_back_to_the_record_before(
    harness: BrokerHarness, begin: Begin
) -> None:
    for body in (b"a", b"b"):
        await delayed(harness, body, 1)
        await asyncio.sleep(2)
    await harness.end()
    (harness.store.path / "config" / "delayOffset.json").unlink()
    log = harness.store.path / "commitlog" / ("0" * 20)
    data = log.read_bytes()
    assert data.count(b'{"0":2}') == 1
    log.write_bytes(data.replace(b'{"0":2}', b'{"0":9}'))
    second = await begin()
    await asyncio.sleep(2)
    assert await second.bodies("t") == [b"a", b"b", b"b"], "b is delivered twice, not lost"


async def test_with_asynchronous_flush_progress_waits_for_the_disk(begin: Begin) -> None:
    harness = await begin(flushDiskType="ASYNC_FLUSH")
    await delayed(harness, b"a", 1)
    await asyncio.sleep(0.9)
    harness.flusher.hold()
    await asyncio.sleep(3)
    assert harness.tables.delay_offsets.get(0) == 0
    harness.flusher.let_go()
    await asyncio.sleep(0.1)
    assert harness.tables.delay_offsets.get(0) == 1
    assert await harness.bodies("t") == [b"a"]


async def test_own_delays_of_queues_are_restored_from_the_log_alone(
    harness: BrokerHarness, begin: Begin
) -> None:
    await harness.group("g", retry_delays_ms=(250, 90_000))
    stored = await harness.send("t", b"a")
    for _ in range(2):
        await harness.broker.sending.send_back.send_back("g", [Entry(stored[0].physical_offset)])
    await asyncio.sleep(0.3)
    record = await harness.read("%RETRY%g")
    await harness.broker.sending.send_back.send_back("g", [Entry(record[0].physical_offset)])
    await harness.end()
    lose(harness.store.path, "consumequeue", "config", "checkpoint")
    second = await begin()
    assert second.broker.delay.queues.delay_of(18) == 250
    assert second.broker.delay.queues.delay_of(19) == 90_000
    await asyncio.sleep(89)
    assert second.broker.delay.levels.undelivered() == {"90 s": 1}
    await asyncio.sleep(2)
    assert second.broker.delay.levels.undelivered() == {}


async def test_a_clock_set_back_adds_one_delay_at_most(begin: Begin) -> None:
    clock = LoopClock()
    harness = await begin(clock=clock)
    await delayed(harness, b"a", 3)
    clock.jump(-3_600_000)
    await asyncio.sleep(9.9)
    assert await harness.bodies("t") == []
    await asyncio.sleep(10)
    assert await harness.bodies("t") == [b"a"]


async def test_a_clock_set_back_adds_two_delays_at_most_to_many_messages(begin: Begin) -> None:
    """More than one batch. The messages that follow count from the new time."""
    clock = LoopClock()
    harness = await begin(clock=clock)
    for numbers in (range(1), range(1, 300)):
        waiting = [message("t", b"%d" % at, properties={"DELAY": "3"}) for at in numbers]
        await harness.broker.sending.sender.send(waiting)
        await asyncio.sleep(0.5)
    clock.jump(-3_600_000)
    await delayed(harness, b"300", 3)
    await asyncio.sleep(9)
    assert await harness.bodies("t") == []
    await asyncio.sleep(12)
    assert await harness.bodies("t") == [b"%d" % number for number in range(301)]


async def test_a_full_disk_delays_and_loses_no_message(begin: Begin) -> None:
    disk = BrokenDisk()
    harness = await begin(disk=disk)
    await delayed(harness, b"a", 1)
    disk.write_error = errno.ENOSPC
    await asyncio.sleep(5)
    assert await harness.bodies("t") == []
    disk.write_error = 0
    await asyncio.sleep(10)
    assert await harness.bodies("t") == [b"a"]


async def test_a_damaged_message_is_skipped_and_counted(
    harness: BrokerHarness, begin: Begin
) -> None:
    await delayed(harness, b"a" * 100, 3)
    await delayed(harness, b"b", 3)
    await harness.end()
    log = harness.store.path / "commitlog" / ("0" * 20)
    data = log.read_bytes()
    log.write_bytes(data.replace(b"a" * 100, b"a" * 99 + b"x", 1))
    second = await begin()
    await asyncio.sleep(11)
    assert await second.bodies("t") == [b"b"]
    assert second.metrics.corrupted_records == 1


async def test_retention_keeps_the_files_of_waiting_messages(begin: Begin) -> None:
    """A delayed message and a retry: both lie in the first file until they are delivered."""
    harness = await begin(**SMALL_FILES)
    await harness.group("g", retry_delays_ms=(90_000,))
    failed = (await harness.send("t", b"again"))[0]
    await harness.broker.sending.send_back.send_back("g", [Entry(failed.physical_offset)])
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


async def test_retention_keeps_waiting_messages_after_a_restart(begin: Begin) -> None:
    first = await begin(**SMALL_FILES)
    await delayed(first, b"done", 1)
    await asyncio.sleep(2)
    await fill(first)
    await delayed(first, b"waits", 9)
    await fill(first)
    second = await begin(**SMALL_FILES)
    kept_from = await clean(second)
    assert kept_from > 65_536, "a delivered message keeps no file"
    assert await clean(second) == kept_from
    await asyncio.sleep(300)
    assert (await second.read("t", queue_offset=1))[0].body == b"waits"
    assert await clean(second) > kept_from


async def test_an_unreadable_queue_is_tried_again_and_loses_no_message(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = await begin(**SMALL_FILES)
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


async def test_the_message_behind_a_lost_one_is_not_early(
    harness: BrokerHarness, begin: Begin
) -> None:
    """The unit of a lost record has the physical offset of the next record."""
    await delayed(harness, b"before", 5)
    await delayed(harness, b"lost" * 100, 5)
    await delayed(harness, b"next", 5)
    place, size, _ = harness.store.units(names.SCHEDULE_TOPIC, 4, 1, 1)[0]
    await harness.end()
    log = harness.store.path / "commitlog" / ("0" * 20)
    data = bytearray(log.read_bytes())
    data[place : place + size] = bytes(size)
    log.write_bytes(data)
    lose(harness.store.path, "consumequeue", "index", "checkpoint")
    second = await begin()
    await asyncio.sleep(59)
    assert await second.bodies("t") == []
    await asyncio.sleep(2)
    assert await second.bodies("t") == [b"before", b"next"]


# The last case: none of the records that restore reads back can be read.
@pytest.mark.parametrize(("sent", "damaged"), [(3, 1), (3, 2), (20, 19)])
async def test_a_queue_with_damaged_newest_messages_is_not_early(
    harness: BrokerHarness, begin: Begin, sent: int, damaged: int
) -> None:
    await harness.group("g", retry_delays_ms=(90_000,))
    stored = [(await harness.send("t", b"%d" % n * 50))[0] for n in range(sent)]
    for each in stored:
        await harness.broker.sending.send_back.send_back("g", [Entry(each.physical_offset)])
    units = harness.store.units(names.SCHEDULE_TOPIC, 18, 0, sent)
    await harness.end()
    log = harness.store.path / "commitlog" / ("0" * 20)
    data = bytearray(log.read_bytes())
    for place, size, _ in units[-damaged:]:
        data[place + size - 60] ^= 1
    log.write_bytes(data)
    second = await begin()
    # Another delay is not given the queue meanwhile.
    await second.group("h", retry_delays_ms=(2_000,))
    await second.broker.sending.send_back.send_back("h", [Entry(stored[0].physical_offset)])
    await asyncio.sleep(85)
    assert await second.bodies("%RETRY%g") == []
    assert await second.bodies("%RETRY%h") == [b"0" * 50]
    await asyncio.sleep(6)
    assert len(await second.bodies("%RETRY%g")) == sent - damaged


async def test_progress_that_is_newer_than_the_log_skips_no_message() -> None:
    """All but one file was restored from a backup. The queue has messages that still wait."""
    path, disk = Path("/data"), SimulatedDisk()
    harness = await BrokerHarness.begin(path, disk=disk)
    await delayed(harness, b"0", 1)
    await asyncio.sleep(2)
    for number in range(1, 6):
        await delayed(harness, b"%d" % number, 2)
        await delayed(harness, b"%d" % number, 1)
    await harness.tables.saved_delay_offsets.save()
    backup = disk.copy().after_kill()
    await asyncio.sleep(60)
    await harness.end()
    progress = path / "store" / "config" / "delayOffset.json"
    backup.put(progress, disk.files()[progress])
    second = await BrokerHarness.begin(path, disk=backup, clock=harness.clock)
    await asyncio.sleep(60)
    waited = [b"%d" % number for number in range(1, 6)]
    assert sorted(await second.bodies("t")) == sorted([b"0", *waited, *waited])
    await second.end()


@pytest.mark.parametrize("topic", [names.SCHEDULE_TOPIC, names.TIMER_TOPIC])
async def test_damaged_entries_of_the_consume_queue_lose_no_message(
    topic: str, begin: Begin, tmp_path: Path
) -> None:
    """Their records are whole. The physical offsets of two neighbours are wrong."""
    harness = await begin()
    for number in range(4):
        await delayed(harness, b"level %d" % number, 3)
        await timed(harness, b"time %d" % number, 10_000)
    await harness.end()
    [path] = (tmp_path / "store" / "consumequeue" / topic).glob("*/*")
    data = bytearray(path.read_bytes())
    for unit in (1, 2):
        data[20 * unit + 6] ^= 0x10
    path.write_bytes(data)
    harness = await begin()
    await asyncio.sleep(11)
    expected = [b"%s %d" % (kind, number) for kind in (b"level", b"time") for number in range(4)]
    assert sorted(await harness.bodies("t")) == expected
    assert harness.store.corruption_count == 0
