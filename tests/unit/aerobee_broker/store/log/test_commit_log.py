"""The files of the log: names, allocation ahead, failed writes, refusals at the start."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_broker.disk import RealDisk, Usage
from aerobee_broker.errors import (
    CommitLogBroken,
    DiskFull,
    StoreFlushError,
    StoreOpenError,
    StoreReadOnly,
    StoreWriteError,
)
from aerobee_broker.store.messages import NewMessage
from aerobee_broker.store.options import StoreOptions
from support.clock.manual_clock import ManualClock
from support.codes import raises_about
from support.disk.simulated_disk import PowerCut, SimulatedDisk, SimulatedFile
from support.disk.stores import (
    FIRST_FILE,
    LOG,
    PATH,
    SMALL,
    flush,
    new_store,
    open_store,
    open_with_events,
    send,
    upkeep,
    visible,
    without_checkpoint,
)

SIZE = SMALL.commit_log_file_size
BIG = [NewMessage("a", 0, b"x" * 1_900) for _ in range(4)]  # fill a file


def log_files(disk: SimulatedDisk) -> list[str]:
    return sorted(path.name for path in disk.files() if path.parent == LOG)


def filled(files: int) -> SimulatedDisk:
    """With a closed store whose log has so many files."""
    store, disk, _ = new_store()
    for _ in range(files):
        send(store, BIG)
    store.close()
    return disk


def test_file_is_named_by_its_offset_and_has_full_size() -> None:
    disk = filled(3)
    assert log_files(disk) == [f"{n * SIZE:020d}" for n in range(3)]
    assert {len(disk.files()[LOG / name]) for name in log_files(disk)} == {SIZE}


def test_an_empty_store_has_no_log_file() -> None:
    disk = SimulatedDisk()
    open_store(disk).close()
    assert log_files(disk) == []


def test_next_file_is_allocated_ahead_and_renamed_when_needed() -> None:
    store, disk, clock = new_store(replace(SMALL, commit_log_step=SIZE))
    send(store, BIG[:3])
    upkeep(store, clock)
    assert log_files(disk) == ["0" * 20, "blank.ready"]
    before = disk.steps
    store.append(BIG[:2])
    store.flush.write()
    assert disk.steps == before + 3  # end of the old file, rename, start of the new one
    assert log_files(disk) == ["0" * 20, f"{SIZE:020d}"]


def test_file_allocated_ahead_is_removed_on_close() -> None:
    store, disk, clock = new_store()
    send(store, BIG[:3])
    upkeep(store, clock)
    store.close()
    assert log_files(disk) == ["0" * 20]


def test_failed_allocation_ahead_fails_no_append() -> None:
    disk, clock = SimulatedDisk(), ManualClock()
    events: list[str] = []
    store = open_store(disk, clock=clock, on_event=lambda name, fields: events.append(name))
    send(store, BIG[:3])
    disk.capacity = disk.used_bytes() + 512  # room for the units, not for the next file
    upkeep(store, clock)
    assert "allocation_failed" in events
    assert not store.flush.read_only_reason
    disk.capacity = None
    send(store, BIG)
    assert len(visible(store)["a", 0]) == 7


def test_file_reserves_space_in_steps_that_double() -> None:
    store, disk, _ = new_store()
    disk.reported = Usage(used=0, free=1 << 30)
    spaces = []
    for _ in range(14):
        send(store, [NewMessage("a", 0, b"x" * 400)])
        spaces.append(disk.space_of(FIRST_FILE))
        assert spaces[-1] >= store.written_offset
    assert sorted(set(spaces)) == [1_024, 2_048, 4_096, SIZE]
    assert len(disk.files()[FIRST_FILE]) == SIZE


def test_small_disk_gets_small_steps() -> None:
    """Twice the space may pass a watermark, although most of it is empty."""
    store, disk, _ = new_store()
    disk.reported = Usage(used=0, free=3 * 1_024)
    spaces = set()
    for _ in range(14):
        send(store, [NewMessage("a", 0, b"x" * 400)])
        spaces.add(disk.space_of(FIRST_FILE))
    assert sorted(spaces) == [1_024 * n for n in (1, 2, 3, 4, 5, 6, 7)]


def test_disk_that_cannot_be_measured_gets_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    store, disk, _ = new_store()

    def fail(path: Path) -> Usage:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(disk, "usage", fail)
    for _ in range(5):
        send(store, [NewMessage("a", 0, b"x" * 400)])
    assert disk.space_of(FIRST_FILE) == 3_072


def test_failed_step_refuses_the_message_and_takes_no_space() -> None:
    store, disk, clock = new_store()
    send(store, [NewMessage("a", 0, b"first")])
    used = disk.used_bytes()
    disk.capacity = used + 512
    store.append([NewMessage("a", 0, b"x" * 1_000)])
    with pytest.raises(DiskFull):
        store.flush.write()
    assert disk.used_bytes() == used
    assert not store.flush.read_only_reason
    send(store, [NewMessage("a", 0, b"small")])  # fits into the reserved space
    assert disk.used_bytes() == used
    disk.capacity = None
    send(store, [NewMessage("a", 0, b"x" * 1_000)])
    expected = {("a", 0): {0: b"first", 1: b"small", 2: b"x" * 1_000}}
    assert visible(store) == expected
    assert visible(open_store(disk.after_power_cut(1), clock=clock)) == expected


def test_wipe_of_a_failed_write_needs_no_space() -> None:
    """A write fails at its second file. Its part of the first file is wiped."""
    store, disk, _ = new_store()
    send(store, [NewMessage("a", 0, b"x" * 1_900) for _ in range(3)])
    disk.capacity = disk.used_bytes() + 2_048  # for the rest of the first file
    store.append([NewMessage("a", 0, b"ghost" * 100) for _ in range(5)])
    with pytest.raises(DiskFull):
        store.flush.write()
    disk.capacity = disk.used_bytes()
    send(store, [NewMessage("a", 0, b"fits")])
    found = visible(open_store(without_checkpoint(disk.after_kill())))
    assert found["a", 0] == dict.fromkeys(range(3), b"x" * 1900) | {3: b"fits"}


def test_start_on_a_full_disk_reserves_nothing() -> None:
    store, disk, _ = new_store()
    send(store, [NewMessage("a", 0, b"first")])
    store.close()
    disk = disk.after_kill()
    disk.capacity = disk.used_bytes()
    assert visible(open_store(disk)) == {("a", 0): {0: b"first"}}


@pytest.mark.parametrize("seed", range(20))
def test_power_cut_at_any_step_loses_nothing_acknowledged(seed: int) -> None:
    """The disk is full and has space again in turns."""
    for crash_at in range(1, 60, 3):
        disk = SimulatedDisk(seed)
        store = open_store(disk)
        disk.crash_at = disk.steps + crash_at
        acknowledged: list[bytes] = []
        try:
            for number in range(40):
                disk.capacity = disk.used_bytes() if number % 3 else None
                body = b"%d" % number * 150
                try:
                    send(store, [NewMessage("a", 0, body)])
                except (DiskFull, StoreFlushError):
                    continue
                acknowledged.append(body)
        except PowerCut:
            pass
        found = visible(open_store(disk.after_power_cut(seed))).get(("a", 0), {})
        assert list(found.values())[: len(acknowledged)] == acknowledged


def test_almost_empty_store_takes_at_most_70_mib(tmp_path: Path) -> None:
    store = open_store(RealDisk(), StoreOptions(), path=tmp_path)
    send(store, [NewMessage("a", 0, b"x")])
    store.close()
    files = [path.stat() for path in tmp_path.rglob("*") if path.is_file()]
    assert 64 << 20 <= sum(file.st_blocks * 512 for file in files) <= 70 << 20


def test_failed_write_rolls_back_its_messages() -> None:
    store, disk, _ = new_store()
    send(store, [NewMessage("a", 0, b"first")])
    end = store.end_offset
    disk.capacity = disk.used_bytes()
    store.append([NewMessage("a", 0, b"lost"), NewMessage("b", 0, b"lost"), *BIG, *BIG])
    with pytest.raises(DiskFull):
        store.flush.write()
    assert store.end_offset == store.written_offset == end
    disk.capacity = None
    [message] = send(store, [NewMessage("a", 0, b"second")])
    assert (message.queue_offset, message.physical_offset) == (1, end)
    assert visible(store) == {("a", 0): {0: b"first", 1: b"second"}}


def test_records_left_by_a_failed_write_are_wiped() -> None:
    """They would lie right behind a later record of the same size."""
    store, disk, _ = new_store()
    send(store, [NewMessage("a", 0, b"first")])
    disk.capacity = disk.used_bytes()
    store.append([*(NewMessage("a", 0, b"ghost") for _ in range(9)), *BIG, *BIG])
    with pytest.raises(DiskFull):
        store.flush.write()
    disk.capacity = None
    send(store, [NewMessage("a", 0, b"hello")])
    disk = without_checkpoint(disk)
    assert visible(open_store(disk)) == {("a", 0): {0: b"first", 1: b"hello"}}


def test_a_write_error_makes_the_store_read_only() -> None:
    store, disk, _ = new_store()
    send(store, [NewMessage("a", 0, b"first")])
    disk.fail_writes = lambda path: "commitlog" in str(path)
    store.append([NewMessage("a", 0, b"second")])
    with pytest.raises(StoreWriteError):
        store.flush.write()
    disk.fail_writes = lambda path: False
    with pytest.raises(StoreReadOnly):
        store.append([NewMessage("a", 0, b"third")])
    assert visible(store) == {("a", 0): {0: b"first"}}


@pytest.mark.parametrize("files", [3, 4])
def test_missing_last_or_middle_file_stops_the_start(files: int) -> None:
    disk = filled(files)
    missing = LOG / f"{2 * SIZE:020d}"
    disk.remove(missing)
    with raises_about(CommitLogBroken, str(missing)):
        open_store(disk)
    if files == 3:
        disk.remove(PATH / "checkpoint")
        assert len(visible(open_store(disk))["a", 0]) == 8


def test_store_starts_without_the_files_before_a_gap() -> None:
    disk = filled(4)
    for start in (0, SIZE, 2 * SIZE):
        disk.remove(LOG / f"{start:020d}")
    store = open_store(disk)
    assert store.min_physical_offset == 3 * SIZE
    assert sorted(visible(store)["a", 0]) == [12, 13, 14, 15]
    assert store.min_offset("a", 0) == 12


def test_other_file_size_than_the_stores_is_refused() -> None:
    disk = filled(1)
    for size in (SIZE // 2, SIZE * 2):
        with raises_about(CommitLogBroken, "mappedFileSizeCommitLog"):
            open_store(disk, replace(SMALL, commit_log_file_size=size))
    assert len(visible(open_store(disk))["a", 0]) == 4


def test_short_middle_file_stops_the_start() -> None:
    disk = filled(3)
    disk.put(LOG / f"{SIZE:020d}", b"short")
    with raises_about(CommitLogBroken, str(LOG / f"{SIZE:020d}")):
        open_store(disk)


def test_foreign_files_are_left_alone() -> None:
    disk = filled(1)
    disk.open(LOG / "notes.txt", create=True).close()
    store = open_store(disk)
    assert len(visible(store)["a", 0]) == 4
    assert "notes.txt" in log_files(disk)


@pytest.mark.parametrize("size", [4_096, 10_000, 65_537])
def test_any_file_size_works(size: int) -> None:
    disk = SimulatedDisk()
    options = replace(SMALL, commit_log_file_size=size)
    store = open_store(disk, options)
    for _ in range(30):
        send(store, [NewMessage("a", 0, b"x" * 777)])
    store.close()
    assert len(visible(open_store(disk.after_kill(), options))["a", 0]) == 30


def test_unreadable_log_file_is_damage() -> None:
    disk = SimulatedDisk()
    store, events = open_with_events(disk)
    send(store, BIG)
    send(store, [*BIG[:1], NewMessage("b", 0, b"fine")])
    disk.fail_reads = lambda path: path == FIRST_FILE
    result = store.read("a", 0, 0)
    assert (result.message_count, result.corrupted_count) == (1, 4)
    assert visible(store)["b", 0] == {0: b"fine"}
    [first, *_] = [fields for name, fields in events if name == "corrupt_record"]
    assert first["file"] == str(FIRST_FILE)


def test_unreadable_directory_is_a_store_open_error(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()

    def refuse(path: Path) -> None:
        raise OSError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(disk, "make_directory", refuse)
    with pytest.raises(StoreOpenError):
        open_store(disk)


def test_flush_syncs_only_what_was_written() -> None:
    store, disk, _ = new_store()
    send(store, BIG)
    before = disk.steps
    flush(store)
    assert disk.steps == before


def test_sync_ends_while_writes_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is written to again during its sync: the next sync covers that."""
    store = open_store()
    send(store, [NewMessage("a", 0, b"first")])
    good = SimulatedFile.sync
    syncs = 0

    def sync_and_write(file: SimulatedFile) -> None:
        nonlocal syncs
        syncs += 1
        good(file)
        store.append([NewMessage("a", 0, b"more")])
        store.flush.write()

    store.append([NewMessage("a", 0, b"second")])
    written = store.flush.write()
    monkeypatch.setattr(SimulatedFile, "sync", sync_and_write)
    assert store.flush.sync() == written
    assert syncs == 1


def test_a_deletion_is_at_the_end_where_only_a_blank_record_follows() -> None:
    store, disk, _ = new_store()
    send(store, BIG[:1])
    store.delete_topic("a")
    assert store.deleted_at_end() == ["a"]
    store._log.roll()
    flush(store)
    assert store.end_offset == SIZE
    assert store.deleted_at_end() == ["a"]
    again = open_store(disk.after_kill())
    assert again.deleted_at_end() == ["a"]
    send(again, [NewMessage("b", 0, b"x")])
    assert again.deleted_at_end() == []
