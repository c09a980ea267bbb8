"""F3 with ASYNC_FLUSH: acknowledged messages may be lost when the power goes, but only the last
ones, only so old, and none that a consumer saw.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from functools import partial

from fault.conftest import Campaign
from fault.slow_disk import OPTIONS, PATH, SlowFlusher, end_all_other_tasks, on_a_virtual_loop
from support.broker.harness import BrokerHarness
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import claim, reporting

INTERVAL_S = 0.5  # flushIntervalCommitLog
THOROUGH_S = 10.0  # flushCommitLogThoroughInterval: for less than 4 pages
MOST_LATENCY_S = 0.05


@dataclass
class Lost:
    """What one power cut took of what was acknowledged."""

    acknowledged: int = 0
    messages: int = 0
    oldest_s: float = 0.0


@dataclass
class Life:
    seed: int
    busy: bool  # 4 pages and more between two intervals, or a message now and then
    acknowledged: list[tuple[int, bytes, float]] = field(default_factory=list)
    shown: int = 0

    async def run(self, *, power: bool) -> Lost:
        rng = random.Random(self.seed)
        loop = asyncio.get_running_loop()
        disk = SimulatedDisk(self.seed)
        flusher = SlowFlusher(rng, lambda: rng.uniform(0.001, MOST_LATENCY_S))
        harness = await BrokerHarness.begin(
            PATH, disk=disk, flusher=flusher, flushDiskType="ASYNC_FLUSH", **OPTIONS
        )
        end = loop.time() + rng.uniform(1.0, 40.0)
        while loop.time() < end:
            body = b"%06d|" % len(self.acknowledged) * (600 if self.busy else 10)
            [place] = await harness.send("orders", body)
            self.acknowledged.append((place.queue_offset, body, loop.time()))
            await asyncio.sleep(rng.uniform(0, 0.1) if self.busy else rng.expovariate(2))
            self.shown = max(self.shown, harness.store.max_offset("orders", 0))
        died = loop.time()
        after = disk.after_power_cut(rng.randrange(1 << 30)) if power else disk.after_kill()
        await end_all_other_tasks()
        harness.store.abandon()
        return self._judge(await bodies_of(after), died)

    def _judge(self, found: list[bytes], died: float) -> Lost:
        claim(
            found == [body for _, body, _ in self.acknowledged[: len(found)]],
            "what is left is not the first messages in their order",
        )
        claim(len(found) >= self.shown, "a message was shown and is gone")
        gone = self.acknowledged[len(found) :]
        oldest = max((died - at for _, _, at in gone), default=0.0)
        return Lost(len(self.acknowledged), len(gone), oldest)


async def bodies_of(disk: SimulatedDisk) -> list[bytes]:
    harness = await BrokerHarness.begin(PATH, disk=disk, **OPTIONS)
    found: list[bytes] = []
    while records := await harness.read("orders", 0, len(found), max_bytes=1 << 24):
        found += [record.body for record in records]
    await harness.end()
    return found


def lives(campaign: Campaign, *, busy: bool, power: bool) -> Lost:
    total = Lost()
    for seed in campaign.seeds(6, 200):
        with reporting(f"seed {seed}"):
            lost = on_a_virtual_loop(partial(Life(seed, busy).run, power=power))
        total.acknowledged += lost.acknowledged
        total.messages += lost.messages
        total.oldest_s = max(total.oldest_s, lost.oldest_s)
    campaign.report(
        f"{total.messages:,} of {total.acknowledged:,} acknowledged messages lost, the oldest "
        f"{total.oldest_s * 1000:.0f} ms old; none that was shown"
    )
    return total


def test_a_power_cut_loses_at_most_the_last_interval_under_load(campaign: Campaign) -> None:
    """An interval, the sync that it begins, and the message that came while one was under way."""
    lost = lives(campaign, busy=True, power=True)
    assert lost.oldest_s <= INTERVAL_S + 2 * MOST_LATENCY_S + 0.1
    assert lost.messages or campaign.seed is not None, "no cut came before a flush"


def test_a_power_cut_loses_at_most_ten_seconds_when_idle(campaign: Campaign) -> None:
    lost = lives(campaign, busy=False, power=True)
    assert lost.oldest_s <= THOROUGH_S + INTERVAL_S + 2 * MOST_LATENCY_S


def test_a_killed_process_loses_nothing(campaign: Campaign) -> None:
    """What was written is the system's, flushed or not."""
    assert lives(campaign, busy=True, power=False).messages == 0
    assert lives(campaign, busy=False, power=False).messages == 0
