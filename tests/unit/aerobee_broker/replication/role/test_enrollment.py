"""What a store remembers of its coordinator outlives crashes, and damage is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_broker.errors import ConfigFileDamaged
from aerobee_broker.replication.role.enrollment import EnrollmentFile
from support.disk.simulated_disk import PowerCut, SimulatedDisk

PATH = Path("/store/config/enrollment.json")


def loaded(disk: SimulatedDisk) -> tuple[int, int]:
    file = EnrollmentFile(disk, PATH)
    file.load()
    return file.generation, file.seen


def test_a_store_without_the_file_has_started_never_and_seen_nothing() -> None:
    assert loaded(SimulatedDisk()) == (0, 0)


def test_both_numbers_are_kept_beside_each_other() -> None:
    disk = SimulatedDisk()
    file = EnrollmentFile(disk, PATH)
    file.load()
    file.start(3)
    file.see(8)
    file.start(4)
    assert loaded(disk) == (4, 8)


def test_an_older_state_does_not_lower_the_version_that_was_seen() -> None:
    disk = SimulatedDisk()
    file = EnrollmentFile(disk, PATH)
    file.see(8)
    file.see(7)
    assert (file.seen, loaded(disk)) == (8, (0, 8))


def test_doubt_outlives_a_start_and_ends_with_a_higher_generation() -> None:
    disk = SimulatedDisk()
    file = EnrollmentFile(disk, PATH)
    file.start(3)
    file.doubt()
    file.start(4)
    again = EnrollmentFile(disk, PATH)
    again.load()
    assert (again.generation, again.is_doubtful) == (4, True)
    again.trust(9)
    file.load()
    assert (file.generation, file.is_doubtful) == (9, False)


def test_a_power_cut_at_any_change_leaves_the_old_number_or_the_new_one() -> None:
    for crash_at in range(1, 20):
        disk = SimulatedDisk(crash_at)
        EnrollmentFile(disk, PATH).start(1)
        disk.crash_at = disk.steps + crash_at
        file = EnrollmentFile(disk, PATH)
        file.load()
        try:
            file.start(2)
        except PowerCut:
            assert loaded(disk.after_power_cut(crash_at))[0] in (1, 2)
        else:
            assert loaded(disk.after_power_cut(crash_at)) == (2, 0)
            return
    raise AssertionError("no save was whole")


def test_a_damaged_file_is_named() -> None:
    disk = SimulatedDisk()
    EnrollmentFile(disk, PATH).start(1)
    disk.put(PATH, b"{}")
    with pytest.raises(ConfigFileDamaged):
        loaded(disk)
