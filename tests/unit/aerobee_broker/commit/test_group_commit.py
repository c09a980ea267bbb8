"""Group commit: acknowledged means durable, visible means durable, one flush for many appends."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from aerobee_broker.delivery.send.send import SendResult
from aerobee_broker.errors import (
    DiskFull,
    FlushTimeout,
    StoreFlushError,
    StoreReadOnly,
    StoreWriteError,
)
from aerobee_wire.status import Code, MqError
from support.broker.harness import Begin, BrokerHarness
from support.broker.replicas import ScriptedReplicas
from support.clock.virtual_loop import run_ready_tasks
from support.disk.broken_disk import BrokenDisk


async def test_a_send_is_answered_only_after_the_flush(harness: BrokerHarness) -> None:
    harness.flusher.hold()
    send = asyncio.create_task(harness.send("t", b"a"))
    await run_ready_tasks()
    assert not send.done()
    assert await harness.bodies("t") == [b"first"], "nothing is visible before it is durable"
    harness.flusher.let_go()
    assert (await send)[0].queue_offset == 1
    assert await harness.bodies("t") == [b"first", b"a"]


async def test_appends_of_one_loop_turn_share_a_flush(harness: BrokerHarness) -> None:
    before = harness.flusher.calls
    await asyncio.gather(*(harness.send("t", b"x%d" % number) for number in range(50)))
    assert harness.flusher.calls == before + 1


async def test_appends_during_a_flush_share_the_next(harness: BrokerHarness) -> None:
    before = harness.flusher.calls
    harness.flusher.hold()
    first = asyncio.create_task(harness.send("t", b"a"))
    await run_ready_tasks()
    others = [asyncio.create_task(harness.send("t", b"b")) for _ in range(10)]
    await run_ready_tasks()
    harness.flusher.let_go()
    await asyncio.gather(first, *others)
    assert harness.flusher.calls == before + 2


async def test_after_a_flush_timeout_the_message_stays_stored(harness: BrokerHarness) -> None:
    harness.flusher.hold()
    with pytest.raises(FlushTimeout) as caught:
        await harness.send("t", b"a")
    assert (caught.value.code, caught.value.retryable) == (Code.FLUSH_DISK_TIMEOUT, False)
    harness.flusher.let_go()
    await harness.send("t", b"b")
    assert await harness.bodies("t") == [b"first", b"a", b"b"]


async def test_each_waiter_has_its_own_timeout(harness: BrokerHarness) -> None:
    harness.flusher.hold()
    first = asyncio.create_task(harness.send("t", b"a"))
    await asyncio.sleep(3)
    second = asyncio.create_task(harness.send("t", b"b"))
    await asyncio.sleep(2.5)
    assert first.done() and not second.done()
    harness.flusher.let_go()
    assert (await second)[0].queue_offset == 2
    with pytest.raises(FlushTimeout):
        await first


async def test_a_cancelled_caller_leaves_the_others_their_answer(harness: BrokerHarness) -> None:
    harness.flusher.hold()
    gone, stays = (asyncio.create_task(harness.send("t", body)) for body in (b"a", b"b"))
    await run_ready_tasks()
    gone.cancel()
    await run_ready_tasks()
    harness.flusher.let_go()
    assert (await stays)[0].queue_offset == 2


@pytest.mark.parametrize(
    ("broken", "error"), [("sync_error", StoreFlushError), ("write_error", StoreWriteError)]
)
async def test_after_a_failure_nothing_is_acknowledged_ever_again(
    harness: BrokerHarness, disk: BrokenDisk, broken: str, error: type[MqError]
) -> None:
    """Of a flush, and of a write for any reason but a lack of room (F8)."""
    setattr(disk, broken, errno.EIO)
    results = await asyncio.gather(
        *(harness.send("t", b"b") for _ in range(5)), return_exceptions=True
    )
    assert [type(result) for result in results] == [error] * 5
    setattr(disk, broken, 0)
    with pytest.raises(StoreReadOnly):
        await harness.send("t", b"c")
    assert await harness.bodies("t") == [b"first"]
    assert harness.broker.report.status().read_only_reason


async def test_a_full_disk_refuses_until_there_is_room(
    harness: BrokerHarness, disk: BrokenDisk
) -> None:
    disk.write_error = errno.ENOSPC
    with pytest.raises(DiskFull):
        await harness.send("t", b"b")
    await asyncio.sleep(0)
    disk.write_error = 0
    assert (await harness.send("t", b"c"))[0].queue_offset == 1
    assert await harness.bodies("t") == [b"first", b"c"]


async def test_a_failed_write_rolls_back_later_appends_too(
    harness: BrokerHarness, disk: BrokenDisk
) -> None:
    """They would lie behind a gap: none is acknowledged, and their offsets are given again."""
    disk.write_error = errno.ENOSPC
    harness.flusher.hold()
    first = asyncio.create_task(harness.send("t", b"b"))
    await run_ready_tasks()
    others = [asyncio.create_task(harness.send("t", b"c")) for _ in range(5)]
    await run_ready_tasks()
    harness.flusher.let_go()
    results = await asyncio.gather(first, *others, return_exceptions=True)
    assert [type(result) for result in results] == [DiskFull] * 6
    assert harness.store.end_offset == harness.store.written_offset == harness.store.flushed_offset
    disk.write_error = 0
    assert (await harness.send("t", b"d"))[0].queue_offset == 1
    assert await harness.bodies("t") == [b"first", b"d"]


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_appends_are_blocked_until_a_failure_is_rolled_back(
    begin: Begin, disk: BrokenDisk, monkeypatch: pytest.MonkeyPatch, flush: str
) -> None:
    """An append in between would take the offsets of the one that failed, and build on what its
    sender still has in memory."""
    harness = await begin(disk=disk, flushDiskType=flush)
    await harness.send("t", b"a")
    forget = harness.store.flush.roll_back
    between: list[asyncio.Task[list[SendResult]]] = []

    def forget_and_go_on() -> None:
        forget()
        disk.write_error = 0
        between.append(asyncio.create_task(harness.send("t", b"c")))

    monkeypatch.setattr(harness.store.flush, "roll_back", forget_and_go_on)
    disk.write_error = errno.ENOSPC
    with pytest.raises(DiskFull):
        await harness.send("t", b"b")
    with pytest.raises(DiskFull):
        await between[0]
    await asyncio.sleep(0)
    assert (await harness.send("t", b"d"))[0].queue_offset == 1
    await harness.broker.log.flushed()
    assert await harness.bodies("t") == [b"a", b"d"]


async def test_the_loop_writes_nothing_itself(harness: BrokerHarness) -> None:
    """The flusher hands appends to the operating system."""
    written = harness.store.written_offset
    harness.flusher.hold()
    send = asyncio.create_task(harness.send("t", b"a"))
    await run_ready_tasks()
    assert harness.store.written_offset == written < harness.store.end_offset
    harness.flusher.let_go()
    await send
    assert harness.store.written_offset == harness.store.end_offset


# ---- errors that the store does not foresee ----


def fail_with(error: Exception) -> Callable[..., Any]:
    def failing(*_: object, **__: object) -> Any:
        raise error

    return failing


async def assert_ends_without_acknowledgement(harness: BrokerHarness) -> None:
    """Check that sends fail before their timeout, also later ones, and that the broker can stop."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)  # the error itself is reported there
    harness.flusher.hold()
    sends = [asyncio.create_task(harness.send("t", b"a"))]
    await run_ready_tasks()
    sends.append(asyncio.create_task(harness.send("t", b"during the flush")))
    await run_ready_tasks()
    harness.flusher.let_go()
    begin = loop.time()
    results = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(result) for result in results] == [StoreFlushError] * 2
    for _ in range(2):
        with pytest.raises(StoreReadOnly):
            await harness.send("t", b"later")
    await harness.broker.commit.drain()
    assert loop.time() == begin, "no wait ended with its timeout"
    assert await harness.bodies("t") == [b"first"]


@pytest.mark.parametrize("step", ["write", "sync"])
async def test_after_an_unforeseen_error_nothing_is_acknowledged(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(harness.store._log, step, fail_with(ValueError("injected")))
        await assert_ends_without_acknowledgement(harness)


async def test_a_failed_rollback_ends_the_waits(
    harness: BrokerHarness, disk: BrokenDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        disk.write_error = errno.ENOSPC
        patch.setattr(harness.store.flush, "roll_back", fail_with(ValueError("injected")))
        await assert_ends_without_acknowledgement(harness)


async def test_a_failed_line_in_the_log_changes_nothing(
    harness: BrokerHarness, disk: BrokenDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of the log may be full too."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    disk.write_error = errno.ENOSPC
    with monkeypatch.context() as patch:
        patch.setattr(structlog, "get_logger", fail_with(OSError(errno.ENOSPC, "injected")))
        for _ in range(2):
            with pytest.raises(DiskFull):
                await harness.send("t", b"b")
            await run_ready_tasks()
    disk.write_error = 0
    assert (await harness.send("t", b"c"))[0].queue_offset == 1
    assert await harness.bodies("t") == [b"first", b"c"]


async def test_a_closed_flusher_ends_the_waits(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)
    commit, begin = harness.broker.commit, loop.time()
    with monkeypatch.context() as patch:
        patch.setattr(commit, "_flusher", fail_with(RuntimeError("it is closed")))
        with pytest.raises(StoreFlushError):
            await harness.send("t", b"a")
        await commit.drain()
    assert loop.time() == begin


async def test_an_unforeseen_error_of_a_write_is_rolled_back_after_the_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With replicas, the sync is submitted with the write, and no rollback may run during it."""
    replicas, loop = ScriptedReplicas(), asyncio.get_running_loop()
    replicas.has = 1 << 40
    harness = await BrokerHarness.begin(tmp_path, replicas=replicas)
    loop.set_exception_handler(lambda *_: None)
    jobs: list[asyncio.Future[int]] = []

    def submit(_: object) -> asyncio.Future[int]:
        jobs.append(loop.create_future())
        return jobs[-1]

    with monkeypatch.context() as patch:
        patch.setattr(harness.broker.commit, "_flusher", submit)
        send = asyncio.create_task(harness.send("t", b"a"))
        await run_ready_tasks()
        writing, syncing = jobs
        writing.set_exception(ValueError("injected"))
        await run_ready_tasks()
        assert not send.done() and harness.store.end_offset > harness.store.written_offset
        syncing.set_result(harness.store.flushed_offset)
        with pytest.raises(StoreFlushError):
            await send
    assert harness.store.end_offset == harness.store.written_offset
    await harness.end()
