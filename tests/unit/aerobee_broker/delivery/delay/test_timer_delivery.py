"""Messages with a time of their own: never early, in order, each once, and after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aerobee_broker.errors import TooManyTimers
from aerobee_broker.store.messages import UNIT
from support.broker.delayed import lose, recall, timed
from support.broker.harness import Begin, BrokerHarness, message
from support.broker.pop_restarts import copy_store
from support.clock.virtual_loop import LoopClock
from support.observing.series import series_value

HOUR_MS = 3_600_000


@pytest.mark.parametrize("delay_ms", [1, 2_345, 9 * HOUR_MS])
async def test_a_message_is_delivered_when_due_and_never_before(
    harness: BrokerHarness, delay_ms: int
) -> None:
    stored = await timed(harness, b"a", delay_ms)
    assert stored.deliver_ms == harness.clock.now_ms() + delay_ms
    await asyncio.sleep((delay_ms - 0.5) / 1000)
    assert await harness.bodies("t") == []
    assert harness.broker.report.status().delayed_messages == {"timers": 1}
    await asyncio.sleep(0.002)
    record = (await harness.read("t"))[0]
    assert (record.body, record.store_timestamp_ms) == (b"a", stored.deliver_ms)
    assert harness.broker.report.status().delayed_messages == {}


async def test_due_times_a_millisecond_apart_are_kept(harness: BrokerHarness) -> None:
    dues = {}
    for number in range(50):
        stored = await timed(harness, b"%d" % number, 1_000 + number)
        dues[stored.unique_message_id] = stored.deliver_ms
    await asyncio.sleep(2)
    delivered = {
        record.unique_message_id: record.store_timestamp_ms for record in await harness.read("t")
    }
    assert delivered == dues


async def test_a_time_that_is_past_delays_nothing(harness: BrokerHarness) -> None:
    stored = await timed(harness, b"a", -1)
    assert stored.deliver_ms == 0
    assert await harness.bodies("t") == [b"a"]


async def test_messages_are_delivered_in_the_order_of_their_times(harness: BrokerHarness) -> None:
    for body, delay in ((b"9 s", 9_000), (b"2 s", 2_000), (b"1 h", HOUR_MS), (b"5 s", 5_000)):
        await timed(harness, body, delay)
    await asyncio.sleep(2.001)
    await timed(harness, b"3 s", 1_000)
    await asyncio.sleep(10)
    assert await harness.bodies("t") == [b"2 s", b"3 s", b"5 s", b"9 s"]
    assert harness.broker.delay.timers.waiting == 1


async def test_messages_due_together_are_delivered_in_order_and_batches(
    harness: BrokerHarness,
) -> None:
    due = str(harness.clock.now_ms() + 1_000)
    bodies = [b"%d" % number for number in range(1_000)]
    await harness.broker.sending.sender.send(
        [message("t", body, properties={"TIMER_DELIVER_MS": due}) for body in bodies]
    )
    before = harness.flusher.calls
    await asyncio.sleep(1.1)
    assert [record.body for record in await harness.read("t", max_bytes=1 << 20)] == bodies
    assert harness.flusher.calls - before <= 10, "in batches"


async def test_a_delay_level_wins_over_a_time(harness: BrokerHarness) -> None:
    properties = {"DELAY": "1", "TIMER_DELAY_SEC": "60"}
    await harness.broker.sending.sender.send([message("t", b"a", properties=properties)])
    await asyncio.sleep(1.1)
    assert "TIMER_DELAY_SEC" not in (await harness.read("t"))[0].properties


async def test_a_clock_set_back_makes_no_message_early_or_repeated(begin: Begin) -> None:
    clock = LoopClock()
    harness = await begin(clock=clock)
    await timed(harness, b"before", 1_000)
    await asyncio.sleep(2)
    await timed(harness, b"later", 5_000)
    clock.jump(-HOUR_MS)
    await timed(harness, b"a", 5_000)
    await timed(harness, b"b", 3_000)
    await asyncio.sleep(4)
    assert await harness.bodies("t") == [b"before", b"b"]
    await asyncio.sleep(2)
    assert await harness.bodies("t") == [b"before", b"b", b"a"]
    again = await begin()
    await asyncio.sleep(HOUR_MS / 1000)
    assert await again.bodies("t") == [b"before", b"b", b"a", b"later"], "each once"


async def test_a_clock_set_forward_is_noticed_within_seconds(begin: Begin) -> None:
    clock = LoopClock()
    harness = await begin(clock=clock)
    await timed(harness, b"a", HOUR_MS)
    await asyncio.sleep(1)
    clock.jump(HOUR_MS)
    await asyncio.sleep(10)
    assert await harness.bodies("t") == [b"a"]


async def test_more_messages_than_timerMaxMessages_are_refused(begin: Begin) -> None:
    harness = await begin(timerMaxMessages=2)
    await timed(harness, b"a", 1_000)
    await timed(harness, b"b", 1_000)
    await asyncio.sleep(0.001)
    with pytest.raises(TooManyTimers):
        await timed(harness, b"c", 1_000)
    await asyncio.sleep(1.1)
    await timed(harness, b"c", 1_000)


@pytest.mark.parametrize("how", ["stop", "crash"])
async def test_a_restart_loses_and_repeats_no_message(
    harness: BrokerHarness, begin: Begin, tmp_path: Path, how: str
) -> None:
    for number in range(20):
        await timed(harness, b"%d" % number, 1_000 * (number + 1))
    await asyncio.sleep(5.5)
    second = await begin(copy_store(harness) if how == "crash" else tmp_path)
    assert second.broker.delay.timers.waiting == 15
    await asyncio.sleep(20)
    assert await second.bodies("t") == [b"%d" % number for number in range(20)]


async def test_a_start_needs_only_the_log(harness: BrokerHarness, begin: Begin) -> None:
    for delay in (1_000, 2_000, 60_000, 30_000):
        stored = await timed(harness, b"%d" % delay, delay)
    await recall(harness, stored)
    await asyncio.sleep(3)
    await harness.end()
    lose(harness.store.path, "consumequeue", "index", "config", "checkpoint")
    second = await begin()
    second.broker.topics.adopt([("t", [0, 1, 2, 3])])
    assert second.broker.delay.timers.waiting == 1
    await asyncio.sleep(60)
    assert await second.bodies("t") == [b"1000", b"2000", b"60000"]


async def test_damaged_progress_falls_back_to_the_record_before(
    harness: BrokerHarness, begin: Begin
) -> None:
    for body in (b"a", b"b"):
        await timed(harness, body, 1_000)
        await asyncio.sleep(2)
    await harness.end()
    log = harness.store.path / "commitlog" / ("0" * 20)
    data = log.read_bytes()
    newest = data.rindex(b'{"floor":')
    log.write_bytes(data[:newest] + b'{"flaw"' + data[newest + 7 :])
    second = await begin()
    await asyncio.sleep(2)
    assert await second.bodies("t") == [b"a", b"b", b"b"], "b is delivered twice, not lost"


async def test_asynchronous_flush_delivers_when_due(begin: Begin) -> None:
    harness = await begin(flushDiskType="ASYNC_FLUSH")
    await timed(harness, b"a", 2_000)
    await asyncio.sleep(4)
    assert await harness.bodies("t") == [b"a"]


async def test_a_damaged_unit_makes_no_message_early(harness: BrokerHarness, begin: Begin) -> None:
    stored = await timed(harness, b"a", HOUR_MS)
    await harness.end()
    path = harness.store.path / "consumequeue" / "rmq_sys_wheel_timer" / "0" / ("0" * 20)
    data = path.read_bytes()
    place, size, code = UNIT.unpack_from(data)
    assert code == stored.deliver_ms
    path.write_bytes(UNIT.pack(place, size, code - HOUR_MS) + data[UNIT.size :])
    second = await begin()
    await asyncio.sleep(3_599)
    assert await second.bodies("t") == []
    await asyncio.sleep(2)
    assert await second.bodies("t") == [b"a"]


async def test_the_gauge_counts_waiting_messages(harness: BrokerHarness) -> None:
    await timed(harness, b"a", 1_000)
    await timed(harness, b"b", 3_000)
    await asyncio.sleep(0.01)
    shown = []
    for _ in range(3):
        harness.broker.gauges.measure(6)
        labels = {"storage_type": "local", "storage_medium": "disk"}
        shown.append(series_value(harness.metrics.registry, "rocketmq_timing_messages", labels))
        await asyncio.sleep(2)
    assert shown == [2, 1, 0]
