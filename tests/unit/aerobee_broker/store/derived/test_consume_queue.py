"""The files of consume queues: layout, bounds, rebuilt and deleted ones."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_broker.store.messages import LOST_SIZE, UNIT, NewMessage
from aerobee_broker.store.options import StoreOptions
from aerobee_wire.tags import tags_code
from support.clock.manual_clock import ManualClock
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import (
    FIRST_FILE,
    PATH,
    SMALL,
    new_store,
    open_store,
    send,
    upkeep,
    visible,
)

FOLDER = PATH / "consumequeue"


def queue_files(disk: SimulatedDisk) -> dict[str, bytes]:
    return {
        str(path.relative_to(FOLDER)): data
        for path, data in sorted(disk.files().items())
        if FOLDER in path.parents
    }


def test_unit_is_physical_offset_size_and_tags_code() -> None:
    """A file of 6,000,000 bytes named by the byte offset of its first unit."""
    store, disk, _ = new_store(StoreOptions(commit_log_file_size=1 << 16, index_enabled=False))
    appended = send(
        store, [NewMessage("orders", 2, b"x" * n, b"TAGS\x01UA\x02") for n in range(1, 4)]
    )
    store.close()
    [(name, data)] = queue_files(disk).items()
    assert name == f"orders/2/{0:020d}"
    assert len(data) == 6_000_000
    units = b"".join(
        UNIT.pack(message.physical_offset, message.store_size, tags_code("UA"))
        for message in appended
    )
    assert data.rstrip(b"\0") == units.rstrip(b"\0")


def test_files_are_named_by_their_byte_offset() -> None:
    store, disk, _ = new_store()
    send(store, [NewMessage("a", 0, b"x") for _ in range(70)])
    store.close()
    assert list(queue_files(disk)) == [f"a/0/{start:020d}" for start in (0, 640, 1_280)]
    assert {len(data) for data in queue_files(disk).values()} == {640}
    store = open_store(disk.after_kill())
    assert len(store.units("a", 0, 0, 100)) == 70
    assert store.units("a", 0, 30, 5) == store.units("a", 0, 0, 100)[30:35]
    assert store.units("a", 0, 70, 5) == []


def test_unwritten_units_are_bounded() -> None:
    """20 bytes of memory for each of `unwritten_units`."""
    store, disk, _ = new_store(replace(SMALL, unwritten_units=10))
    for _ in range(20):
        send(store, [NewMessage(f"topic{n}", 0, b"x") for n in range(5)])
    written = sum(len(data.rstrip(b"\0")) > 0 for data in queue_files(disk).values())
    waiting = sum(len(queue.tail) // 20 for queue in store._queues.table.values())
    assert written == 5
    assert waiting <= 10
    assert all(len(messages) == 20 for messages in visible(store).values())


def test_open_files_are_bounded_with_many_queues() -> None:
    store, disk, clock = new_store(replace(SMALL, max_open_files=4))
    for _ in range(3):
        send(store, [NewMessage(f"topic{n}", 0, b"x") for n in range(60)])
        upkeep(store, clock)
        assert all(len(messages) for messages in visible(store).values())
    # The log file in use, the checkpoint, and one that the flusher syncs.
    assert disk.most_open_files <= 4 + 3
    store.close()
    assert disk.open_files == 0


def test_rebuild_fills_the_front_with_lost_units() -> None:
    """RocketMQ: a queue that starts at another offset than 0 is filled with (0, 0x7FFFFFFF, 0)."""
    store, disk, _ = new_store()
    send(store, [NewMessage("a", 0, b"x" * 1_900) for _ in range(12)])
    store.close()
    disk = disk.after_kill()
    disk.remove(FIRST_FILE)
    disk.remove_tree(FOLDER)
    store = open_store(disk)
    assert (store.min_offset("a", 0), store.max_offset("a", 0)) == (4, 12)
    store.close()
    units = list(UNIT.iter_unpack(queue_files(disk)[f"a/0/{0:020d}"][: 12 * 20]))
    assert units[:4] == [(0, LOST_SIZE, 0)] * 4
    assert [unit[0] for unit in units[4:8]] == [8_192 + 2_012 * n for n in range(4)]
    store = open_store(disk.after_kill())
    assert (store.min_offset("a", 0), store.max_offset("a", 0)) == (4, 12)
    assert sorted(visible(store)["a", 0]) == list(range(4, 12))


def test_a_queue_that_was_never_used_has_no_file_and_no_offset() -> None:
    store = open_store()
    assert (store.min_offset("a", 0), store.max_offset("a", 0)) == (0, 0)
    assert store.queues("a") == []
    send(store, [NewMessage("a", 5, b"x")])
    assert store.queues("a") == [5]
    assert store.topics() == ["a"]


def test_queues_of_a_topic_named_like_a_path_stay_inside() -> None:
    store, disk, _ = new_store()
    send(store, [NewMessage("%RETRY%a|b", 0, b"x"), NewMessage("...", 0, b"y")])
    store.close()
    assert sorted(queue_files(disk)) == [f"%RETRY%a|b/0/{0:020d}", f".../0/{0:020d}"]


def test_recreated_topic_outlives_its_lost_units() -> None:
    """They lie below every physical offset, so below that of the deletion too."""
    store, disk, _ = new_store()
    send(store, [NewMessage("a", 0, b"old")])
    store.delete_topic("a")
    send(store, [NewMessage("a", 0, b"x" * 1_900) for _ in range(12)])
    store.close()
    disk = disk.after_kill()
    disk.remove(FIRST_FILE)
    disk.remove_tree(FOLDER)
    store = open_store(disk)
    first = store.min_offset("a", 0)
    assert first > 0
    store.close()
    store = open_store(disk.after_kill())
    assert (store.min_offset("a", 0), store.max_offset("a", 0)) == (first, 12)
    assert send(store, [NewMessage("a", 0, b"y")])[0].queue_offset == 12
    assert sorted(visible(store)["a", 0]) == list(range(first, 13))


def test_rebuild_does_not_list_a_deleted_topic() -> None:
    store, disk, _ = new_store()
    send(store, [NewMessage("a", 0, b"x"), NewMessage("b", 0, b"y")])
    store.delete_topic("a")
    store.close()
    disk = disk.after_kill()
    disk.remove_tree(FOLDER)
    store = open_store(disk)
    assert (store.topics(), store.queues("a")) == (["b"], [])


@pytest.mark.parametrize("left", ["files", "directories"])
@pytest.mark.parametrize("clean", [True, False])
def test_topic_is_deleted_when_its_directory_remains(
    monkeypatch: pytest.MonkeyPatch, left: str, clean: bool
) -> None:
    """Its messages are deleted; a topic of the name starts at 0; the next start removes the files
    that remained.
    """
    disk = SimulatedDisk()
    events: list[str] = []
    store = open_store(disk, on_event=lambda name, _: events.append(name))
    send(store, [NewMessage("a", n % 2, b"%d" % n) for n in range(80)])
    send(store, [NewMessage("b", 0, b"stays")])
    clock = ManualClock()
    upkeep(store, clock)

    def fails(path: Path) -> None:
        for file in disk.files():
            if path in file.parents and left == "directories":
                disk.remove(file)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as failing:
        failing.setattr(disk, "remove_tree", fails)
        store.delete_topic("a")
    assert "directory_left" in events
    assert (store.topics(), store.max_offset("a", 0)) == (["b"], 0)
    if clean:
        store.close()
    store = open_store(disk := disk.after_kill())
    assert store.topics() == ["b"]
    assert not any(name.startswith("a/") for name in queue_files(disk))
    send(store, [NewMessage("a", 0, b"new")])
    assert visible(store) == {("a", 0): {0: b"new"}, ("b", 0): {0: b"stays"}}


@pytest.mark.parametrize("clean", [True, False])
def test_recreated_topic_ignores_files_that_remained(
    monkeypatch: pytest.MonkeyPatch, clean: bool
) -> None:
    store, disk, _ = new_store()
    send(store, [NewMessage("a", n % 2, b"%d" % n) for n in range(80)])
    upkeep(store, ManualClock())
    with monkeypatch.context() as failing:
        failing.setattr(disk, "remove_tree", _refuse)
        store.delete_topic("a")
    send(store, [NewMessage("a", 0, b"new")])
    upkeep(store, ManualClock())
    if clean:
        store.close()
    store = open_store(disk := disk.after_kill())
    assert visible(store) == {("a", 0): {0: b"new"}}
    send(store, [NewMessage("a", 0, b"next")])
    assert visible(store) == {("a", 0): {0: b"new", 1: b"next"}}


def _refuse(path: Path) -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def test_lost_units_are_written_after_a_full_disk() -> None:
    store, disk, _ = new_store()
    send(store, [NewMessage("a", 0, b"x" * 1_900) for _ in range(12)])
    store.close()
    disk = disk.after_kill()
    disk.remove(FIRST_FILE)
    disk.remove_tree(FOLDER)
    store = open_store(disk)
    disk.fail_writes = lambda path: FOLDER in path.parents
    upkeep(store, ManualClock())
    disk.fail_writes = lambda path: False
    store.close()
    units = list(UNIT.iter_unpack(queue_files(disk)[f"a/0/{0:020d}"][: 12 * 20]))
    assert units[:4] == [(0, LOST_SIZE, 0)] * 4


@pytest.mark.parametrize("hole", [range(48, 49), range(60, 75), range(64, 96), range(40, 128)])
def test_zeroed_units_do_not_raise_the_min_offset(hole: range) -> None:
    store, disk, clock = new_store(replace(SMALL, unwritten_units=1))
    send(store, [NewMessage("a", 0, b"x" * 150) for _ in range(128)])
    upkeep(store, clock)
    expected = store.units("a", 0, 0, 128)
    for number in hole:
        path = FOLDER / "a" / "0" / f"{number // 32 * 640:020d}"
        data = bytearray(disk.files()[path])
        start = number % 32 * 20
        data[start : start + 20] = bytes(20)
        disk.put(path, bytes(data))
    queues, queue = store._queues, store._queues.get("a", 0)
    assert queue is not None
    for offset in range(128):
        if offset in hole:
            continue
        physical_offset = expected[offset][0]
        found = queues.first_at_or_after(queue, physical_offset)
        assert found <= offset
        assert found == offset or set(range(found, offset)) <= set(hole)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("expired", [True, False])
def test_lost_first_files_of_a_queue_are_rebuilt(clean: bool, expired: bool) -> None:
    """The remaining files follow one another, and the next offset is right."""
    store, disk, clock = new_store()
    send(store, [NewMessage("a", 0, b"%d" % n * 50) for n in range(300)])
    upkeep(store, clock)
    if clean:
        store.close()
    store.abandon()
    disk = disk.after_kill()
    if expired:
        disk.remove(FIRST_FILE)
    before = visible(open_store(disk.copy()))
    files = sorted(queue_files(disk))
    assert len(files) > 8
    for name in files[:6]:
        disk.remove(FOLDER / name)
    assert visible(open_store(disk)) == before
