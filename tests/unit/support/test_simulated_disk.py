"""The simulated disk is itself held to its fault model."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from support.disk.page_cache import SECTOR
from support.disk.simulated_disk import PowerCut, SimulatedDisk

FOLDER = Path("/data")
FILE = FOLDER / "file"


def made(seed: int = 0) -> SimulatedDisk:
    """A disk with one durable file of four sectors of "o"."""
    disk = SimulatedDisk(seed)
    disk.make_directory(FOLDER)
    file = disk.open(FILE, create=True)
    file.pwrite(b"o" * 4 * SECTOR, 0)
    file.sync()
    file.close()
    disk.sync_directory(FOLDER)
    return disk


def after(disk: SimulatedDisk, seed: int) -> dict[str, bytes]:
    return {path.name: data for path, data in disk.after_power_cut(seed).files().items()}


def test_what_was_synced_survives() -> None:
    disk = made()
    assert {after(disk, seed)["file"] for seed in range(50)} == {b"o" * 4 * SECTOR}


def test_unsynced_writes_survive_sector_by_sector_in_any_combination() -> None:
    disk = made()
    file = disk.open(FILE)
    file.pwrite(b"n" * 2 * SECTOR, SECTOR)
    seen = {after(disk, seed)["file"][SECTOR : 3 * SECTOR] for seed in range(100)}
    one, two = b"n" * SECTOR, b"o" * SECTOR
    assert seen == {one + one, one + two, two + one, two + two}


def test_each_version_of_a_sector_may_survive() -> None:
    disk = made()
    file = disk.open(FILE)
    for letter in (b"a", b"b", b"c"):
        file.pwrite(letter, 0)
    assert {after(disk, seed)["file"][:1] for seed in range(100)} == {b"o", b"a", b"b", b"c"}
    file.sync()
    assert {after(disk, seed)["file"][:1] for seed in range(20)} == {b"c"}


def test_size_survives_apart_from_the_data() -> None:
    disk = made()
    disk.open(FILE).pwrite(b"n" * SECTOR, 4 * SECTOR)
    tails = {after(disk, seed)["file"][4 * SECTOR :] for seed in range(100)}
    assert tails == {b"", b"n" * SECTOR, bytes(SECTOR)}


def test_names_survive_in_their_order() -> None:
    disk = made()
    for name in ("1", "2", "3"):
        file = disk.open(FOLDER / name, create=True)
        file.sync()
    seen = {tuple(sorted(set(after(disk, seed)) - {"file"})) for seed in range(100)}
    assert seen == {(), ("1",), ("1", "2"), ("1", "2", "3")}


def test_rename_takes_place_wholly_or_not() -> None:
    disk = made()
    disk.rename(FILE, FOLDER / "other")
    assert {tuple(after(disk, seed)) for seed in range(50)} == {("file",), ("other",)}
    disk.sync_directory(FOLDER)
    assert {tuple(after(disk, seed)) for seed in range(20)} == {("other",)}


def test_failed_sync_leaves_the_page_cache_clean_and_the_disk_as_it_was() -> None:
    disk = made()
    disk.fail_syncs = lambda path: True
    file = disk.open(FILE)
    file.pwrite(b"lost", 0)
    with pytest.raises(OSError) as caught:
        file.sync()
    assert caught.value.errno == errno.EIO
    disk.fail_syncs = lambda path: False
    file.sync()
    assert file.pread(4, 0) == b"lost"


def test_what_a_failed_sync_dropped_is_not_saved_by_the_next_one() -> None:
    disk = made()
    disk.fail_syncs = lambda path: True
    file = disk.open(FILE)
    file.pwrite(b"lost", 0)
    with pytest.raises(OSError):
        file.sync()
    disk.fail_syncs = lambda path: False
    file.pwrite(b"n", 2 * SECTOR)
    file.sync()
    assert {after(disk, seed)["file"][:4] for seed in range(20)} == {b"oooo"}
    assert {after(disk, seed)["file"][2 * SECTOR :][:1] for seed in range(20)} == {b"n"}


def test_crash_point_tears_the_write_and_ends_everything() -> None:
    disk = made()
    disk.crash_at = disk.steps + 2
    file = disk.open(FILE)
    file.pwrite(b"a" * 2 * SECTOR, 0)
    with pytest.raises(PowerCut):
        file.pwrite(b"b" * 2 * SECTOR, 2 * SECTOR)
    for call in (file.sync, file.size, lambda: disk.list(FOLDER)):
        with pytest.raises(PowerCut):
            call()


def test_process_that_dies_leaves_the_page_cache() -> None:
    disk = made()
    disk.open(FILE).pwrite(b"new", 0)
    next_one = disk.after_kill()
    assert next_one.open(FILE).pread(3, 0) == b"new"
    assert {after(next_one, seed)["file"][:3] for seed in range(50)} == {b"new", b"ooo"}
    with pytest.raises(PowerCut):
        disk.open(FILE)


def test_full_disk_takes_what_fits() -> None:
    disk = made()
    disk.capacity = 5 * SECTOR
    file = disk.open(FILE)
    with pytest.raises(OSError) as caught:
        file.pwrite(b"n" * 3 * SECTOR, 3 * SECTOR)
    assert caught.value.errno == errno.ENOSPC
    assert file.size() == 5 * SECTOR
    file.pwrite(b"m" * SECTOR, 0)  # takes no new space


def test_one_seed_is_one_history() -> None:
    def run() -> list[dict[str, bytes]]:
        disk = made(7)
        disk.open(FILE).pwrite(b"n" * 3 * SECTOR, 100)
        return [after(disk, seed) for seed in range(5)]

    assert run() == run()


def test_flipped_bit_is_in_both_contents() -> None:
    disk = made()
    disk.flip(FILE, 0)
    assert disk.open(FILE).pread(1, 0) == b"n"
    assert after(disk, 1)["file"][:1] == b"n"


def test_closed_file_is_not_used_by_mistake() -> None:
    disk = made()
    file = disk.open(FILE)
    file.close()
    with pytest.raises(ValueError):
        file.pread(1, 0)
    assert disk.open_files == 0


def test_all_of_a_copy_is_durable() -> None:
    disk = SimulatedDisk()
    disk.make_directory(Path("/d"))
    disk.open(Path("/d/a"), create=True).pwrite(b"x", 0)
    assert disk.copy().after_power_cut(1).files() == {Path("/d/a"): b"x"}
