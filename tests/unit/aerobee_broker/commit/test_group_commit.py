"""Group commit: what is acknowledged is durable, what is visible is durable, one flush for many."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aerobee_broker.delivery.retry.send_back import Entry
from aerobee_broker.delivery.send.send import SendResult
from aerobee_broker.disk import RealDisk, RealFile
from aerobee_broker.errors import (
    DiskFull,
    FlushTimeout,
    StoreFlushError,
    StoreReadOnly,
    StoreWriteError,
    TooMuchUnflushed,
)
from aerobee_wire.status import Code, MqError
from support.broker.harness import Parts
from support.broker.pop_consumer import PopConsumer


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    parts = await Parts.begin(tmp_path)
    await parts.send("t", b"first")  # makes the topic
    yield parts
    parts.flusher.let_go()
    await parts.end()


async def started(*waits: asyncio.Task[object]) -> None:
    """Lets tasks run until they wait."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_send_is_answered_only_after_the_flush(parts: Parts) -> None:
    parts.flusher.hold()
    send = asyncio.create_task(parts.send("t", b"a"))
    await started()
    assert not send.done()
    assert await parts.bodies("t") == [b"first"], "nothing is visible before it is durable"
    parts.flusher.let_go()
    assert (await send)[0].queue_offset == 1
    assert await parts.bodies("t") == [b"first", b"a"]


async def test_appends_of_one_turn_share_a_flush(parts: Parts) -> None:
    before = parts.flusher.calls
    await asyncio.gather(*(parts.send("t", b"x%d" % number) for number in range(50)))
    assert parts.flusher.calls == before + 1


async def test_what_comes_during_a_flush_goes_with_the_next(parts: Parts) -> None:
    before = parts.flusher.calls
    parts.flusher.hold()
    first = asyncio.create_task(parts.send("t", b"a"))
    await started()
    others = [asyncio.create_task(parts.send("t", b"b")) for _ in range(10)]
    await started()
    parts.flusher.let_go()
    await asyncio.gather(first, *others)
    assert parts.flusher.calls == before + 2


async def test_a_slow_disk_is_told_with_its_own_code_and_the_message_stays(parts: Parts) -> None:
    parts.flusher.hold()
    with pytest.raises(FlushTimeout, match="within 5000 ms") as caught:
        await parts.send("t", b"a")
    assert (caught.value.code, caught.value.retryable) == (Code.FLUSH_DISK_TIMEOUT, False)
    parts.flusher.let_go()
    await parts.send("t", b"b")
    assert await parts.bodies("t") == [b"first", b"a", b"b"]


async def test_each_waiter_has_its_own_time(parts: Parts) -> None:
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


async def test_a_caller_that_gives_up_leaves_the_others_their_answer(parts: Parts) -> None:
    parts.flusher.hold()
    gone, stays = (asyncio.create_task(parts.send("t", body)) for body in (b"a", b"b"))
    await started()
    gone.cancel()
    await started()
    parts.flusher.let_go()
    assert (await stays)[0].queue_offset == 2


class BadDisk(RealDisk):
    """Files of the commit log fail once `number` is set: EIO to sync, or ENOSPC to write."""

    def __init__(self) -> None:
        self.sync_error = 0
        self.write_error = 0

    def open(self, path: Path, *, create: bool = False) -> RealFile:
        disk = self

        class File(RealFile):
            __slots__ = ()

            def sync(self) -> None:
                if disk.sync_error and "commitlog" in str(self.path):
                    raise OSError(disk.sync_error, "injected")
                super().sync()

            def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
                if disk.write_error and "commitlog" in str(self.path):
                    raise OSError(disk.write_error, "injected")
                super().pwrite(data, offset)

        file = super().open(path, create=create)
        return File(file.path, file._fd)


async def test_after_a_failed_flush_nothing_is_acknowledged_ever_again(tmp_path: Path) -> None:
    disk = BadDisk()
    parts = await Parts.begin(tmp_path, disk=disk)
    await parts.send("t", b"a")
    disk.sync_error = errno.EIO
    results = await asyncio.gather(
        *(parts.send("t", b"b") for _ in range(5)), return_exceptions=True
    )
    assert all(isinstance(result, StoreFlushError) for result in results)
    disk.sync_error = 0
    with pytest.raises(StoreReadOnly, match="read-only"):
        await parts.send("t", b"c")
    assert await parts.bodies("t") == [b"a"]
    assert "flushing" in parts.broker.administration.status().read_only_reason


async def test_a_full_disk_refuses_and_takes_again_when_there_is_room(tmp_path: Path) -> None:
    disk = BadDisk()
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


async def test_a_write_that_fails_takes_back_what_came_meanwhile(tmp_path: Path) -> None:
    """It would lie behind a gap: nobody is answered, and the offsets are given again."""
    disk = BadDisk()
    parts = await Parts.begin(tmp_path, disk=disk)
    await parts.send("t", b"a")
    disk.write_error = errno.ENOSPC
    parts.flusher.hold()
    first = asyncio.create_task(parts.send("t", b"b"))
    await started()
    others = [asyncio.create_task(parts.send("t", b"c")) for _ in range(5)]
    await started()
    parts.flusher.let_go()
    results = await asyncio.gather(first, *others, return_exceptions=True)
    assert [type(result) for result in results] == [DiskFull] * 6
    assert parts.store.end_offset == parts.store.written_offset == parts.store.flushed_offset
    disk.write_error = 0
    assert (await parts.send("t", b"d"))[0].queue_offset == 1
    assert await parts.bodies("t") == [b"a", b"d"]
    await parts.end()


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_nobody_appends_before_a_failure_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: str
) -> None:
    """It would take the place of what failed, and build on what its sender still has in memory."""
    disk = BadDisk()
    parts = await Parts.begin(tmp_path, disk=disk, flushDiskType=flush)
    await parts.send("t", b"a")
    forget = parts.store.forget_unwritten
    between: list[asyncio.Task[list[SendResult]]] = []

    def forget_and_go_on() -> None:
        forget()
        disk.write_error = 0
        between.append(asyncio.create_task(parts.send("t", b"c")))

    monkeypatch.setattr(parts.store, "forget_unwritten", forget_and_go_on)
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
    """F8, for any error but a lack of room."""
    disk = BadDisk()
    parts = await Parts.begin(tmp_path, disk=disk)
    await parts.send("t", b"a")
    disk.write_error = errno.EIO
    results = await asyncio.gather(
        *(parts.send("t", b"b") for _ in range(5)), return_exceptions=True
    )
    assert all(isinstance(result, StoreWriteError) for result in results)
    disk.write_error = 0
    with pytest.raises(StoreReadOnly, match="read-only"):
        await parts.send("t", b"c")
    assert await parts.bodies("t") == [b"a"]


async def test_the_loop_writes_nothing_itself(parts: Parts) -> None:
    """What is appended while the disk works is not even handed to the system before."""
    written = parts.store.written_offset
    parts.flusher.hold()
    send = asyncio.create_task(parts.send("t", b"a"))
    await started()
    assert parts.store.written_offset == written < parts.store.end_offset
    parts.flusher.let_go()
    await send
    assert parts.store.written_offset == parts.store.end_offset


async def test_too_much_that_waits_for_the_disk_turns_senders_away(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerobee_broker.commit.durable_log.MAX_UNFLUSHED_BYTES", 1_000)
    parts.flusher.hold()
    waiting = asyncio.create_task(parts.send("t", b"x" * 2_000))
    await started()
    with pytest.raises(MqError) as caught:
        await parts.send("t", b"y")
    assert (caught.value.code, caught.value.retryable) == (Code.SYSTEM_BUSY, True)
    assert caught.value.retry_after_ms
    parts.flusher.let_go()
    await waiting


async def test_too_much_that_waits_for_the_disk_stops_leases_but_no_acknowledgement(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    await parts.group("billing")
    [stored] = await parts.send("t", b"a")
    consumer = PopConsumer(parts, "billing", "t")
    [got] = await consumer.pop(1, start="earliest")
    monkeypatch.setattr("aerobee_broker.commit.durable_log.MAX_UNFLUSHED_BYTES", 1_000)
    parts.flusher.hold()
    waiting = asyncio.create_task(parts.send("t", b"x" * 2_000))
    await started()
    with pytest.raises(TooMuchUnflushed):
        await consumer.pop(1)
    with pytest.raises(TooMuchUnflushed):
        await parts.broker.send_back.send_back("billing", [Entry(stored.physical_offset)])
    acknowledging = asyncio.create_task(consumer.ack(got))
    await started()
    parts.flusher.let_go()
    assert await acknowledging == [Code.SUCCESS]
    await waiting
    assert len(await consumer.pop()) == 2, "what was turned away before is given now"
