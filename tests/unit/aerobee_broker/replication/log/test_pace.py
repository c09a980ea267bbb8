"""How fast a slave that is far behind is sent the log."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from aerobee_broker.replication.in_sync.in_sync_set import InSyncRules
from aerobee_broker.replication.log import sender
from aerobee_broker.replication.log.stream import CopyPace, LogChunk
from support.replication import replica
from support.replication.group import SimulatedGroup
from support.replication.network import End


def test_a_chunk_waits_until_the_one_before_has_had_its_time() -> None:
    pace = CopyPace(1_000, 0)
    assert pace.wait_ms(50) == 0
    pace.left(500, 0, 50)
    assert [pace.wait_ms(now) for now in (50, 300, 550, 900)] == [500, 250, 0, 0]
    pace.left(100, 0, 900)
    pace.left(100, 0, 900)
    assert pace.wait_ms(900) == 200


def test_without_a_bound_nothing_waits() -> None:
    pace = CopyPace(None, 0)
    pace.left(1 << 40, 0, 0)
    assert pace.wait_ms(0) == 0


def waits_beside(growth: int, slices: int, size: int = 1 << 18) -> list[bool]:
    """Whether each of so many slices of a copy is followed by a wait, while the log grows by
    `growth` bytes between two of them."""
    pace, end, found = CopyPace(None, 0), 0, []
    for turn in range(slices):
        end += growth
        pace.left(size, end, turn * 1_000)
        found.append(pace.wait_ms(turn * 1_000) > 0)
    return found


def test_beside_appends_a_copy_leaves_them_the_loop_and_the_disk() -> None:
    assert all(waits_beside(2_000, 1_000))
    assert not any(waits_beside(0, 1_000))


def test_a_copy_goes_at_its_full_pace_where_the_log_grows_as_fast() -> None:
    assert not any(waits_beside(1 << 17, 1_000))
    assert not any(waits_beside(1 << 20, 1_000))


def test_a_copy_goes_at_its_full_pace_again_when_the_appends_have_ended() -> None:
    pace, size = CopyPace(None, 0), 1 << 18
    pace.left(size, 2_000, 0)
    assert pace.wait_ms(0) > 0
    for turn in range(200):
        pace.left(size, 2_000, 1_000 * turn)
    assert pace.wait_ms(200_000) == 0


async def caught_up_after_s(monkeypatch: pytest.MonkeyPatch, copy_bytes_s: int | None) -> float:
    """For so long a slave that was away copies 40,000 bytes, all but the last 2,000 as one that is
    far behind."""
    monkeypatch.setattr(sender, "HOT_BYTES", 2_000)
    monkeypatch.setattr(replica, "TIMING", replace(replica.TIMING, copy_bytes_s=copy_bytes_s))
    rules = InSyncRules(synchronous=True, in_sync_replicas=2, auto_in_sync_replicas=True)
    group = SimulatedGroup(1, rules, count=2)
    group.start(0)
    master = await group.elect(0)
    while master.opened().flushed_offset < 40_000:
        group.send(20)
        await asyncio.sleep(0.5)
    group.start(1)
    began_s = asyncio.get_running_loop().time()
    await group.settle(300)
    await group.check_end()
    return asyncio.get_running_loop().time() - began_s


async def test_a_bound_holds_while_a_slave_is_far_behind_and_it_joins_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free_s = await caught_up_after_s(monkeypatch, None)
    bounded_s = await caught_up_after_s(monkeypatch, 1_000)
    assert free_s < 30
    assert bounded_s > 36


async def chunks_of(
    monkeypatch: pytest.MonkeyPatch, rules: InSyncRules, gathered_ms: int = 100
) -> int:
    """How many chunks with data twenty sends make, one every 10 ms, of which each is large."""
    monkeypatch.setattr(sender, "LARGE_BYTES", 150)
    monkeypatch.setattr(sender, "GATHER_MS", gathered_ms)
    group = SimulatedGroup(1, rules, count=2)
    group.start()
    await group.elect(0)
    await group.settle()
    sent, send = [], End.send

    async def reported(end: End, message: object) -> None:
        if isinstance(message, LogChunk) and message.data:
            sent.append(message)
        await send(end, message)

    monkeypatch.setattr(End, "send", reported)
    for _ in range(20):
        group.send(1)
        await asyncio.sleep(0.01)
    await group.settle()
    assert len(group.acknowledged) == len(group.shown) == 20
    await group.check_end()
    return len(sent)


async def test_where_no_send_waits_for_a_slave_large_chunks_are_gathered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gathered = await chunks_of(monkeypatch, InSyncRules())
    assert gathered * 2 < await chunks_of(monkeypatch, InSyncRules(), gathered_ms=0)


async def test_a_synchronous_send_is_shipped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = InSyncRules(synchronous=True, in_sync_replicas=2)
    at_once = await chunks_of(monkeypatch, rules, gathered_ms=0)
    assert await chunks_of(monkeypatch, rules, gathered_ms=60_000) == at_once >= 10
