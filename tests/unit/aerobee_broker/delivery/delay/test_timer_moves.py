"""Waiting messages move out of the log files that retention wants."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path

import pytest

from aerobee_broker.delivery.delay import timer_table
from aerobee_broker.delivery.send.send import SendResult
from aerobee_broker.errors import DiskFull, NotRecalled
from aerobee_wire import topics as names
from support.broker.delayed import SMALL_FILES, clean, fill, lose, recall, timed
from support.broker.harness import Begin, BrokerHarness, InlineWorker
from support.broker.pop_restarts import copy_store, failing_disk

HOUR_MS = 3_600_000


async def filled(begin: Begin, *bodies: bytes) -> tuple[BrokerHarness, list[SendResult]]:
    """A broker with messages that wait in a log file which retention wants to delete."""
    harness = await begin(**SMALL_FILES)
    waiting = [await timed(harness, body, HOUR_MS) for body in bodies]
    await fill(harness)
    return harness, waiting


async def test_waiting_messages_move_out_of_expired_files(begin: Begin) -> None:
    harness, (first, second) = await filled(begin, b"first", b"second")
    assert await clean(harness) == 0, "messages wait in the file"
    await asyncio.sleep(10)
    assert harness.broker.delay.timers.waiting == 2
    assert await clean(harness) > max(first.physical_offset, second.physical_offset)
    await recall(harness, first)
    with pytest.raises(NotRecalled):
        await recall(harness, first)
    await asyncio.sleep(HOUR_MS / 1000 - 30)
    assert await harness.bodies("t") == []
    await asyncio.sleep(30)
    assert await harness.bodies("t") == [b"second"]
    assert (await harness.read("t"))[0].unique_message_id == second.unique_message_id


@pytest.mark.parametrize("how", ["stop", "crash"])
async def test_moved_messages_are_found_after_a_restart(
    begin: Begin, tmp_path: Path, how: str
) -> None:
    first, _ = await filled(begin, b"x", b"y")
    assert await clean(first) == 0
    await asyncio.sleep(10)
    path = copy_store(first) if how == "crash" else tmp_path
    second = await begin(path, mappedFileSizeCommitLog=65_536)
    assert second.broker.delay.timers.waiting == 2
    await asyncio.sleep(HOUR_MS / 1000)
    assert await second.bodies("t") == [b"x", b"y"]


async def test_a_waiting_message_keeps_its_file_during_the_first_batch(begin: Begin) -> None:
    """Retention looks for the first time after a start while a batch is not durable yet."""
    harness = await begin(**SMALL_FILES)
    await timed(harness, b"soon", 1_000)
    later = await timed(harness, b"later", HOUR_MS)
    await fill(harness)
    await harness.end()
    await asyncio.sleep(5)
    flusher = InlineWorker()
    flusher.hold()
    harness = await begin(flusher=flusher, **SMALL_FILES)
    assert await clean(harness) <= later.physical_offset
    flusher.let_go()
    await asyncio.sleep(HOUR_MS / 1000)
    assert await harness.bodies("t") == [b"soon", b"later"]


async def test_a_recalled_message_keeps_no_file(begin: Begin) -> None:
    harness, waiting = await filled(begin, b"a")
    await recall(harness, waiting[0])
    assert await clean(harness) > waiting[0].physical_offset


async def test_a_message_is_recalled_while_it_moves(begin: Begin) -> None:
    harness, waiting = await filled(begin, b"a")
    await clean(harness)
    harness.flusher.hold()
    await asyncio.sleep(10)  # the move waits for the flush
    under_way = asyncio.create_task(recall(harness, waiting[0]))
    await asyncio.sleep(0.1)
    assert not under_way.done()
    harness.flusher.let_go()
    await under_way
    await asyncio.sleep(HOUR_MS / 1000)
    assert await harness.bodies("t") == []


async def test_a_message_of_a_deleted_topic_does_not_move(begin: Begin) -> None:
    harness, waiting = await filled(begin, b"a")
    await harness.send("t", b"x")
    await harness.broker.administration.delete_topic("t")
    await harness.send("t", b"new")
    await clean(harness)
    await asyncio.sleep(10)
    assert await clean(harness) > waiting[0].physical_offset
    await asyncio.sleep(HOUR_MS / 1000)
    assert await harness.bodies("t") == [b"new"]


@pytest.mark.parametrize("room", [True, False])
async def test_a_slow_move_loses_and_repeats_no_message(begin: Begin, room: bool) -> None:
    harness, _ = await filled(begin, b"a")
    await clean(harness)

    disk = nullcontext() if room else failing_disk(harness, DiskFull("there is no room"))
    with disk:
        harness.flusher.hold()
        await asyncio.sleep(30)  # longer than syncFlushTimeout
        harness.flusher.let_go()
        await asyncio.sleep(0.1)
    assert harness.broker.delay.timers.waiting == 1
    await asyncio.sleep(HOUR_MS / 1000)
    assert await harness.bodies("t") == [b"a"]


async def test_progress_of_a_lost_queue_skips_no_message(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its messages expired, and its consume queue was lost: its offsets count from 0 again."""
    monkeypatch.setattr(timer_table, "_BLOCK_BITS", 0)  # a block for each message
    first = await begin(**SMALL_FILES)
    for number in range(5):
        await timed(first, b"gone", 5_000 + number * 100)
    await fill(first)
    await asyncio.sleep(6)
    assert await clean(first) > 0
    await first.end()
    lose(first.store.path, "consumequeue", "index", "checkpoint")
    second = await begin(**SMALL_FILES)
    assert second.store.max_offset(names.TIMER_TOPIC, 0) == 0
    before = len(await second.bodies("t"))
    await timed(second, b"a", 5_000)
    third = await begin(**SMALL_FILES)
    await timed(third, b"b", 4_000)
    await asyncio.sleep(6)
    assert sorted((await third.bodies("t"))[before:]) == [b"a", b"b"]
