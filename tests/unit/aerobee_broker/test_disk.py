"""The real disk, and replacing a file on a simulated disk whose power is cut."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.disk import RealDisk, Usage, read_file, replace_file
from support.disk.simulated_disk import PowerCut, SimulatedDisk

NAME = Path("/data/config/topics.json")


def test_file_is_written_and_read_at_offsets(tmp_path: Path) -> None:
    disk = RealDisk()
    file = disk.open(tmp_path / "a", create=True)
    file.pwrite(b"world", 6)
    file.pwrite(bytearray(b"hello "), 0)
    file.sync()
    assert file.pread(100, 0) == b"hello world"
    assert file.pread(5, 6) == b"world"
    assert file.pread(5, 100) == b""
    file.truncate(3)
    file.allocate(2, 6)
    assert (file.size(), file.pread(9, 0)) == (8, b"hel" + bytes(5))
    file.close()
    assert read_file(disk, tmp_path / "a") == b"hel" + bytes(5)


def test_short_reads_and_writes_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may read or write less than it was asked to."""
    read, write = os.pread, os.pwrite
    monkeypatch.setattr(os, "pread", lambda fd, size, at: read(fd, min(size, 7), at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, bytes(data)[:5], at))
    file = RealDisk().open(tmp_path / "a", create=True)
    file.pwrite(bytes(range(100)), 3)
    assert file.pread(100, 3) == bytes(range(100))
    assert file.pread(200, 3) == bytes(range(100))
    file.close()


def test_names_are_listed_renamed_and_removed(tmp_path: Path) -> None:
    disk = RealDisk()
    disk.make_directory(tmp_path / "x" / "y")
    disk.make_directory(tmp_path / "x" / "y")
    for name in ("b", "a"):
        disk.open(tmp_path / "x" / name, create=True).close()
    assert disk.list(tmp_path / "x") == ["a", "b", "y"]
    assert disk.list(tmp_path / "nowhere") == []
    disk.rename(tmp_path / "x" / "a", tmp_path / "x" / "b")
    disk.sync_directory(tmp_path / "x")
    assert disk.list(tmp_path / "x") == ["b", "y"]
    disk.remove(tmp_path / "x" / "b")
    assert not disk.exists(tmp_path / "x" / "b")
    disk.remove_tree(tmp_path / "x")
    disk.remove_tree(tmp_path / "x")
    assert disk.list(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        disk.open(tmp_path / "x")


def test_tree_is_removed_while_another_thread_removes_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk()
    for name in ("a", "b"):
        disk.make_directory(tmp_path / "x" / name)
        disk.open(tmp_path / "x" / name / "file", create=True).close()
    unlink = os.unlink
    seen: list[object] = []

    def too_late(*args: Any, **named: Any) -> None:
        unlink(*args, **named)
        if not seen:
            seen.append(args)
            unlink(*args, **named)

    monkeypatch.setattr(os, "unlink", too_late)
    disk.remove_tree(tmp_path / "x")
    assert seen
    assert not disk.exists(tmp_path / "x")


def test_lock_excludes_until_it_is_closed(tmp_path: Path) -> None:
    disk = RealDisk()
    held = disk.lock(tmp_path / "lock")
    assert held is not None
    assert disk.lock(tmp_path / "lock") is None
    held.close()
    again = disk.lock(tmp_path / "lock")
    assert again is not None
    again.close()


def test_usage_is_what_df_says(tmp_path: Path) -> None:
    usage = RealDisk().usage(tmp_path)
    assert usage.used > 0 and usage.free >= 0
    assert 0 < usage.percent <= 100
    assert Usage(30, 10).percent == 75.0


def replaced(disk: SimulatedDisk, content: bytes) -> None:
    disk.make_directory(NAME.parent)
    replace_file(disk, NAME, content, keep_backup=True)


@pytest.mark.parametrize("seed", range(30))
def test_replaced_file_is_old_or_new_after_any_power_cut(seed: int) -> None:
    """The old content or the new one is there, under its name or as the backup."""
    for crash_at in range(1, 12):
        disk = SimulatedDisk(seed)
        replaced(disk, b"old" * 300)
        disk.crash_at = disk.steps + crash_at
        try:
            replaced(disk, b"new" * 400)
        except PowerCut:
            done = False
        else:
            done = True
        after = disk.after_power_cut(seed)
        files = {path.name: data for path, data in after.files().items()}
        found = files.get(NAME.name, files.get(NAME.name + ".bak"))
        assert found in (b"old" * 300, b"new" * 400)
        if done:
            assert files[NAME.name] == b"new" * 400


def test_backup_has_the_old_content() -> None:
    disk = SimulatedDisk()
    replaced(disk, b"first")
    assert not disk.exists(NAME.with_name("topics.json.bak"))
    replaced(disk, b"second")
    assert read_file(disk, NAME) == b"second"
    assert read_file(disk, NAME.with_name("topics.json.bak")) == b"first"
