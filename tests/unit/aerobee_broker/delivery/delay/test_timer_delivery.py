"""Messages with a time of their own: never early, in order, each once; recalls; crashes."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from aerobee_broker.delivery.delay import timer_table
from aerobee_broker.delivery.send.send import SendResult
from aerobee_broker.disk import Disk
from aerobee_broker.errors import DiskFull, NotRecalled
from aerobee_broker.store.messages import UNIT
from aerobee_wire import topics as names
from aerobee_wire.status import Code, MqError
from support.broker.delayed import SMALL_FILES, clean, fill, lose, timed
from support.broker.harness import Parts, message
from support.clock.virtual_loop import LoopClock
from support.disk.simulated_disk import SimulatedDisk

HOUR_MS = 3_600_000


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    parts = await Parts.begin(tmp_path)
    yield parts
    await parts.end()


async def recall(parts: Parts, stored: SendResult, topic: str = "t") -> None:
    await parts.broker.timer_recall.recall(topic, stored.deliver_ms, stored.unique_message_id)


async def refused(parts: Parts, stored: SendResult) -> str:
    with pytest.raises(MqError) as caught:
        await recall(parts, stored)
    assert caught.value.code is Code.ILLEGAL_OPERATION
    return caught.value.message


# ---- when ----


@pytest.mark.parametrize("delay_ms", [1, 2_345, 9 * HOUR_MS])
async def test_a_message_comes_at_its_time_and_not_a_millisecond_before(
    parts: Parts, delay_ms: int
) -> None:
    stored = await timed(parts, b"a", delay_ms)
    assert stored.deliver_ms == parts.clock.now_ms() + delay_ms
    await asyncio.sleep((delay_ms - 0.5) / 1000)
    assert await parts.bodies("t") == []
    assert parts.broker.administration.status().delayed_messages == {"timers": 1}
    await asyncio.sleep(0.002)
    record = (await parts.read("t"))[0]
    assert (record.body, record.store_timestamp_ms) == (b"a", stored.deliver_ms)
    assert parts.broker.administration.status().delayed_messages == {}


async def test_of_messages_a_millisecond_apart_none_comes_with_the_one_before(
    parts: Parts,
) -> None:
    dues = {}
    for number in range(50):
        stored = await timed(parts, b"%d" % number, 1_000 + number)
        dues[stored.unique_message_id] = stored.deliver_ms
    await asyncio.sleep(2)
    came = {one.unique_message_id: one.store_timestamp_ms for one in await parts.read("t")}
    assert came == dues


async def test_a_time_that_is_past_is_now(parts: Parts) -> None:
    stored = await timed(parts, b"a", -1)
    assert stored.deliver_ms == 0
    assert await parts.bodies("t") == [b"a"]


async def test_messages_come_in_the_order_of_their_times(parts: Parts) -> None:
    for body, delay in ((b"9 s", 9_000), (b"2 s", 2_000), (b"1 h", HOUR_MS), (b"5 s", 5_000)):
        await timed(parts, body, delay)
    await asyncio.sleep(2.001)
    await timed(parts, b"3 s", 1_000)
    await asyncio.sleep(10)
    assert await parts.bodies("t") == [b"2 s", b"3 s", b"5 s", b"9 s"]
    assert parts.broker.timer_delivery.waiting == 1


async def test_many_messages_of_one_time_come_in_their_order(parts: Parts) -> None:
    due = str(parts.clock.now_ms() + 1_000)
    bodies = [b"%d" % number for number in range(1_000)]
    await parts.broker.sender.send(
        [message("t", one, properties={"TIMER_DELIVER_MS": due}) for one in bodies]
    )
    before = parts.flusher.calls
    await asyncio.sleep(1.1)
    assert [one.body for one in await parts.read("t", max_bytes=1 << 20)] == bodies
    assert parts.flusher.calls - before <= 10, "in batches, not one by one"


async def test_the_copy_is_the_message(parts: Parts) -> None:
    due = str(parts.clock.now_ms() + 1_000)
    properties = {"TIMER_DELIVER_MS": due, "TAGS": "a", "KEYS": "k", "UNIQ_KEY": "U"}
    one = message("t", b"x", 3, properties=properties, flag=9, sys_flag=1, born_timestamp_ms=55)
    await parts.broker.sender.send([one])
    await asyncio.sleep(2)
    record = (await parts.read("t", 3))[0]
    assert (record.queue_id, record.flag, record.sys_flag & 1) == (3, 9, 1)
    assert (record.born_timestamp_ms, record.born_host) == (55, "10.0.0.7:4711")
    assert (record.unique_message_id, record.properties["TAGS"]) == ("U", "a")
    assert record.properties["TIMER_DELIVER_MS"] == due
    assert not {"REAL_TOPIC", "REAL_QID"} & record.properties.keys()


async def test_a_level_wins_over_a_time(parts: Parts) -> None:
    properties = {"DELAY": "1", "TIMER_DELAY_SEC": "60"}
    await parts.broker.sender.send([message("t", b"a", properties=properties)])
    await asyncio.sleep(1.1)
    assert "TIMER_DELAY_SEC" not in (await parts.read("t"))[0].properties


async def test_when_the_clock_is_set_back_messages_wait_for_their_time_all_the_same(
    tmp_path: Path,
) -> None:
    clock = LoopClock()
    parts = await Parts.begin(tmp_path, clock=clock)
    await timed(parts, b"before", 1_000)
    await asyncio.sleep(2)
    await timed(parts, b"later", 5_000)
    clock.jump(-HOUR_MS)
    await timed(parts, b"a", 5_000)
    await timed(parts, b"b", 3_000)
    await asyncio.sleep(4)
    assert await parts.bodies("t") == [b"before", b"b"]
    await asyncio.sleep(2)
    assert await parts.bodies("t") == [b"before", b"b", b"a"]
    await parts.end()
    again = await Parts.begin(tmp_path, clock=clock)
    await asyncio.sleep(HOUR_MS / 1000)
    assert await again.bodies("t") == [b"before", b"b", b"a", b"later"], "and each once"
    await again.end()


async def test_when_the_clock_is_set_forward_messages_come_within_seconds(tmp_path: Path) -> None:
    clock = LoopClock()
    parts = await Parts.begin(tmp_path, clock=clock)
    await timed(parts, b"a", HOUR_MS)
    await asyncio.sleep(1)
    clock.jump(HOUR_MS)
    await asyncio.sleep(10)
    assert await parts.bodies("t") == [b"a"]
    await parts.end()


async def test_no_more_messages_wait_than_may(tmp_path: Path) -> None:
    parts = await Parts.begin(tmp_path, timerMaxMessages=2)
    await timed(parts, b"a", 1_000)
    await timed(parts, b"b", 1_000)
    await asyncio.sleep(0.001)
    with pytest.raises(MqError, match="timerMaxMessages") as caught:
        await timed(parts, b"c", 1_000)
    assert caught.value.code is Code.FLOW_CONTROL
    await asyncio.sleep(1.1)
    await timed(parts, b"c", 1_000)
    await parts.end()


# ---- restarts and failures ----


@pytest.mark.parametrize("how", ["stop", "crash"])
async def test_a_restart_forgets_and_repeats_nothing(tmp_path: Path, how: str) -> None:
    clock = LoopClock()
    first = await Parts.begin(tmp_path / "a", clock=clock)
    for number in range(20):
        await timed(first, b"%d" % number, 1_000 * (number + 1))
    await asyncio.sleep(5.5)
    if how == "crash":
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    await first.end()
    second = await Parts.begin(tmp_path / ("b" if how == "crash" else "a"), clock=clock)
    assert second.broker.timer_delivery.waiting == 15
    await asyncio.sleep(20)
    assert await second.bodies("t") == [b"%d" % number for number in range(20)]
    await second.end()


async def test_the_log_alone_is_enough(tmp_path: Path) -> None:
    clock = LoopClock()
    first = await Parts.begin(tmp_path, clock=clock)
    for delay in (1_000, 2_000, 60_000, 30_000):
        stored = await timed(first, b"%d" % delay, delay)
    await recall(first, stored)
    await asyncio.sleep(3)
    await first.end()
    lose(tmp_path / "store", "consumequeue", "index", "config", "checkpoint")
    second = await Parts.begin(tmp_path, clock=clock)
    second.broker.topics.adopt([("t", [0, 1, 2, 3])])
    assert second.broker.timer_delivery.waiting == 1
    await asyncio.sleep(60)
    assert await second.bodies("t") == [b"1000", b"2000", b"60000"]
    await second.end()


async def test_a_damaged_record_of_progress_gives_way_to_the_one_before(tmp_path: Path) -> None:
    clock = LoopClock()
    first = await Parts.begin(tmp_path, clock=clock)
    for body in (b"a", b"b"):
        await timed(first, body, 1_000)
        await asyncio.sleep(2)
    await first.end()
    log = tmp_path / "store" / "commitlog" / ("0" * 20)
    data = log.read_bytes()
    newest = data.rindex(b'{"floor":')
    log.write_bytes(data[:newest] + b'{"flaw"' + data[newest + 7 :])
    second = await Parts.begin(tmp_path, clock=clock)
    await asyncio.sleep(2)
    assert await second.bodies("t") == [b"a", b"b", b"b"], "twice rather than not at all"
    await second.end()


async def test_with_asynchronous_flush_a_message_comes_at_its_time_too(tmp_path: Path) -> None:
    parts = await Parts.begin(tmp_path, flushDiskType="ASYNC_FLUSH")
    await timed(parts, b"a", 2_000)
    await asyncio.sleep(4)
    assert await parts.bodies("t") == [b"a"]
    await parts.end()


async def test_a_damaged_unit_makes_no_message_come_early(tmp_path: Path) -> None:
    clock = LoopClock()
    first = await Parts.begin(tmp_path, clock=clock)
    stored = await timed(first, b"a", HOUR_MS)
    await first.end()
    path = tmp_path / "store" / "consumequeue" / "rmq_sys_wheel_timer" / "0" / ("0" * 20)
    data = path.read_bytes()
    place, size, code = UNIT.unpack_from(data)
    assert code == stored.deliver_ms
    path.write_bytes(UNIT.pack(place, size, code - HOUR_MS) + data[UNIT.size :])
    second = await Parts.begin(tmp_path, clock=clock)
    await asyncio.sleep(3_599)
    assert await second.bodies("t") == []
    await asyncio.sleep(2)
    assert await second.bodies("t") == [b"a"]
    await second.end()


async def filled(path: Path, clock: LoopClock, *bodies: bytes) -> tuple[Parts, list[SendResult]]:
    """Messages that wait in a log file that retention wants to delete."""
    parts = await Parts.begin(path, clock=clock, **SMALL_FILES)
    waiting = [await timed(parts, body, HOUR_MS) for body in bodies]
    await fill(parts)
    return parts, waiting


async def test_messages_move_out_of_the_way_of_retention(tmp_path: Path) -> None:
    parts, (first, second) = await filled(tmp_path, LoopClock(), b"first", b"second")
    assert await clean(parts) == 0, "a file in which messages wait stays"
    await asyncio.sleep(10)
    assert parts.broker.timer_delivery.waiting == 2
    assert await clean(parts) > max(first.physical_offset, second.physical_offset)
    await recall(parts, first)
    assert "recalled before" in await refused(parts, first)
    await asyncio.sleep(HOUR_MS / 1000 - 30)
    assert await parts.bodies("t") == []
    await asyncio.sleep(30)
    assert await parts.bodies("t") == [b"second"]
    assert (await parts.read("t"))[0].unique_message_id == second.unique_message_id
    await parts.end()


@pytest.mark.parametrize("how", ["stop", "crash"])
async def test_what_moved_is_found_after_a_restart(tmp_path: Path, how: str) -> None:
    clock = LoopClock()
    first, _ = await filled(tmp_path / "a", clock, b"x", b"y")
    assert await clean(first) == 0
    await asyncio.sleep(10)
    if how == "crash":
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    await first.end()
    second = await Parts.begin(
        tmp_path / ("b" if how == "crash" else "a"), clock=clock, mappedFileSizeCommitLog=65_536
    )
    assert second.broker.timer_delivery.waiting == 2
    await asyncio.sleep(HOUR_MS / 1000)
    assert await second.bodies("t") == [b"x", b"y"]
    await second.end()


async def test_what_was_recalled_keeps_no_file(tmp_path: Path) -> None:
    parts, waiting = await filled(tmp_path, LoopClock(), b"a")
    await recall(parts, waiting[0])
    assert await clean(parts) > waiting[0].physical_offset
    await parts.end()


async def test_a_message_is_recalled_while_it_moves(tmp_path: Path) -> None:
    parts, waiting = await filled(tmp_path, LoopClock(), b"a")
    await clean(parts)
    parts.flusher.hold()
    await asyncio.sleep(10)  # it is moving
    under_way = asyncio.create_task(recall(parts, waiting[0]))
    await asyncio.sleep(0.1)
    assert not under_way.done()
    parts.flusher.let_go()
    await under_way
    await asyncio.sleep(HOUR_MS / 1000)
    assert await parts.bodies("t") == []
    await parts.end()


async def test_a_message_of_a_deleted_topic_does_not_move_into_the_next(tmp_path: Path) -> None:
    parts, waiting = await filled(tmp_path, LoopClock(), b"a")
    await parts.send("t", b"x")
    await parts.broker.administration.delete_topic("t")
    await parts.send("t", b"new")
    await clean(parts)
    await asyncio.sleep(10)
    assert await clean(parts) > waiting[0].physical_offset
    await asyncio.sleep(HOUR_MS / 1000)
    assert await parts.bodies("t") == [b"new"]
    await parts.end()


@pytest.mark.parametrize("room", [True, False])
async def test_a_move_that_the_disk_ends_late_loses_nothing(
    tmp_path: Path, room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LoopClock()
    parts, _ = await filled(tmp_path, clock, b"a")
    await clean(parts)

    def fail() -> int:
        raise DiskFull("there is no room")

    with monkeypatch.context() as patch:
        if not room:
            patch.setattr(parts.store.flush, "write_and_sync", fail)
        parts.flusher.hold()
        await asyncio.sleep(30)  # longer than a flush may take
        parts.flusher.let_go()
        await asyncio.sleep(0.1)
    assert parts.broker.timer_delivery.waiting == 1
    await asyncio.sleep(HOUR_MS / 1000)
    assert await parts.bodies("t") == [b"a"]
    await parts.end()


# ---- recall ----


@pytest.mark.parametrize("room", [True, False])
async def test_a_recall_whose_caller_goes_away_holds_when_the_log_has_it(
    parts: Parts, room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = await timed(parts, b"a", 5_000)
    await asyncio.sleep(0.1)

    def fail() -> int:
        raise DiskFull("there is no room")

    with monkeypatch.context() as patch:
        if not room:
            patch.setattr(parts.store.flush, "write_and_sync", fail)
        parts.flusher.hold()
        under_way = asyncio.create_task(recall(parts, stored))
        await asyncio.sleep(0.1)
        under_way.cancel()
        await asyncio.wait([under_way])
        parts.flusher.let_go()
        await asyncio.sleep(0.1)
    assert parts.broker.timer_delivery.waiting == (0 if room else 1)
    await asyncio.sleep(6)
    assert await parts.bodies("t") == ([] if room else [b"a"])


async def test_what_was_recalled_before_a_restart_is_not_recalled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer_table, "_BLOCK_BITS", 0)
    clock = LoopClock()
    first = await Parts.begin(tmp_path, clock=clock)
    stored = await timed(first, b"a", HOUR_MS)
    await recall(first, stored)
    await timed(first, b"b", 1_000)
    await asyncio.sleep(2)  # the progress says that nothing below it waits
    await first.end()
    second = await Parts.begin(tmp_path, clock=clock)
    assert "recalled before" in await refused(second, stored)
    assert second.broker.timer_delivery.waiting == 0
    await second.end()


async def test_a_message_that_was_recalled_does_not_come(parts: Parts) -> None:
    stored = await timed(parts, b"a", 5_000)
    await timed(parts, b"b", 5_000)
    await recall(parts, stored)
    assert parts.broker.timer_delivery.waiting == 1
    assert "delivered or recalled before" in await refused(parts, stored)
    await asyncio.sleep(6)
    assert await parts.bodies("t") == [b"b"]
    assert "delivered or recalled before" in await refused(parts, stored)


async def test_a_message_that_was_delivered_cannot_be_recalled(parts: Parts) -> None:
    stored = await timed(parts, b"a", 1_000)
    await asyncio.sleep(1.1)
    assert "delivered" in await refused(parts, stored)


async def test_what_never_waited_cannot_be_recalled(parts: Parts) -> None:
    stored = await timed(parts, b"a", 1_000)
    for wrong in (
        ("other", stored.deliver_ms, stored.unique_message_id),
        ("t", stored.deliver_ms + 1, stored.unique_message_id),
        ("t", stored.deliver_ms, "nobody"),
    ):
        with pytest.raises(MqError, match="no such message") as caught:
            await parts.broker.timer_recall.recall(*wrong)
        assert caught.value.code is Code.ILLEGAL_OPERATION
    await asyncio.sleep(2)
    assert await parts.bodies("t") == [b"a"]


async def test_without_an_index_nothing_is_recalled(tmp_path: Path) -> None:
    parts = await Parts.begin(tmp_path, messageIndexEnable=False)
    stored = await timed(parts, b"a", 1_000)
    assert "messageIndexEnable" in await refused(parts, stored)
    await asyncio.sleep(1.1)
    assert await parts.bodies("t") == [b"a"]
    await parts.end()


async def test_the_gauge_tells_how_many_wait(parts: Parts) -> None:
    await timed(parts, b"a", 1_000)
    await timed(parts, b"b", 3_000)
    await asyncio.sleep(0.01)
    shown = []
    for _ in range(3):
        parts.broker.administration.measure(6)
        labels = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}
        shown.append(parts.meters.registry.get_sample_value("rocketmq_timing_messages", labels))
        await asyncio.sleep(2)
    assert shown == [2, 1, 0]


async def test_both_copies_of_a_message_that_was_sent_twice_are_recalled(parts: Parts) -> None:
    due = str(parts.clock.now_ms() + 1_000)
    same = {"TIMER_DELIVER_MS": due, "UNIQ_KEY": "U"}
    for _ in range(2):
        stored = await parts.broker.sender.send([message("t", b"a", properties=dict(same))])
    await recall(parts, stored[0])
    await asyncio.sleep(2)
    assert await parts.bodies("t") == []


@pytest.mark.parametrize("how", ["stop", "crash"])
async def test_a_recall_survives_a_restart(tmp_path: Path, how: str) -> None:
    clock = LoopClock()
    first = await Parts.begin(tmp_path / "a", clock=clock)
    stored = await timed(first, b"a", 5_000)
    await recall(first, stored)
    if how == "crash":
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    await first.end()
    second = await Parts.begin(tmp_path / ("b" if how == "crash" else "a"), clock=clock)
    assert second.broker.timer_delivery.waiting == 0
    assert "recalled before" in await refused(second, stored)
    await asyncio.sleep(10)
    assert await second.bodies("t") == []
    await second.end()


async def test_a_recall_that_is_not_durable_yet_holds_up_the_delivery(parts: Parts) -> None:
    stored = await timed(parts, b"a", 1_000)
    await asyncio.sleep(0.99)
    parts.flusher.hold()
    under_way = asyncio.create_task(recall(parts, stored))
    await asyncio.sleep(3)
    assert not under_way.done()
    assert "recalled before" in await refused_later(parts, stored)
    parts.flusher.let_go()
    await under_way
    await asyncio.sleep(5)
    assert await parts.bodies("t") == []


async def refused_later(parts: Parts, stored: SendResult) -> str:
    """A recall that must wait for the disk only when it would be one."""
    second = asyncio.create_task(recall(parts, stored))
    await asyncio.sleep(0.1)
    parts.flusher.let_go()
    with pytest.raises(MqError) as caught:
        await second
    return caught.value.message


async def test_a_recall_whose_caller_gave_up_keeps_others_of_its_time_not_back(
    parts: Parts,
) -> None:
    """It stands in the log, so it holds, as it would after a restart."""
    await timed(parts, b"a", 1_000)
    stored = await timed(parts, b"b", 1_000)
    await asyncio.sleep(0.99)
    parts.flusher.hold()
    under_way = asyncio.create_task(recall(parts, stored))
    await asyncio.sleep(0.1)
    under_way.cancel()
    await asyncio.gather(under_way, return_exceptions=True)
    parts.flusher.let_go()
    await asyncio.sleep(0.1)
    assert await parts.bodies("t") == [b"a"]


async def test_a_recall_that_comes_while_the_message_is_delivered_fails(parts: Parts) -> None:
    stored = await timed(parts, b"a", 1_000)
    parts.flusher.hold()
    await asyncio.sleep(1.1)
    under_way = asyncio.create_task(recall(parts, stored))
    await asyncio.sleep(0.1)
    parts.flusher.let_go()
    with pytest.raises(MqError, match="delivered or recalled"):
        await under_way
    assert await parts.bodies("t") == [b"a"]


# ---- a crash at any time ----


class Campaign:
    """Sends, recalls, moves and power cuts by a seed, and what was acknowledged of them."""

    def __init__(self, seed: int, path: Path) -> None:
        self.rng = random.Random(seed)
        self.path = path
        self.clock = LoopClock()
        self.disk = SimulatedDisk(seed)
        self.sent: dict[bytes, SendResult] = {}
        self.recalled: set[bytes] = set()
        self.attempted: set[bytes] = set()
        self.cuts = 0

    async def begin(self) -> Parts:
        return await Parts.begin(self.path, clock=self.clock, disk=self.disk)

    async def run(self) -> None:
        parts = await self.begin()
        for step in range(6):
            for _ in range(12):
                await self.act(parts)
                await asyncio.sleep(self.rng.random() * 0.4)
            if step < 5:
                parts = await self.crash(parts)
        await asyncio.sleep(60)
        await self.check(parts)
        await parts.end()

    async def act(self, parts: Parts) -> None:
        if self.rng.random() < 0.2:
            # As if retention wanted all files: what waits moves to the end of the log.
            parts.store.cleaning.wanted_below = parts.store.end_offset
        if self.sent and self.rng.random() < 0.25:
            body = self.rng.choice(list(self.sent))
            self.attempted.add(body)
            with suppress(NotRecalled):
                await recall(parts, self.sent[body])
                self.recalled.add(body)
        else:
            body = b"%d" % len(self.sent)
            self.sent[body] = await timed(parts, body, self.rng.randrange(1, 4_000))

    async def crash(self, parts: Parts) -> Parts:
        """While a send, a recall or a delivery is under way, or nothing."""
        parts.flusher.hold()
        body = b"unacknowledged %d" % self.cuts
        doing: list[asyncio.Task[object]] = [asyncio.create_task(timed(parts, body, 1_000))]
        if self.sent:
            body = self.rng.choice(list(self.sent))
            self.attempted.add(body)
            doing.append(asyncio.create_task(recall(parts, self.sent[body])))
        await asyncio.sleep(self.rng.random() * 2)
        if self.rng.random() < 0.5:
            parts.store.flush.write()
            await asyncio.sleep(self.rng.random())
        cut: Disk = (
            self.disk.after_power_cut(self.rng.randrange(1 << 30))
            if self.rng.random() < 0.7
            else self.disk.after_kill()
        )
        assert isinstance(cut, SimulatedDisk)
        self.cuts += 1
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in [*doing, *others]:
            task.cancel()
        await asyncio.gather(*doing, *others, return_exceptions=True)
        parts.store.abandon()
        self.disk = cut
        await asyncio.sleep(self.rng.random() * 2)
        return await self.begin()

    async def check(self, parts: Parts) -> None:
        records = await parts.read("t")
        came: dict[bytes, int] = {}
        for record in records:
            came[record.body] = came.get(record.body, 0) + 1
            assert record.store_timestamp_ms >= int(record.properties["TIMER_OUT_MS"]), "early"
        for body in self.sent:
            if body in self.recalled:
                assert body not in came, "it was recalled"
            elif body not in self.attempted:
                assert body in came, "it was acknowledged"
        assert parts.broker.timer_delivery.waiting == 0
        self.repeated = sum(count - 1 for count in came.values())


async def test_a_batch_that_a_power_cut_tears_comes_again(tmp_path: Path) -> None:
    """Progress is behind the messages in the log: without it they count as not delivered."""
    disk, clock = SimulatedDisk(1), LoopClock()
    parts = await Parts.begin(tmp_path, clock=clock, disk=disk)
    bodies = {b"%d" % number for number in range(40)}
    for body in sorted(bodies):
        await timed(parts, body, 1_000)
    parts.flusher.hold()
    await asyncio.sleep(1.1)
    parts.store.flush.write()
    assert parts.store.written_offset > parts.store.flushed_offset
    torn = 0
    for seed in range(12):
        again = await Parts.begin(tmp_path, clock=clock, disk=disk.after_power_cut(seed))
        torn += 0 < again.store.max_offset("t", 0) < len(bodies)
        await asyncio.sleep(0.01)
        assert set(await again.bodies("t")) == bodies
        await again.end()
    assert torn > 2
    parts.flusher.let_go()
    await parts.end()


@pytest.mark.parametrize("seed", range(12))
async def test_a_crash_at_any_time_loses_nothing_and_brings_nothing_back(
    tmp_path: Path, seed: int
) -> None:
    campaign = Campaign(seed, tmp_path)
    await campaign.run()
    assert campaign.cuts == 5
    assert len(campaign.sent) > 30


async def test_progress_of_a_queue_that_counts_from_0_again_skips_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages have all expired, and its consume queue was lost."""
    monkeypatch.setattr(timer_table, "_BLOCK_BITS", 0)  # as if they were thousands
    first = await Parts.begin(tmp_path, **SMALL_FILES)
    for number in range(5):
        await timed(first, b"gone", 5_000 + number * 100)
    await fill(first)
    await asyncio.sleep(6)
    assert await clean(first) > 0
    await first.end()
    lose(tmp_path / "store", "consumequeue", "index", "checkpoint")
    second = await Parts.begin(tmp_path, clock=first.clock, **SMALL_FILES)
    assert second.store.max_offset(names.TIMER_TOPIC, 0) == 0
    before = len(await second.bodies("t"))
    await timed(second, b"a", 5_000)
    await second.end()
    third = await Parts.begin(tmp_path, clock=first.clock, **SMALL_FILES)
    await timed(third, b"b", 4_000)
    await asyncio.sleep(6)
    assert sorted((await third.bodies("t"))[before:]) == [b"a", b"b"]
    await third.end()
