"""Durable and locked files on each system. The calls of macOS and Windows are fakes."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from aerobee_wire import files

F_FULLFSYNC = 51  # of macOS


def loaded() -> ModuleType:
    """The module as another system would import it."""
    assert files.__file__ is not None
    spec = importlib.util.spec_from_file_location("files_elsewhere", files.__file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Calls:
    """Calls of the operating system, recorded. `error` is that of the full sync."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, int]] = []
        self.error: OSError | None = None
        monkeypatch.setattr(os, "fsync", lambda fd: self.made.append(("fsync", fd)))
        monkeypatch.setattr(fcntl, "fcntl", self._fcntl)

    def _fcntl(self, descriptor: int, command: int) -> None:
        assert command == F_FULLFSYNC
        self.made.append(("full", descriptor))
        if self.error:
            raise self.error


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@pytest.fixture
def macos(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> ModuleType:
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", F_FULLFSYNC, raising=False)
    monkeypatch.delattr(os, "fdatasync", raising=False)
    return loaded()


def test_macos_empties_the_cache_of_the_disk(macos: ModuleType, calls: Calls) -> None:
    macos.sync(5)
    macos.sync_data(6)
    assert calls.made == [("full", 5), ("full", 6)]


def test_macos_syncs_a_directory_the_same_way(
    macos: ModuleType, calls: Calls, tmp_path: Path
) -> None:
    macos.sync_directory(tmp_path)
    assert [call for call, _ in calls.made] == ["full"]


def test_a_network_drive_of_macos_is_synced_plainly(macos: ModuleType, calls: Calls) -> None:
    calls.error = OSError(errno.ENOTSUP, "not supported")
    macos.sync_data(5)
    assert calls.made == [("full", 5), ("fsync", 5)]


def test_a_failed_sync_of_macos_is_an_error(macos: ModuleType, calls: Calls) -> None:
    calls.error = OSError(errno.EIO, "broken")
    with pytest.raises(OSError):
        macos.sync_data(5)
    assert calls.made == [("full", 5)]


@pytest.mark.skipif(not hasattr(os, "fdatasync"), reason="not on Linux")
def test_linux_syncs_data_alone() -> None:
    assert files.sync_data is os.fdatasync


def test_a_lock_is_held_once(tmp_path: Path) -> None:
    first, second = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    try:
        assert files.lock(first)
        assert not files.lock(second)
        files.unlock(first)
        assert files.lock(second)
    finally:
        os.close(first)
        os.close(second)


class Msvcrt(ModuleType):
    """Windows' locks: of bytes at the position of a descriptor."""

    LK_UNLCK, LK_NBLCK = 0, 2

    def __init__(self) -> None:
        super().__init__("msvcrt")
        self.held: dict[int, int] = {}  # position → descriptor

    def locking(self, descriptor: int, mode: int, count: int) -> None:
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        assert count == 1
        if mode == self.LK_UNLCK:
            del self.held[position]
        elif position in self.held:
            raise PermissionError(errno.EACCES, "locked")
        else:
            self.held[position] = descriptor


def test_windows_locks_a_byte_behind_the_content(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    windows = Msvcrt()
    monkeypatch.setitem(sys.modules, "msvcrt", windows)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.delattr(os, "fdatasync", raising=False)
    module = loaded()
    path = tmp_path / "journal"
    path.write_bytes(b"content")
    first, second = (os.open(path, os.O_RDWR) for _ in range(2))
    try:
        os.read(first, 3)
        assert module.lock(first) and not module.lock(second)
        assert os.read(first, 4) == b"tent"  # the position is where it was
        assert min(windows.held) > 1 << 30
        module.unlock(first)
        assert module.lock(second)
    finally:
        os.close(first)
        os.close(second)
    module.sync_directory(tmp_path / "missing")
    assert module.sync_data is os.fsync


@pytest.mark.parametrize("fails", ["sync", "sync_directory"])
def test_failed_replacement_states_whether_the_file_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def fail(_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    path = tmp_path / "table.json"
    files.replace_file(path, b"old")
    monkeypatch.setattr(files, fails, fail)
    with pytest.raises(OSError) as caught:
        files.replace_file(path, b"new")
    is_replaced = fails == "sync_directory"
    assert isinstance(caught.value, files.NotSynced) == is_replaced
    assert path.read_bytes() == (b"new" if is_replaced else b"old")
    assert ("nothing was changed" in files.outcome_of(caught.value)) == (not is_replaced)
