"""Incremental tables: a save writes what has changed, and a start finds it, whichever file is
whole.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker.errors import ConfigFileDamaged
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metadata.incremental_table import ChangeFile, IncrementalTable
from aerobee_broker.metadata.persistent_table import JsonFile
from aerobee_broker.metadata.topics import TopicConfig, Topics
from aerobee_wire.checked_json import decode
from aerobee_wire.status import Code
from support.broker.harness import InlineWorker
from support.broker.tables import rows_in
from support.clock.manual_clock import ManualClock
from support.codes import raises_code
from support.disk.simulated_disk import SimulatedDisk

PATH = Path("/data/config/topics.json")
CHANGES = PATH.with_suffix(".changes")
MANY = 5_000


class Table:
    """Topics in files of a disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk, self.topics, self.worker = disk, Topics(ManualClock()), InlineWorker()
        disk.make_directory(PATH.parent)
        self.saved = IncrementalTable(
            self.topics, JsonFile(disk, PATH), ChangeFile(disk, PATH), self.worker
        )
        self.saved.load()

    async def put(self, *names: str, queues: int = 1) -> None:
        for name in names:
            self.topics.put(TopicConfig(name, queues, queues))
        await self.saved.save()

    def size_of(self, path: Path) -> int:
        return len(self.disk.files().get(path, b""))

    def found(self) -> set[str]:
        return set(rows_in(Topics(ManualClock()), self.disk, PATH))


async def filled() -> Table:
    table = Table(SimulatedDisk())
    await table.put(*(f"t{n}" for n in range(MANY)))
    return table


async def test_a_save_of_a_large_table_writes_one_row() -> None:
    table = await filled()
    whole = table.size_of(PATH)
    await table.put("new")
    table.topics.remove("t0")
    await table.saved.save()
    assert table.size_of(PATH) == whole, "the JSON file is as it was"
    assert table.size_of(CHANGES) < 600
    assert table.found() == {f"t{n}" for n in range(1, MANY)} | {"new"}


async def test_concurrent_changes_share_a_write() -> None:
    table = await filled()
    before = table.worker.calls
    table.worker.hold()
    saves = []
    for number in range(100):
        table.topics.put(TopicConfig(f"new{number}", 1, 1))
        saves.append(asyncio.create_task(table.saved.save()))
        await asyncio.sleep(0)
    table.worker.let_go()
    await asyncio.gather(*saves)
    assert table.worker.calls - before == 2, "the first one, and all that came meanwhile"
    assert len(table.found()) == MANY + 100


async def test_the_json_file_is_written_anew_when_the_changes_are_as_many_as_the_rows() -> None:
    table = await filled()
    for number in range(2):
        await table.put(*(f"t{n}" for n in range(MANY)), queues=2 + number)
    await table.put("new")
    assert decode(table.disk.files()[PATH])["topicConfigTable"]["t7"]["readQueueNums"] == 3
    assert 0 < table.size_of(CHANGES) < 600
    assert "new" in table.found()


async def test_a_stop_leaves_all_of_it_in_the_json_file() -> None:
    table = await filled()
    await table.put("new")
    await table.saved.finish()
    assert "new" in decode(table.disk.files()[PATH])["topicConfigTable"]
    assert table.size_of(CHANGES) == 0


async def test_a_damaged_json_file_is_replaced_by_its_backup_and_what_followed() -> None:
    """Its backup is older by a whole change file."""
    table = await filled()
    await table.put("first")
    await table.saved.finish()
    await table.put("second")
    table.disk.put(PATH, b"{")
    with capture_logs() as logs:
        again = Table(table.disk)
    assert len(again.topics) == MANY + 2
    assert [entry["event"] for entry in logs] == ["config_file_damaged"]


async def test_a_gap_behind_the_backup_is_reported() -> None:
    table = await filled()
    table.topics.take(table.topics.to_json())  # of another replica: no change file has that
    await table.saved.save()
    await table.put("second")
    table.disk.put(PATH, b"{")
    with capture_logs() as logs:
        again = Table(table.disk)
    assert "second" in again.topics
    events = [entry["event"] for entry in logs]
    assert events == ["config_file_damaged", "table_changes_missing"]


async def test_a_change_file_without_its_json_file_is_refused() -> None:
    """Everything in it would be lost without a notice, and the next save would remove it."""
    table = Table(SimulatedDisk())
    await table.put("first")
    await table.put("second")
    table.disk.remove(PATH)
    assert not table.disk.exists(PATH.with_name("topics.json.bak")), "written only once"
    with pytest.raises(ConfigFileDamaged, match="missing"):
        Table(table.disk)
    table.disk.remove(CHANGES)
    assert len(Table(table.disk).topics) == 0


@pytest.mark.parametrize("stops", [1, 2, 3])
async def test_an_older_copy_of_the_json_file_loses_no_change(stops: int) -> None:
    """The rotated change file continues it, or the backup is newer than it is."""
    table = Table(SimulatedDisk())
    await table.put("first", "removed")
    older = table.disk.files()[PATH]
    for number in range(stops):
        table.topics.remove("removed")
        await table.put(f"before the stop {number}")
        await table.saved.finish()
    await table.put("last")
    assert decode(older)["changes"] < decode(table.disk.files()[PATH])["changes"]
    table.disk.put(PATH, older)
    with capture_logs() as logs:
        again = Table(table.disk)
    assert set(again.topics.rows()) == set(table.topics.rows())
    assert [entry["event"] for entry in logs] == ["table_file_is_older"]
    await again.put("after")
    assert again.found() == {*table.topics.rows(), "after"}


async def test_a_damaged_rotated_file_does_not_matter_beside_the_newest_json_file() -> None:
    table = Table(SimulatedDisk())
    for name in ("first", "second", "third"):
        await table.put(name)
        await table.saved.finish()
    rotated = CHANGES.with_suffix(".changes.bak")
    table.disk.put(rotated, table.disk.files()[rotated][:-3])
    assert set(Table(table.disk).topics.rows()) == {"first", "second", "third"}


async def test_a_row_of_another_shape_is_damage() -> None:
    table = await filled()
    await table.put("new")
    data = table.disk.files()[CHANGES]
    changes = ChangeFile(table.disk, PATH)
    changes.load(with_backup=False)
    changes.append(9, {"put": {"x": {}}, "removed": []})
    assert table.disk.files()[CHANGES] != data
    with pytest.raises(ConfigFileDamaged, match=r"topics\.changes"):
        Table(table.disk)


async def test_a_full_disk_is_named_and_the_next_save_makes_it_good() -> None:
    table = await filled()
    await table.put("new")
    table.disk.capacity = table.disk.used_bytes()
    with raises_code(Code.DISK_FULL):
        await table.put("y" * 2_000)
    table.disk.capacity = None
    await table.put("z")
    assert {"new", "y" * 2_000, "z"} <= table.found()


async def test_committed_offsets_are_appended_as_they_are_at_the_save() -> None:
    disk, clock = SimulatedDisk(), ManualClock()
    disk.make_directory(PATH.parent)
    offsets = ConsumerOffsets(clock)
    saved = IncrementalTable(offsets, JsonFile(disk, PATH), ChangeFile(disk, PATH), InlineWorker())
    expected: dict[str, Any] = {}
    for number in range(20):
        offsets.commit(f"g{number % 3}", "t", number % 2, number)
        expected.setdefault(f"t@g{number % 3}", {})[str(number % 2)] = number
        if number % 4 == 0:
            await saved.save()
    offsets.remove_group("g1")
    del expected["t@g1"]
    await saved.save()
    assert rows_in(ConsumerOffsets(clock), disk, PATH) == expected
