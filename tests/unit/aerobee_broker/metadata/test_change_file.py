"""The change file: what was appended is read back; damage is noticed, a torn end is not damage."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.errors import ConfigFileDamaged
from aerobee_broker.metadata.incremental_table import ChangeFile
from support.disk.simulated_disk import SimulatedDisk

FOLDER = Path("/data/config")
PATH = FOLDER / "topics.changes"
THREE: list[dict[str, Any]] = [{"number": number, "put": {"größe": number}} for number in (1, 2, 3)]


def on(disk: SimulatedDisk) -> ChangeFile:
    return ChangeFile(disk, FOLDER / "topics.json")


def with_three() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_directory(FOLDER)
    file = on(disk)
    for change in THREE:
        file.append(change["number"], {"put": change["put"]})
    return disk


def loaded(disk: SimulatedDisk, *, with_backup: bool = False) -> list[dict[str, Any]]:
    return on(disk).load(with_backup=with_backup)


def test_what_was_appended_is_loaded() -> None:
    assert loaded(with_three()) == THREE


def test_a_truncated_file_ends_with_its_last_whole_change() -> None:
    whole = with_three().files()[PATH]
    for size in range(len(whole)):
        disk = with_three()
        disk.put(PATH, whole[:size])
        file = on(disk)
        count = whole[:size].count(b"\n")
        assert file.load(with_backup=False) == THREE[:count]
        assert file.torn_bytes == size - len(b"".join(whole.splitlines(keepends=True)[:count]))
        file.append(9, {})
        again = on(disk)
        assert again.load(with_backup=False) == [*THREE[:count], {"number": 9}]
        assert again.torn_bytes == 0


def test_a_flipped_bit_is_noticed() -> None:
    """In the last change it looks like a torn write, and counts as one."""
    disk = with_three()
    data = disk.files()[PATH]
    last = data.rindex(b"\n", 0, -1) + 1
    for bit in range(8 * len(data)):
        disk.flip(PATH, bit)
        if bit // 8 < last:
            with pytest.raises(ConfigFileDamaged, match=r"topics\.changes"):
                loaded(disk)
        else:
            file = on(disk)
            assert file.load(with_backup=False) == THREE[:2]
            assert file.torn_bytes
        disk.flip(PATH, bit)


def test_an_unreadable_file_is_damage() -> None:
    disk = with_three()
    disk.fail_reads = lambda path: path == PATH
    with pytest.raises(ConfigFileDamaged, match=r"topics\.changes"):
        loaded(disk)


def test_a_rotated_file_is_read_with_the_backup_only() -> None:
    disk = with_three()
    file = on(disk)
    file.load(with_backup=False)
    file.rotate()
    file.append(4, {})
    assert loaded(disk) == [{"number": 4}]
    assert loaded(disk, with_backup=True) == [*THREE, {"number": 4}]
    backup = PATH.with_name("topics.changes.bak")
    disk.put(backup, disk.files()[backup][:-1])
    with pytest.raises(ConfigFileDamaged, match=r"topics\.changes\.bak"):
        loaded(disk, with_backup=True)
    assert loaded(disk) == [{"number": 4}]


def test_a_change_that_does_not_fit_is_appended_once_there_is_room() -> None:
    disk = with_three()
    file = on(disk)
    file.load(with_backup=False)
    disk.capacity = 512
    with pytest.raises(OSError, match=r"topics\.changes") as caught:
        file.append(4, {"long": "x" * 2_000})
    assert caught.value.errno == errno.ENOSPC
    disk.capacity = None
    file.append(4, {})
    assert loaded(disk) == [*THREE, {"number": 4}]


def test_a_failed_sync_is_made_good_by_the_next_append() -> None:
    disk = with_three()
    file = on(disk)
    file.load(with_backup=False)
    disk.fail_syncs = lambda path: True
    with pytest.raises(OSError, match=r"topics\.changes"):
        file.append(4, {"long": "x" * 2_000})
    disk.fail_syncs = lambda path: False
    file.append(4, {})
    assert loaded(disk.after_power_cut(1)) == [*THREE, {"number": 4}]


def test_a_cleared_file_has_nothing() -> None:
    disk = with_three()
    file = on(disk)
    file.load(with_backup=False)
    file.rotate()
    file.append(4, {})
    file.clear()
    assert loaded(disk.after_power_cut(1), with_backup=True) == []
