"""F6: topics and consumer offsets are created, changed and deleted while the power goes in any call
of their saves, also while the JSON file is replaced. After it the table has every change that
was acknowledged, in order, and at most the one that was under way; a deleted row stays deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from aerobee_broker.disk import Disk
from aerobee_broker.metadata import incremental_table
from aerobee_broker.metadata.incremental_table import ChangeFile, IncrementalTable
from aerobee_broker.metadata.persistent_table import JsonFile
from aerobee_broker.metadata.topics import TopicConfig, Topics
from aerobee_wire.checked_json import encode
from fault.conftest import Campaign
from support.broker.harness import InlineWorker
from support.broker.tables import rows_in
from support.clock.manual_clock import ManualClock
from support.disk.simulated_disk import PowerCut, SimulatedDisk

PATH = Path("/data/config/topics.json")
CHANGES = PATH.with_suffix(".changes")
LONG = "x" * 300  # a change is of several sectors
# (topic, queues); 0: it is deleted. Together more rows than three JSON files are written for.
STEPS = [
    *((f"{LONG}{n}", 1) for n in range(4)),
    ("a", 1),
    (f"{LONG}1", 0),
    ("a", 2),
    (f"{LONG}1", 3),
    ("a", 0),
    *((f"t{n}", 1) for n in range(6)),
    (f"{LONG}2", 0),
    ("t1", 0),
]
MORE = [("later", 1), (f"{LONG}0", 0), ("t0", 5)]


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The JSON file is replaced after a few rows."""
    monkeypatch.setattr(incremental_table, "LEAST_APPENDED", 2)


class Opened:
    """A table on a disk, loaded as a broker does."""

    def __init__(self, disk: Disk) -> None:
        self.topics = Topics(ManualClock())
        self.saved = IncrementalTable(
            self.topics, JsonFile(disk, PATH), ChangeFile(disk, PATH), InlineWorker()
        )
        self.saved.load()

    async def do(self, steps: Sequence[tuple[str, int]], acknowledged: list[int]) -> None:
        """One after the other; notes how many are acknowledged. Ends early when the power goes."""
        try:
            for topic, queues in steps:
                if queues:
                    self.topics.put(TopicConfig(topic, queues, queues))
                else:
                    self.topics.remove(topic)
                await self.saved.save()
                acknowledged.append(len(acknowledged))
            await self.saved.finish()
        except PowerCut:
            pass


def after(steps: Sequence[tuple[str, int]], begin: dict[str, int]) -> dict[str, int]:
    rows = {**begin, **dict(steps)}
    return {topic: queues for topic, queues in rows.items() if queues}


def queues_on(disk: Disk) -> dict[str, int]:
    rows = rows_in(Topics(ManualClock()), disk, PATH)
    return {topic: row["readQueueNums"] for topic, row in rows.items()}


def run(disk: SimulatedDisk, steps: Sequence[tuple[str, int]]) -> int:
    """How many steps were acknowledged."""
    acknowledged: list[int] = []
    try:
        disk.make_directory(PATH.parent)
        asyncio.run(Opened(disk).do(steps, acknowledged))
    except PowerCut:
        pass
    return len(acknowledged)


def check(disk: SimulatedDisk, acknowledged: int, begin: dict[str, int], where: str) -> None:
    found = queues_on(disk)
    may_be = [after(STEPS[:count], begin) for count in (acknowledged, acknowledged + 1)]
    assert found in may_be, where
    # What the crash left behind the end is not read after further changes.
    assert run(disk, MORE) == len(MORE), where
    assert queues_on(disk.after_power_cut(0)) == after(MORE, found), where


def test_no_acknowledged_change_is_lost_at_a_crash_in_any_call(campaign: Campaign) -> None:
    steps = SimulatedDisk()
    assert run(steps, STEPS) == len(STEPS)
    assert CHANGES.with_suffix(".changes.bak") in steps.files(), "JSON files were replaced"
    count = 0
    for seed in campaign.seeds(2, 60):
        for crash_at in range(1, steps.steps + 1):
            disk = SimulatedDisk(seed, crash_at=crash_at)
            acknowledged = run(disk, STEPS)
            for crashed in (disk.after_power_cut(seed), disk.after_kill()):
                check(crashed, acknowledged, {}, f"seed {seed}, call {crash_at}")
                count += 1
    campaign.report(f"{count:,} crashes, 0 changes lost")


def of_an_older_version(crash_at: int | None = None) -> SimulatedDisk:
    """Its JSON file, and change files that a newer version left before that was written."""
    disk = SimulatedDisk()
    run(disk, STEPS)
    assert CHANGES.with_suffix(".changes.bak") in disk.files()
    topics = Topics(ManualClock())
    topics.put(TopicConfig("old", 4, 4))
    JsonFile(disk, PATH).write(encode(topics.to_json()))
    copy = disk.copy()
    copy.crash_at = crash_at
    return copy


def test_a_store_of_an_older_version_opens_without_stale_changes(campaign: Campaign) -> None:
    steps = of_an_older_version()
    assert queues_on(steps) == {"old": 4}
    assert run(steps, STEPS) == len(STEPS)
    count = 0
    for seed in campaign.seeds(2, 20):
        for crash_at in range(1, steps.steps + 1):
            disk = of_an_older_version(crash_at)
            acknowledged = run(disk, STEPS)
            for crashed in (disk.after_power_cut(seed), disk.after_kill()):
                check(crashed, acknowledged, {"old": 4}, f"seed {seed}, call {crash_at}")
                count += 1
    campaign.report(f"{count:,} crashes of an upgrade, 0 changes lost, none back")
