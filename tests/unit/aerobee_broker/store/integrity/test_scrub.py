"""The scrub finds what is damaged, wherever it lies, and nothing else."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from aerobee_broker.store.damage import DamagedRange
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import UNIT
from support.clock.manual_clock import ManualClock
from support.disk.damage import flip, master_of, overwrite, record_at
from support.disk.stores import PATH, upkeep

PIECE = 1_000


def scrub(store: MessageStore) -> tuple[int, int]:
    """One round. Returns the bytes and records that it has read."""
    round_ = store.scrub()
    round_.begin()
    while not round_.is_done:
        round_.take(round_.read(PIECE))
    round_.close()
    return round_.bytes, round_.records


def test_whole_log_is_read_and_nothing_found() -> None:
    store, _ = master_of(200)
    assert scrub(store) == (store.end_offset, 200)
    assert store.damage.ranges == []


@pytest.mark.parametrize("number", [0, 1, 40, 99])
@pytest.mark.parametrize("at", [0, 4, 28, 50, 150, 205])
def test_flipped_bit_is_found_anywhere_in_a_record(number: int, at: int) -> None:
    store, disk = master_of(200)
    damaged = record_at(store, number)
    flip(disk, damaged.begin + at % damaged.size)
    scrub(store)
    assert store.damage.ranges == [damaged]
    assert store.corruption_count == 1


def test_zeroed_part_across_records_is_one_range() -> None:
    store, disk = master_of(200)
    first, last = record_at(store, 4), record_at(store, 7)
    overwrite(disk, first.begin + 60, bytes(last.begin + 60 - first.begin - 60))
    scrub(store)
    assert store.damage.ranges == [DamagedRange(first.begin, last.end)]


def test_sector_that_cannot_be_read_is_damage() -> None:
    store, disk = master_of(200)
    bad = DamagedRange(4_096, 8_192)  # of the first file

    def unreadable(path: Path) -> bool:
        return path.name == "0" * 20

    def fail(path: Path) -> None:
        raise OSError(errno.EIO, "bad sector", str(path))

    disk.fail_reads = unreadable
    scrub(store)
    disk.fail_reads = lambda path: False
    [found] = store.damage.ranges
    assert found.begin <= bad.begin and found.end >= bad.end - 300
    scrub(store)
    assert store.damage.ranges == []  # it can be read again


def test_place_where_a_reader_missed_a_record_is_looked_at() -> None:
    store, disk = master_of(200)
    damaged = record_at(store, 40)
    flip(disk, damaged.begin + 100)
    store.read("a", 0, 40, max_messages=1)
    assert list(store.damage.suspects) == [damaged.begin]
    round_ = store.scrub()
    round_.note(round_.read_near(store.damage.suspects.popleft(), PIECE))
    assert store.damage.ranges == [damaged]


def test_damaged_unit_is_repaired_on_the_way() -> None:
    store, disk = master_of(200)
    upkeep(store, ManualClock())
    round_ = store.scrub()
    round_.begin()
    read = round_.read(PIECE)
    assert read.piece.sample is not None
    topic, queue_id, queue_offset = read.piece.sample
    path = PATH / "consumequeue" / topic / str(queue_id) / ("0" * 20)
    good = disk.files()[path]
    disk.flip(path, (queue_offset * UNIT.size + 7) * 8)  # its physical offset
    round_.take(read)
    assert disk.files()[path] == good
