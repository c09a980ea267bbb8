"""What a slave has begun: on the disk before anything goes, and found again by any later start."""

from __future__ import annotations

import pytest

from aerobee_broker.disk import replace_file
from aerobee_broker.errors import ConfigFileDamaged
from aerobee_broker.replication.role.unfinished import Unfinished, UnfinishedFile
from aerobee_wire.checked_json import encode
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import PATH

FILE = PATH / "unfinished.json"


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_directory(PATH)
    return disk


@pytest.mark.parametrize(
    "unfinished",
    [
        Unfinished(),
        Unfinished(copies=True, wipes=True),
        Unfinished(until=0),
        Unfinished(copies=True, until=9, since=8),
    ],
)
def test_it_is_there_after_a_power_cut(disk: SimulatedDisk, unfinished: Unfinished) -> None:
    disk.sync_directory(PATH)
    UnfinishedFile(disk, FILE).write(unfinished)
    again = UnfinishedFile(disk.after_power_cut(1), FILE)
    again.load()
    assert again.current == unfinished


def test_it_is_due_until_the_log_reaches_the_snapshot(disk: SimulatedDisk) -> None:
    file = UnfinishedFile(disk, FILE)
    file.load()
    assert not file.is_due(0)
    file.write(Unfinished())
    assert file.is_due(1 << 40)
    file.write(Unfinished(copies=True, until=500))
    assert file.is_due(499)
    assert not file.is_due(500)


@pytest.mark.parametrize("content", [b"{}", b"[]", b'{"copies":true}', b"x"])
def test_a_file_that_cannot_be_read_stops_the_replica(disk: SimulatedDisk, content: bytes) -> None:
    file = disk.open(FILE, create=True)
    file.pwrite(content, 0)
    with pytest.raises(ConfigFileDamaged):
        UnfinishedFile(disk, FILE).load()


def test_a_log_that_begins_later_than_its_masters_does_so_until_the_master_has_passed_it(
    disk: SimulatedDisk,
) -> None:
    disk.sync_directory(PATH)
    file = UnfinishedFile(disk, FILE)
    file.load()
    file.passed(500)
    assert (file.since, file.current) == (0, None)
    file.write(Unfinished(copies=True, until=900, since=800))
    file.passed(799)
    assert file.since == 800
    file.passed(800)
    again = UnfinishedFile(disk.after_power_cut(1), FILE)
    again.load()
    assert (again.since, again.current) == (0, Unfinished(copies=True, until=900))


def test_a_file_of_an_earlier_version_says_nothing_of_it(disk: SimulatedDisk) -> None:
    replace_file(disk, FILE, encode({"copies": True, "wipes": False, "until": 7}))
    file = UnfinishedFile(disk, FILE)
    file.load()
    assert file.current == Unfinished(copies=True, until=7)
