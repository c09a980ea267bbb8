"""How fast a slave that is far behind is sent the log."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from aerobee_broker.replication import leader
from aerobee_broker.replication.in_sync import InSyncRules
from aerobee_broker.replication.stream import CopyPace
from support.replication import replica
from support.replication.group import SimulatedGroup


def test_a_chunk_waits_until_the_one_before_has_had_its_time() -> None:
    pace = CopyPace(1_000)
    assert pace.wait_ms(50) == 0
    pace.left(500, 50)
    assert [pace.wait_ms(now) for now in (50, 300, 550, 900)] == [500, 250, 0, 0]
    pace.left(100, 900)
    pace.left(100, 900)
    assert pace.wait_ms(900) == 200


def test_without_a_bound_nothing_waits() -> None:
    pace = CopyPace(None)
    pace.left(1 << 40, 0)
    assert pace.wait_ms(0) == 0


async def caught_up_after_s(monkeypatch: pytest.MonkeyPatch, copy_bytes_s: int | None) -> float:
    """For so long a slave that was away copies 40,000 bytes, all but the last 2,000 as one that is
    far behind."""
    monkeypatch.setattr(leader, "HOT_BYTES", 2_000)
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
