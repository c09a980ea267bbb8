"""Messages that wait for a delay level, and with a time of their own: what holds for both."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from aerobee_broker.errors import TransientReadError
from support.broker.delayed import delayed, timed
from support.broker.harness import Parts
from support.clock.virtual_loop import LoopClock

Wait = Callable[[Parts, bytes, str], Awaitable[object]]  # body, topic; waits a second


async def _by_level(parts: Parts, body: bytes, topic: str) -> None:
    await delayed(parts, body, 1, topic)


async def _by_time(parts: Parts, body: bytes, topic: str) -> None:
    await timed(parts, body, 1_000, topic)


@pytest.fixture(params=[_by_level, _by_time], ids=["level", "time"])
def wait(request: pytest.FixtureRequest) -> Wait:
    how: Wait = request.param
    return how


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    parts = await Parts.begin(tmp_path)
    yield parts
    await parts.end()


async def test_messages_due_during_a_stop_are_delivered_at_the_start(
    tmp_path: Path, wait: Wait
) -> None:
    clock = LoopClock()
    first = await Parts.begin(tmp_path, clock=clock)
    await wait(first, b"a", "t")
    await first.end()
    await asyncio.sleep(3_600)
    second = await Parts.begin(tmp_path, clock=clock)
    await asyncio.sleep(0.001)
    assert await second.bodies("t") == [b"a"]
    await second.end()


async def test_a_slow_disk_repeats_no_message(parts: Parts, wait: Wait) -> None:
    """The flush of the copies takes longer than syncFlushTimeout."""
    await wait(parts, b"a", "t")
    parts.flusher.hold()
    await asyncio.sleep(30)
    parts.flusher.let_go()
    await asyncio.sleep(30)
    assert await parts.bodies("t") == [b"a"]


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO])
async def test_a_message_unreadable_for_a_while_is_delivered_later(
    parts: Parts, wait: Wait, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """Neither too many open files nor one failed read prove that the record is damaged."""
    await wait(parts, b"a", "t")

    def refuse(place: int, size: int) -> bytes:
        raise OSError(error, "not now")

    with monkeypatch.context() as patch:
        patch.setattr(parts.store._log, "read", refuse)
        await asyncio.sleep(5)
        with pytest.raises(TransientReadError):
            parts.store.get(0)
    assert parts.store.corruption_count == 0
    await asyncio.sleep(10)
    assert await parts.bodies("t") == [b"a"]


async def test_an_unreadable_message_delays_others_by_a_minute(
    parts: Parts, wait: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    await wait(parts, b"bad", "t")
    bad = parts.store.end_offset - 1
    await wait(parts, b"good", "t")
    read = parts.store._log.read

    def refuse(place: int, size: int) -> bytes:
        if place <= bad < place + size:
            raise OSError(errno.EIO, "Input/output error")
        return read(place, size)

    monkeypatch.setattr(parts.store._log, "read", refuse)
    await asyncio.sleep(50)
    assert parts.store.corruption_count == 0
    await asyncio.sleep(50)
    assert await parts.bodies("t") == [b"good"]
    assert parts.store.corruption_count == 1


async def test_a_message_of_a_deleted_topic_is_dropped(parts: Parts, wait: Wait) -> None:
    await parts.send("gone", b"x")
    await wait(parts, b"a", "gone")
    await wait(parts, b"b", "t")
    await parts.broker.administration.delete_topic("gone")
    await asyncio.sleep(2)
    assert await parts.bodies("t") == [b"b"]
    assert "gone" not in parts.store.topics()


async def test_a_recreated_topic_gets_no_message_sent_before(tmp_path: Path, wait: Wait) -> None:
    clock = LoopClock()
    first = await Parts.begin(tmp_path, clock=clock)
    await first.send("t", b"x")
    await wait(first, b"old", "t")
    await first.broker.administration.delete_topic("t")
    await wait(first, b"new", "t")
    await first.end()
    second = await Parts.begin(tmp_path, clock=clock)
    await asyncio.sleep(2)
    assert await second.bodies("t") == [b"new"]
    await second.end()


async def test_a_message_above_a_lowered_size_limit_is_delivered(
    tmp_path: Path, wait: Wait
) -> None:
    clock = LoopClock()
    first = await Parts.begin(tmp_path, clock=clock)
    await wait(first, b"x" * 5_000, "t")
    await wait(first, b"b", "t")
    await first.end()
    second = await Parts.begin(tmp_path, clock=clock, maxMessageSize=1_024)
    await asyncio.sleep(2)
    assert await second.bodies("t") == [b"x" * 5_000, b"b"]
    await second.end()
