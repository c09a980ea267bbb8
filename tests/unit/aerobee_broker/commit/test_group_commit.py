"""Group commit: acknowledged means durable, visible means durable, one flush for many appends."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aerobee_broker.delivery.send.send import SendResult
from aerobee_broker.errors import (
    DiskFull,
    FlushTimeout,
    StoreFlushError,
    StoreReadOnly,
    StoreWriteError,
)
from aerobee_wire.status import Code
from support.broker.harness import Parts
from support.clock.virtual_loop import run_ready_tasks
from support.disk.broken_disk import BrokenDisk


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    parts = await Parts.begin(tmp_path)
    await parts.send("t", b"first")  # makes the topic
    yield parts
    parts.flusher.let_go()
    await parts.end()


async def test_a_send_is_answered_only_after_the_flush(parts: Parts) -> None:
    parts.flusher.hold()
    send = asyncio.create_task(parts.send("t", b"a"))
    await run_ready_tasks()
    assert not send.done()
    assert await parts.bodies("t") == [b"first"], "nothing is visible before it is durable"
    parts.flusher.let_go()
    assert (await send)[0].queue_offset == 1
    assert await parts.bodies("t") == [b"first", b"a"]


async def test_appends_of_one_loop_turn_share_a_flush(parts: Parts) -> None:
    before = parts.flusher.calls
    await asyncio.gather(*(parts.send("t", b"x%d" % number) for number in range(50)))
    assert parts.flusher.calls == before + 1


async def test_appends_during_a_flush_share_the_next(parts: Parts) -> None:
    before = parts.flusher.calls
    parts.flusher.hold()
    first = asyncio.create_task(parts.send("t", b"a"))
    await run_ready_tasks()
    others = [asyncio.create_task(parts.send("t", b"b")) for _ in range(10)]
    await run_ready_tasks()
    parts.flusher.let_go()
    await asyncio.gather(first, *others)
    assert parts.flusher.calls == before + 2


async def test_after_a_flush_timeout_the_message_stays_stored(parts: Parts) -> None:
    parts.flusher.hold()
    with pytest.raises(FlushTimeout) as caught:
        await parts.send("t", b"a")
    assert (caught.value.code, caught.value.retryable) == (Code.FLUSH_DISK_TIMEOUT, False)
    parts.flusher.let_go()
    await parts.send("t", b"b")
    assert await parts.bodies("t") == [b"first", b"a", b"b"]


async def test_each_waiter_has_its_own_timeout(parts: Parts) -> None:
    parts.flusher.hold()
    first = asyncio.create_task(parts.send("t", b"a"))
    await asyncio.sleep(3)
    second = asyncio.create_task(parts.send("t", b"b"))
    await asyncio.sleep(2.5)
    assert first.done() and not second.done()
    parts.flusher.let_go()
    assert (await second)[0].queue_offset == 2
    with pytest.raises(FlushTimeout):
        await first


async def test_a_cancelled_caller_leaves_the_others_their_answer(parts: Parts) -> None:
    parts.flusher.hold()
    gone, stays = (asyncio.create_task(parts.send("t", body)) for body in (b"a", b"b"))
    await run_ready_tasks()
    gone.cancel()
    await run_ready_tasks()
    parts.flusher.let_go()
    assert (await stays)[0].queue_offset == 2


async def test_after_a_failed_flush_nothing_is_acknowledged_ever_again(tmp_path: Path) -> None:
    disk = BrokenDisk()
    parts = await Parts.begin(tmp_path, disk=disk)
    await parts.send("t", b"a")
    disk.sync_error = errno.EIO
    results = await asyncio.gather(
        *(parts.send("t", b"b") for _ in range(5)), return_exceptions=True
    )
    assert all(isinstance(result, StoreFlushError) for result in results)
    disk.sync_error = 0
    with pytest.raises(StoreReadOnly):
        await parts.send("t", b"c")
    assert await parts.bodies("t") == [b"a"]
    assert "flushing" in parts.broker.report.status().read_only_reason


async def test_a_full_disk_refuses_until_there_is_room(tmp_path: Path) -> None:
    disk = BrokenDisk()
    parts = await Parts.begin(tmp_path, disk=disk)
    await parts.send("t", b"a")
    disk.write_error = errno.ENOSPC
    with pytest.raises(DiskFull):
        await parts.send("t", b"b")
    await asyncio.sleep(0)
    disk.write_error = 0
    assert (await parts.send("t", b"c"))[0].queue_offset == 1
    assert await parts.bodies("t") == [b"a", b"c"]
    await parts.end()


async def test_a_failed_write_rolls_back_later_appends_too(tmp_path: Path) -> None:
    """They would lie behind a gap: none is acknowledged, and their offsets are given again."""
    disk = BrokenDisk()
    parts = await Parts.begin(tmp_path, disk=disk)
    await parts.send("t", b"a")
    disk.write_error = errno.ENOSPC
    parts.flusher.hold()
    first = asyncio.create_task(parts.send("t", b"b"))
    await run_ready_tasks()
    others = [asyncio.create_task(parts.send("t", b"c")) for _ in range(5)]
    await run_ready_tasks()
    parts.flusher.let_go()
    results = await asyncio.gather(first, *others, return_exceptions=True)
    assert [type(result) for result in results] == [DiskFull] * 6
    assert parts.store.end_offset == parts.store.written_offset == parts.store.flushed_offset
    disk.write_error = 0
    assert (await parts.send("t", b"d"))[0].queue_offset == 1
    assert await parts.bodies("t") == [b"a", b"d"]
    await parts.end()


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_appends_are_blocked_until_a_failure_is_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: str
) -> None:
    """An append in between would take the offsets of the one that failed, and build on what its
    sender still has in memory."""
    disk = BrokenDisk()
    parts = await Parts.begin(tmp_path, disk=disk, flushDiskType=flush)
    await parts.send("t", b"a")
    forget = parts.store.flush.roll_back
    between: list[asyncio.Task[list[SendResult]]] = []

    def forget_and_go_on() -> None:
        forget()
        disk.write_error = 0
        between.append(asyncio.create_task(parts.send("t", b"c")))

    monkeypatch.setattr(parts.store.flush, "roll_back", forget_and_go_on)
    disk.write_error = errno.ENOSPC
    with pytest.raises(DiskFull):
        await parts.send("t", b"b")
    with pytest.raises(DiskFull):
        await between[0]
    await asyncio.sleep(0)
    assert (await parts.send("t", b"d"))[0].queue_offset == 1
    await parts.broker.log.flushed()
    assert await parts.bodies("t") == [b"a", b"d"]
    await parts.end()


async def test_after_a_failed_write_nothing_is_acknowledged_ever_again(tmp_path: Path) -> None:
    """For any error but a lack of room (F8)."""
    disk = BrokenDisk()
    parts = await Parts.begin(tmp_path, disk=disk)
    await parts.send("t", b"a")
    disk.write_error = errno.EIO
    results = await asyncio.gather(
        *(parts.send("t", b"b") for _ in range(5)), return_exceptions=True
    )
    assert all(isinstance(result, StoreWriteError) for result in results)
    disk.write_error = 0
    with pytest.raises(StoreReadOnly):
        await parts.send("t", b"c")
    assert await parts.bodies("t") == [b"a"]


async def test_the_loop_writes_nothing_itself(parts: Parts) -> None:
    """The flusher hands appends to the operating system."""
    written = parts.store.written_offset
    parts.flusher.hold()
    send = asyncio.create_task(parts.send("t", b"a"))
    await run_ready_tasks()
    assert parts.store.written_offset == written < parts.store.end_offset
    parts.flusher.let_go()
    await send
    assert parts.store.written_offset == parts.store.end_offset
