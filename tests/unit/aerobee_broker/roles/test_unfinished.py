"""What a slave has begun: on the disk before anything goes, and found again by any later start."""

from __future__ import annotations

import pytest

from aerobee_broker.errors import ConfigFileDamaged
from aerobee_broker.roles.unfinished import Unfinished, UnfinishedFile
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import PATH

FILE = PATH / "unfinished.json"


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_directory(PATH)
    return disk


@pytest.mark.parametrize(
    "unfinished", [Unfinished(), Unfinished(copies=True, wipes=True), Unfinished(until=0)]
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
