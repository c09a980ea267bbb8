"""Interval commit (asynchronous flush): acknowledged once written, visible once flushed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.delivery.pull.pull import PullRequest
from aerobee_broker.store.messages import ReadStatus
from support.broker.harness import Inline, Parts, T


class LateAnswer(Inline):
    """Runs at once; while held, the loop gets the result later, as from a busy thread."""

    async def _run(self, function: Callable[[], T]) -> T:
        result = function()
        await self.open.wait()
        return result


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    parts = await Parts.begin(tmp_path, flushDiskType="ASYNC_FLUSH")
    yield parts
    await parts.end()


async def test_a_send_is_answered_before_the_flush(parts: Parts) -> None:
    await parts.send("t", b"a")
    assert parts.store.written_offset == parts.store.end_offset > parts.store.flushed_offset
    assert await parts.bodies("t") == []


async def test_few_bytes_are_flushed_after_the_thorough_interval(parts: Parts) -> None:
    await asyncio.sleep(60)  # the last flush is long ago
    await parts.send("t", b"a")
    await asyncio.sleep(0.6)
    await parts.send("t", b"b")
    await asyncio.sleep(9)
    assert await parts.bodies("t") == [b"a"]
    await asyncio.sleep(2)
    assert await parts.bodies("t") == [b"a", b"b"]


async def test_four_pages_are_flushed_at_the_next_interval(parts: Parts) -> None:
    await asyncio.sleep(60)
    await parts.send("t", b"a")
    await asyncio.sleep(0.6)
    await parts.send("t", b"b" * 4 * 4_096)
    await asyncio.sleep(0.6)
    assert len(await parts.bodies("t")) == 2


async def test_a_waiting_consumer_makes_the_next_interval_flush(parts: Parts) -> None:
    await parts.group("g")
    await asyncio.sleep(60)
    await parts.send("t", b"a")
    await asyncio.sleep(0.6)
    await parts.send("t", b"b")
    pull = PullRequest("g", "t", 0, 1, suspend_timeout_ms=5_000, browse=True)
    result, _ = await parts.broker.pull.pull(pull)
    assert (result.status, result.message_count) == (ReadStatus.FOUND, 1)


async def test_a_clean_stop_flushes_the_rest(tmp_path: Path) -> None:
    parts = await Parts.begin(tmp_path, flushDiskType="ASYNC_FLUSH")
    await parts.send("t", b"a", b"b")
    await parts.end()
    again = await Parts.begin(tmp_path)
    assert await again.bodies("t") == [b"a", b"b"]
    await again.end()


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_flushed_means_visible_right_after_the_sync(tmp_path: Path, flush: str) -> None:
    """The flusher's thread knows before the loop confirms: a recall in between found nothing."""
    flusher = LateAnswer()
    parts = await Parts.begin(tmp_path, flusher=flusher, flushDiskType=flush)
    await parts.send("t", b"a")
    await parts.broker.log.flushed()
    flusher.hold()
    send = asyncio.create_task(parts.send("t", b"b"))
    wait = asyncio.create_task(parts.broker.commit.flushed(parts.store.end_offset + 1))
    await asyncio.sleep(1)
    assert parts.store.flushed_offset == parts.store.end_offset > parts.store.confirmed_offset
    later = asyncio.create_task(parts.broker.log.flushed())
    await asyncio.sleep(1)
    assert not later.done() and not wait.done()
    flusher.let_go()
    await later
    assert await parts.bodies("t") == [b"a", b"b"]
    await asyncio.gather(send, wait)
    await parts.end()


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_the_blank_at_the_end_of_a_file_counts_as_flushed(tmp_path: Path, flush: str) -> None:
    size = 1 << 16
    options: dict[str, Any] = {"flushDiskType": flush, "mappedFileSizeCommitLog": size}
    parts = await Parts.begin(tmp_path, **options)
    await parts.send("t", b"a")
    parts.store._log.roll()
    await parts.broker.commit.flushed(size)
    assert parts.store.confirmed_offset < parts.store.flushed_offset == size
    await parts.end()
    again = await Parts.begin(tmp_path, **options)
    assert again.store.confirmed_offset == again.store.end_offset == size
    await again.broker.commit.flushed(size)
    await again.end()
