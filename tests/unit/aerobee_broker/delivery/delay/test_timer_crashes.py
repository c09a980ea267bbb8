"""A power cut or a kill at any time loses no message and no recall."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import pytest

from aerobee_broker.delivery.send.send import SendResult
from aerobee_broker.disk import Disk
from aerobee_broker.errors import NotRecalled
from support.broker.delayed import recall, timed
from support.broker.harness import BrokerHarness
from support.clock.virtual_loop import LoopClock
from support.disk.simulated_disk import SimulatedDisk


class Campaign:
    """Random sends, recalls, moves and power cuts, and which of them were acknowledged."""

    def __init__(self, seed: int, path: Path) -> None:
        self.rng = random.Random(seed)
        self.path = path
        self.clock = LoopClock()
        self.disk = SimulatedDisk(seed)
        self.sent: dict[bytes, SendResult] = {}
        self.recalled: set[bytes] = set()
        self.attempted: set[bytes] = set()
        self.cuts = 0

    async def begin(self) -> BrokerHarness:
        return await BrokerHarness.begin(self.path, clock=self.clock, disk=self.disk)

    async def run(self) -> None:
        harness = await self.begin()
        for step in range(6):
            for _ in range(12):
                await self.act(harness)
                await asyncio.sleep(self.rng.random() * 0.4)
            if step < 5:
                harness = await self.crash(harness)
        await asyncio.sleep(60)
        await self.check(harness)
        await harness.end()

    async def act(self, harness: BrokerHarness) -> None:
        if self.rng.random() < 0.2:
            # Retention wants all files: waiting messages move to the end of the queue.
            harness.store.cleaning.wanted_below = harness.store.end_offset
        if self.sent and self.rng.random() < 0.25:
            body = self.rng.choice(list(self.sent))
            self.attempted.add(body)
            with suppress(NotRecalled):
                await recall(harness, self.sent[body])
                self.recalled.add(body)
        else:
            body = b"%d" % len(self.sent)
            self.sent[body] = await timed(harness, body, self.rng.randrange(1, 4_000))

    async def crash(self, harness: BrokerHarness) -> BrokerHarness:
        """A power cut or a kill, while a send, a recall or a delivery may be under way."""
        harness.flusher.hold()
        body = b"unacknowledged %d" % self.cuts
        doing: list[asyncio.Task[object]] = [asyncio.create_task(timed(harness, body, 1_000))]
        if self.sent:
            body = self.rng.choice(list(self.sent))
            self.attempted.add(body)
            doing.append(asyncio.create_task(recall(harness, self.sent[body])))
        await asyncio.sleep(self.rng.random() * 2)
        if self.rng.random() < 0.5:
            harness.store.flush.write()
            await asyncio.sleep(self.rng.random())
        cut: Disk = (
            self.disk.after_power_cut(self.rng.randrange(1 << 30))
            if self.rng.random() < 0.7
            else self.disk.after_kill()
        )
        assert isinstance(cut, SimulatedDisk)
        self.cuts += 1
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in [*doing, *others]:
            task.cancel()
        await asyncio.gather(*doing, *others, return_exceptions=True)
        harness.store.abandon()
        self.disk = cut
        await asyncio.sleep(self.rng.random() * 2)
        return await self.begin()

    async def check(self, harness: BrokerHarness) -> None:
        records = await harness.read("t")
        delivered: dict[bytes, int] = {}
        for record in records:
            delivered[record.body] = delivered.get(record.body, 0) + 1
            assert record.store_timestamp_ms >= int(record.properties["TIMER_OUT_MS"]), "early"
        for body in self.sent:
            if body in self.recalled:
                assert body not in delivered, "it was recalled"
            elif body not in self.attempted:
                assert body in delivered, "it was acknowledged"
        assert harness.broker.delay.timers.waiting == 0


async def test_a_batch_torn_by_a_power_cut_is_delivered_again(tmp_path: Path) -> None:
    """The progress record is behind the copies: without it they count as not delivered."""
    disk, clock = SimulatedDisk(1), LoopClock()
    harness = await BrokerHarness.begin(tmp_path, clock=clock, disk=disk)
    bodies = {b"%d" % number for number in range(40)}
    for body in sorted(bodies):
        await timed(harness, body, 1_000)
    harness.flusher.hold()
    await asyncio.sleep(1.1)
    harness.store.flush.write()
    assert harness.store.written_offset > harness.store.flushed_offset
    torn = 0
    for seed in range(12):
        restarted = await BrokerHarness.begin(
            tmp_path, clock=clock, disk=disk.after_power_cut(seed)
        )
        torn += 0 < restarted.store.max_offset("t", 0) < len(bodies)
        await asyncio.sleep(0.01)
        assert set(await restarted.bodies("t")) == bodies
        await restarted.end()
    assert torn > 2
    harness.flusher.let_go()
    await harness.end()


@pytest.mark.parametrize("seed", range(12))
async def test_a_crash_loses_no_message_and_undoes_no_recall(tmp_path: Path, seed: int) -> None:
    campaign = Campaign(seed, tmp_path)
    await campaign.run()
    assert campaign.cuts == 5
    assert len(campaign.sent) > 30
