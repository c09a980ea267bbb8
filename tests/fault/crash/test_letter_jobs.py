"""Jobs over dead letters and the power: a crash in each call that changes the disk.

After the crash the job continues, and each letter is sent once, also when the power goes within an
append of messages and progress. What was acknowledged of a start holds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker.delivery.letters import letter_jobs
from aerobee_broker.delivery.letters.journal_records import JobState
from aerobee_broker.delivery.letters.states import LetterState
from fault.conftest import Campaign
from fault.slow_disk import on_a_virtual_loop, until_power_cut
from support.broker import letters
from support.broker.harness import BrokerHarness
from support.disk.simulated_disk import SimulatedDisk

PATH = Path("/broker")
OPTIONS: dict[str, Any] = {"mappedFileSizeCommitLog": 64 << 10, "mappedFileSizeConsumeQueue": 2_000}
COUNT, RATE = 40, 24
CHUNK = 6  # letters in an append, of this rate and of a job without one
BODY_BYTES = 300  # so that an append covers several sectors


class History:
    """What was acknowledged."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.is_filled = False
        self.is_started = False

    async def run(self, harness: BrokerHarness) -> None:
        await letters.fill(harness, COUNT, body_bytes=BODY_BYTES)
        self.is_filled = True
        await harness.broker.letters.start_job("a", letters.spec(rate=self.rate))
        self.is_started = True
        await letters.finished(harness, "a")


async def crashed(disk: SimulatedDisk, rate: int) -> History:
    """Runs the history until the power goes, or to its end."""
    history = History(rate)

    async def run() -> None:
        harness = await BrokerHarness.begin(PATH, disk=disk, **OPTIONS)
        letters.make_topics(harness)
        await history.run(harness)

    await until_power_cut(disk, run(), patience_s=8.0)
    return history


async def check(history: History, disk: SimulatedDisk) -> bool:
    """Returns whether the last append of the job was incomplete."""
    with capture_logs() as logs:
        harness = await BrokerHarness.begin(PATH, disk=disk, **OPTIONS)
    torn = any(line["event"] == "letter_job_torn" for line in logs)
    letters.make_topics(harness)
    if history.is_started:
        job = await letters.finished(harness, "a")
        assert job.state is JobState.DONE
    elif history.is_filled:
        # The caller repeats a start that was not acknowledged, with the same id.
        job = await letters.run(harness, "a", letters.spec(rate=history.rate))
    else:
        await harness.end()
        return torn
    assert await letters.sent_ids(harness) == {f"ID{number}": 1 for number in range(COUNT)}
    assert job.sent == COUNT
    assert await letters.states(harness) == dict.fromkeys(range(COUNT), LetterState.REDRIVEN)
    await harness.end()
    again = await BrokerHarness.begin(PATH, disk=disk, **OPTIONS)
    letters.make_topics(again)
    assert again.broker.letters.get("a").sent == COUNT
    assert (await letters.run(again, "b", letters.spec())).already == COUNT
    await again.end()
    return torn


async def steps(rate: int) -> int:
    disk = SimulatedDisk(1)
    disk.crash_at = 1 << 30
    history = await crashed(disk, rate)
    assert history.is_started
    assert not await check(history, disk.after_kill())
    return disk.steps


@pytest.mark.parametrize("power", [True, False], ids=["power cut", "kill"])
def test_each_letter_is_sent_once_through_a_crash_in_any_call(
    campaign: Campaign, power: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a rate, the job examines the next letters while the disk writes."""
    monkeypatch.setattr(letter_jobs, "CHUNK_LETTERS", CHUNK)

    async def run() -> None:
        histories = torn = started = 0
        for seed in campaign.seeds(3, 20):
            rate = RATE if seed % 2 else 0
            for crash_at in range(1, await steps(rate)):
                disk = SimulatedDisk(crash_at + 1_000 * seed)
                disk.crash_at = crash_at
                history = await crashed(disk, rate)
                left = disk.after_power_cut(crash_at + seed) if power else disk.after_kill()
                torn += await check(history, left)
                histories += 1
                started += history.is_started
        if campaign.seed is None:
            assert torn, "no crash fell between a record of progress and its last message"
        campaign.report(f"{histories} crashes, {started} in a job, {torn} torn, 0 lost, 0 doubled")

    on_a_virtual_loop(run)
