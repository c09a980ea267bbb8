"""Interval commit (asynchronous flush): acknowledged once written, visible once flushed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aerobee_broker.delivery.pull.reading import PullRequest
from aerobee_broker.store.messages import ReadStatus
from support.broker.harness import Begin, BrokerHarness, InlineWorker, T


class LateAnswer(InlineWorker):
    """Runs at once; while held, the loop gets the result later, as from a busy thread."""

    async def _run(self, function: Callable[[], T]) -> T:
        result = function()
        await self.open.wait()
        return result


@pytest.fixture
async def harness(begin: Begin) -> BrokerHarness:
    return await begin(flushDiskType="ASYNC_FLUSH")


async def test_a_send_is_answered_before_the_flush(harness: BrokerHarness) -> None:
    await harness.send("t", b"a")
    assert harness.store.written_offset == harness.store.end_offset > harness.store.flushed_offset
    assert await harness.bodies("t") == []


async def test_few_bytes_are_flushed_after_the_thorough_interval(harness: BrokerHarness) -> None:
    await asyncio.sleep(60)  # the last flush is long ago
    await harness.send("t", b"a")
    await asyncio.sleep(0.6)
    await harness.send("t", b"b")
    await asyncio.sleep(9)
    assert await harness.bodies("t") == [b"a"]
    await asyncio.sleep(2)
    assert await harness.bodies("t") == [b"a", b"b"]


async def test_four_pages_are_flushed_at_the_next_interval(harness: BrokerHarness) -> None:
    await asyncio.sleep(60)
    await harness.send("t", b"a")
    await asyncio.sleep(0.6)
    await harness.send("t", b"b" * 4 * 4_096)
    await asyncio.sleep(0.6)
    assert len(await harness.bodies("t")) == 2


async def test_a_waiting_consumer_makes_the_next_interval_flush(harness: BrokerHarness) -> None:
    await harness.group("g")
    await asyncio.sleep(60)
    await harness.send("t", b"a")
    await asyncio.sleep(0.6)
    await harness.send("t", b"b")
    pull = PullRequest("g", "t", 0, 1, suspend_timeout_ms=5_000, browse=True)
    result, _ = await harness.broker.consuming.pull.pull(pull)
    assert (result.status, result.message_count) == (ReadStatus.FOUND, 1)


async def test_a_clean_stop_flushes_the_rest(begin: Begin) -> None:
    harness = await begin(flushDiskType="ASYNC_FLUSH")
    await harness.send("t", b"a", b"b")
    again = await begin()
    assert await again.bodies("t") == [b"a", b"b"]


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_flushed_means_visible_right_after_the_sync(begin: Begin, flush: str) -> None:
    """The flusher's thread knows before the loop confirms: a recall in between found nothing."""
    flusher = LateAnswer()
    harness = await begin(flusher=flusher, flushDiskType=flush)
    await harness.send("t", b"a")
    await harness.broker.log.flushed()
    flusher.hold()
    send = asyncio.create_task(harness.send("t", b"b"))
    wait = asyncio.create_task(harness.broker.commit.flushed(harness.store.end_offset + 1))
    await asyncio.sleep(1)
    assert harness.store.flushed_offset == harness.store.end_offset > harness.store.confirmed_offset
    later = asyncio.create_task(harness.broker.log.flushed())
    await asyncio.sleep(1)
    assert not later.done() and not wait.done()
    flusher.let_go()
    await later
    assert await harness.bodies("t") == [b"a", b"b"]
    await asyncio.gather(send, wait)


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_the_blank_at_the_end_of_a_file_counts_as_flushed(begin: Begin, flush: str) -> None:
    size = 1 << 16
    options: dict[str, Any] = {"flushDiskType": flush, "mappedFileSizeCommitLog": size}
    harness = await begin(**options)
    await harness.send("t", b"a")
    harness.store._log.roll()
    await harness.broker.commit.flushed(size)
    assert harness.store.confirmed_offset < harness.store.flushed_offset == size
    again = await begin(**options)
    assert again.store.confirmed_offset == again.store.end_offset == size
    await again.broker.commit.flushed(size)
