"""A disk whose process was killed: what was written stays, nothing is added."""

from __future__ import annotations

from pathlib import Path

from aerobee_broker.disk import replace_file
from aerobee_suite.mortal_disk import MortalDisk


def test_a_dead_disk_writes_nothing(tmp_path: Path) -> None:
    disk = MortalDisk()
    path = tmp_path / "log"
    file = disk.open(path, create=True)
    file.pwrite(b"before", 0)
    disk.die()
    file.pwrite(b"after!", 0)
    file.truncate(0)
    file.allocate(0, 100)
    file.sync()
    assert file.pread(100, 0) == b"before"
    file.close()
    disk.remove(path)
    disk.rename(path, tmp_path / "other")
    disk.make_directory(tmp_path / "folder")
    replace_file(disk, tmp_path / "table.json", b"{}")
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"log": b"before"}


def test_its_lock_is_free_once_it_is_closed(tmp_path: Path) -> None:
    first, second = MortalDisk(), MortalDisk()
    lock = first.lock(tmp_path / "lock")
    assert lock is not None and second.lock(tmp_path / "lock") is None
    first.die()
    lock.close()
    assert second.lock(tmp_path / "lock") is not None
