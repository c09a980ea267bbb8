"""After a failed sync nothing is acknowledged any more: the store is read-only."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from aerobee_broker.errors import StoreFlushError, StoreReadOnly, StoreWriteError
from aerobee_broker.store.derived.checkpoint import decode
from aerobee_broker.store.messages import NewMessage
from support.disk.simulated_disk import SimulatedDisk, SimulatedFile
from support.disk.stores import PATH, new_store, open_store, send, upkeep, visible


def broken_once(disk: SimulatedDisk, where: str) -> None:
    calls = 0

    def fails(path: object) -> bool:
        nonlocal calls
        calls += where in str(path)
        return calls == 1 and where in str(path)

    disk.fail_syncs = fails


def test_failed_sync_makes_the_store_read_only() -> None:
    events: list[str] = []
    store, disk, _ = new_store(on_event=lambda name, fields: events.append(name))
    send(store, [NewMessage("a", 0, b"first")])
    broken_once(disk, "commitlog")
    store.append([NewMessage("a", 0, b"second")])
    store.flush.write()
    with pytest.raises(StoreFlushError):
        store.flush.sync()
    assert "flushing" in store.flush.read_only_reason
    assert str(PATH) not in store.flush.read_only_reason  # clients read it
    assert events.count("store_read_only") == 1
    # The disk works again; that proves nothing about what was written before.
    with pytest.raises(StoreFlushError):
        store.flush.sync()
    with pytest.raises(StoreReadOnly):
        store.append([NewMessage("a", 0, b"third")])
    assert visible(store) == {("a", 0): {0: b"first"}}


def test_pending_appends_of_a_read_only_store_are_rolled_back() -> None:
    store, disk, _ = new_store()
    send(store, [NewMessage("a", 0, b"zeroth")])
    broken_once(disk, "commitlog")
    store.append([NewMessage("a", 0, b"first")])
    store.flush.write()
    store.append([NewMessage("a", 0, b"second")])
    with pytest.raises(StoreFlushError):
        store.flush.sync()
    with pytest.raises(StoreReadOnly):
        store.flush.write()
    assert store.end_offset == store.written_offset


def test_failed_sync_of_derived_files_makes_read_only() -> None:
    """The system may have dropped their pages too."""
    store, disk, clock = new_store()
    send(store, [NewMessage("a", 0, b"first")])
    broken_once(disk, "consumequeue")
    upkeep(store, clock)
    assert "derived" in store.flush.read_only_reason
    assert visible(store) == {("a", 0): {0: b"first"}}


def test_read_only_store_recovers_at_the_next_start() -> None:
    store, disk, _ = new_store()
    send(store, [NewMessage("a", 0, b"first")])
    broken_once(disk, "commitlog")
    store.append([NewMessage("a", 0, b"second")])
    store.flush.write()
    with pytest.raises(StoreFlushError):
        store.flush.sync()
    store.close()
    reopened = open_store(disk.after_kill())
    assert not reopened.flush.read_only_reason
    assert visible(reopened) == {("a", 0): {0: b"first", 1: b"second"}}
    send(reopened, [NewMessage("a", 0, b"third")])
    survivors = visible(open_store(reopened._disk.after_power_cut(1)))  # type: ignore[attr-defined]
    assert survivors == {("a", 0): {0: b"first", 1: b"second", 2: b"third"}}


def test_directory_removed_before_its_sync_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its topic is deleted on the loop while the flusher syncs."""
    store, disk, clock = new_store()
    send(store, [NewMessage("a", 0, b"x")])
    sync = disk.sync_directory

    def gone(path: Path) -> None:
        if path.name == "a":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        sync(path)

    monkeypatch.setattr(disk, "sync_directory", gone)
    upkeep(store, clock)
    assert store.flush.read_only_reason == ""


def dispatched(disk: SimulatedDisk) -> int:
    checkpoint = decode(disk.files()[PATH / "checkpoint"])
    assert checkpoint is not None
    return checkpoint.dispatched


def short_of_files(monkeypatch: pytest.MonkeyPatch, disk: SimulatedDisk, part: str) -> list[int]:
    """While the returned list holds a number, opening a file below a directory `part` fails."""
    opened, left = disk.open, [1]

    def refuse(path: Path, *, create: bool = False) -> SimulatedFile:
        if part in path.parts and left:
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return opened(path, create=create)

    monkeypatch.setattr(disk, "open", refuse)
    return left


@pytest.mark.parametrize("part", ["consumequeue", "index"])
def test_shortage_of_descriptors_delays_derived_syncs(
    monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Nothing written can be lost, so the store does not become read-only."""
    store, disk, clock = new_store()
    send(store, [NewMessage("a", n, b"x", b"KEYS\x01k\x02") for n in range(9)])
    clock.advance(10_000)
    store.maintain(clock.now_ms())  # the files are written
    left = short_of_files(monkeypatch, disk, part)
    for _ in range(3):
        upkeep(store, clock)
    assert store.flush.read_only_reason == ""
    assert dispatched(disk) == 0
    left.clear()
    upkeep(store, clock)
    assert dispatched(disk) == store.confirmed_offset
    before = visible(store)
    events: list[str] = []
    store = open_store(disk.after_power_cut(1), on_event=lambda name, _: events.append(name))
    assert (visible(store), events) == (before, [])


def test_appends_resume_after_a_shortage_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    store, disk, _ = new_store()
    big = [NewMessage("a", 0, b"x" * 1_900) for _ in range(4)]
    send(store, big)
    left = short_of_files(monkeypatch, disk, "commitlog")
    store.append(big)
    with pytest.raises(StoreWriteError):
        store.flush.write()
    assert store.flush.read_only_reason == ""
    left.clear()
    assert [message.queue_offset for message in send(store, big)] == [4, 5, 6, 7]
    assert len(visible(store)["a", 0]) == 8
    assert len(visible(open_store(disk.after_power_cut(1)))["a", 0]) == 8
