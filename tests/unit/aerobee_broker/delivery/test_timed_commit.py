"""Asynchronous flush: acknowledged once written, visible once durable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aerobee_broker.delivery.reader import Pull
from aerobee_broker.store.messages import ReadStatus
from support.broker_parts import Parts


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    parts = await Parts.begin(tmp_path, flushDiskType="ASYNC_FLUSH")
    yield parts
    await parts.end()


async def test_an_answer_does_not_wait_for_the_disk(parts: Parts) -> None:
    await parts.send("t", b"a")
    assert parts.store.written_offset == parts.store.end_offset > parts.store.flushed_offset
    assert await parts.bodies("t") == []


async def test_a_little_is_flushed_after_the_thorough_interval(parts: Parts) -> None:
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
    pull = Pull("g", "t", 0, 1, suspend_timeout_ms=5_000, browse=True)
    result, _ = await parts.broker.reader.pull(pull)
    assert (result.status, result.message_count) == (ReadStatus.FOUND, 1)


async def test_a_clean_stop_flushes_what_is_left(tmp_path: Path) -> None:
    parts = await Parts.begin(tmp_path, flushDiskType="ASYNC_FLUSH")
    await parts.send("t", b"a", b"b")
    await parts.end()
    again = await Parts.begin(tmp_path)
    assert await again.bodies("t") == [b"a", b"b"]
    await again.end()
