"""The order of each lite topic in one queue of its parent: as the units say, after every loss."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from aerobee_broker.store.lite import links, lite_queue
from aerobee_broker.store.lite.head_snapshot import NAME
from aerobee_broker.store.lite.links import BLOCK_BYTES, BLOCK_LINKS
from aerobee_broker.store.lite.lite_queue import LiteQueue, lite_code
from support.disk.lite_lines import FOLDER, Units, opened
from support.disk.simulated_disk import PowerCut, SimulatedDisk

HEADS = FOLDER / NAME
SEGMENT = FOLDER / ("0" * 20)


def assert_same_order(queue: LiteQueue, units: Units, rng: random.Random, codes: int) -> None:
    """For every lite topic: all of it, and parts of it from anywhere."""
    assert queue.end == len(units.codes)
    for code in range(1, codes + 1):
        whole = units.offsets(code)
        assert queue.offsets(code, 0, len(units.codes) + 1) == whole
        last = queue.last(code)
        assert (last.queue_offset if last and last.queue_offset >= units.low else None) == (
            whole[-1] if whole else None
        )
        begin, count = rng.randrange(len(units.codes) + 2), rng.randrange(1, 40)
        part = units.offsets(code, begin)
        assert queue.offsets(code, begin, count) == part[:count]
        assert queue.count_from(code, begin) == len(part)


def extended(queue: LiteQueue, units: Units, codes: list[int]) -> list[int]:
    first = len(units.codes)
    return list(queue.extend(first, units.add(codes)))


def random_codes(rng: random.Random, codes: int, count: int) -> list[int]:
    """0 is a message of no lite topic; low codes have many messages, high ones few."""
    return [min(rng.randrange(codes + 1), rng.randrange(codes + 1)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(12))
def test_each_lite_topic_has_its_own_order(seed: int) -> None:
    """Also across blocks, after a start that finds a snapshot, and after one that finds none."""
    rng, units, disk = random.Random(seed), Units(), SimulatedDisk()
    codes = rng.choice((1, 3, 40, 600))
    queue = opened(units, disk)
    for _ in range(rng.randrange(1, 30)):
        batch = random_codes(rng, codes, rng.randrange(1, 200))
        assert extended(queue, units, batch) == list(dict.fromkeys(c for c in batch if c))
        if rng.random() < 0.2:
            queue.write()
        if rng.random() < 0.2 and (capture := queue.capture()) is not None:
            capture.write()
        if rng.random() < 0.1:
            queue = opened(units, disk)
    assert_same_order(queue, units, rng, codes)
    rebuilt = queue.rebuilt
    assert_same_order(opened(units, disk), units, rng, codes)
    disk.remove_tree(FOLDER)
    assert_same_order(opened(units, disk), units, rng, codes)
    assert queue.rebuilt == rebuilt


def test_numbers_count_within_a_lite_topic() -> None:
    units, disk = Units(), SimulatedDisk()
    queue = opened(units, disk)
    extended(queue, units, [5, 6, 5, 0, 5, 6, 5])
    found = [queue.at_number(5, number) for number in range(5)]
    assert [hit and tuple(hit) for hit in found] == [(0, 0), (2, 1), (4, 2), (6, 3), None]
    assert queue.last(6) == (5, 1)
    assert queue.last(7) is None


def test_a_message_far_back_is_found_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 100,000 messages behind, over links that are in memory or on the disk alike."""
    units, disk = Units(), SimulatedDisk()
    queue = opened(units, disk)
    extended(queue, units, [1, 2] * 100_000)
    queue.write()
    steps = 0
    get = queue._links.get

    def counted(queue_offset: int) -> object:
        nonlocal steps
        steps += 1
        return get(queue_offset)

    monkeypatch.setattr(queue._links, "get", counted)
    for begin in range(0, 200_000, 9_973):
        steps = 0
        assert queue.first_from(1, begin) is not None
        assert steps <= 60


def test_follows_on_when_it_missed_units() -> None:
    units, disk = Units(), SimulatedDisk()
    queue = opened(units, disk)
    units.add([1, 2, 3])
    assert extended(queue, units, [2, 1]) == [2, 1]
    assert queue.offsets(2, 0, 10) == [1, 3]
    assert list(queue.extend(3, [units.unit(3), units.unit(4)])) == [2, 1]  # known already
    assert queue.offsets(2, 0, 10) == [1, 3]


def test_expired_messages_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With their links, file by file, and the heads of lite topics that have nothing else."""
    segment = 16 * BLOCK_LINKS  # in place of half a million
    monkeypatch.setattr(links, "SEGMENT_LINKS", segment)
    rng, units, disk = random.Random(3), Units(), SimulatedDisk()
    queue = opened(units, disk)
    extended(queue, units, [9, *random_codes(rng, 5, 2 * segment + 700)])
    queue.write()
    units.low = segment + 900
    queue.trim()
    assert not disk.exists(SEGMENT)
    assert disk.exists(FOLDER / f"{segment:020}")
    assert queue.last(9) is None
    begin = units.low + 3
    for code in range(1, 6):
        assert queue.offsets(code, 0, 3) == units.offsets(code)[:3]
        assert queue.offsets(code, begin, 50) == units.offsets(code, begin)[:50]
    capture = queue.capture()
    assert capture is not None
    capture.write()
    again = opened(units, disk)
    assert again.rebuilt == 0
    assert again.offsets(2, 0, 9) == units.offsets(2)[:9]


def test_a_queue_whose_messages_have_all_expired_goes_on() -> None:
    units, disk = Units(), SimulatedDisk()
    queue = opened(units, disk)
    extended(queue, units, [1, 2, 3])
    capture = queue.capture()
    assert capture is not None
    capture.write()
    units.add([4] * 10)
    units.low = 13
    queue = opened(units, disk)
    assert queue.end == 13
    extended(queue, units, [1])
    assert queue.offsets(1, 0, 10) == [13]


@pytest.mark.parametrize("seed", range(10))
def test_damage_is_found_and_made_good(seed: int) -> None:
    """A bit that flips anywhere in a file: of the heads, or of the links."""
    rng, units, disk = random.Random(seed), Units(), SimulatedDisk()
    queue = opened(units, disk)
    extended(queue, units, random_codes(rng, 30, 3 * BLOCK_LINKS + 77))
    capture = queue.capture()
    assert capture is not None
    capture.write()
    for path in (HEADS, SEGMENT):
        damaged = disk.copy()
        damaged.flip(path, rng.randrange(8 * min(len(disk.files()[path]), 3 * BLOCK_BYTES)))
        assert_same_order(opened(units, damaged), units, rng, 30)


@pytest.mark.parametrize("seed", range(10))
def test_damage_is_made_good_while_it_runs(seed: int) -> None:
    rng, units, disk = random.Random(seed), Units(), SimulatedDisk()
    queue = opened(units, disk)
    extended(queue, units, random_codes(rng, 30, 3 * BLOCK_LINKS + 77))
    queue.write()
    disk.flip(SEGMENT, rng.randrange(8 * 3 * BLOCK_BYTES))
    extended(queue, units, random_codes(rng, 30, 100))
    assert_same_order(queue, units, rng, 30)


def test_a_snapshot_of_another_queue_is_not_taken() -> None:
    """A topic was deleted and made again: queue offsets begin at 0 again, records lie elsewhere."""
    units, disk = Units(), SimulatedDisk()
    queue = opened(units, disk)
    extended(queue, units, [1, 2, 1])
    capture = queue.capture()
    assert capture is not None
    capture.write()
    others = Units()
    others.add([2])
    assert opened(others, disk).offsets(1, 0, 9) == []
    moved = Units()
    moved.add([2, 2, 2, 2])
    moved.unit = lambda at: (7 + at * 50, 50, moved.codes[at])  # type: ignore[method-assign]
    queue = opened(moved, disk)
    assert queue.rebuilt == 1
    assert queue.offsets(1, 0, 9) == []
    assert queue.offsets(2, 0, 9) == [0, 1, 2, 3]


def test_a_full_disk_leaves_links_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, units, disk = random.Random(1), Units(), SimulatedDisk()
    queue = opened(units, disk)
    disk.capacity = 0
    monkeypatch.setattr(lite_queue, "_WRITE_BYTES", BLOCK_LINKS * 32)
    for _ in range(4):  # each tries to write
        codes = random_codes(rng, 9, BLOCK_LINKS // 2)
        assert extended(queue, units, codes) == list(dict.fromkeys(c for c in codes if c))
    with pytest.raises(OSError, match="space"):
        queue.write()
    assert_same_order(queue, units, rng, 9)
    disk.capacity = None
    queue.write()
    assert_same_order(queue, units, rng, 9)


@pytest.mark.parametrize("seed", range(60))
def test_is_the_same_after_a_power_cut_anywhere(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a kill. The units are durable before they are seen here; nothing else is known to be."""
    rng, units = random.Random(seed), Units()
    monkeypatch.setattr(lite_queue, "_WRITE_BYTES", 2 * BLOCK_LINKS * 32)
    disk = SimulatedDisk(seed, crash_at=rng.randrange(1, 60))
    try:
        queue = opened(units, disk)
        for _ in range(40):
            extended(queue, units, random_codes(rng, 50, rng.randrange(1, 400)))
            if rng.random() < 0.3:
                queue.write()
            if rng.random() < 0.3 and (capture := queue.capture()) is not None:
                capture.write()
            if rng.random() < 0.05:
                units.low = rng.randrange(units.low, len(units.codes))
                queue.trim()
    except PowerCut:
        pass
    after = disk.after_power_cut(seed)
    assert_same_order(opened(units, after), units, rng, 50)
    assert_same_order(opened(units, after), units, rng, 50)


def test_memory_of_idle_lite_topics() -> None:
    """At 100,000 of one message each; what an administrator lists comes on top."""
    units, disk = Units(), SimulatedDisk()
    queue = opened(units, disk)
    extended(queue, units, [lite_code(b"session-%d" % n) for n in range(100_000)])
    capture = queue.capture()
    assert capture is not None
    capture.write()
    assert len(queue) == 100_000
    assert len(disk.files()[HEADS]) < 100 * 100_000, "the arrays in memory, and the unwritten links"


def test_codes_of_names() -> None:
    codes = {lite_code(b"n%d" % n) for n in range(1_000)}
    assert len(codes) == 1_000
    assert 0 not in codes
    assert all(-(1 << 63) <= code < 1 << 63 for code in codes)
    assert lite_code(b"a") == lite_code(b"a")


def test_files_are_where_the_format_says() -> None:
    units, disk = Units(), SimulatedDisk()
    queue = opened(units, disk)
    extended(queue, units, [3] * (BLOCK_LINKS + 1))
    capture = queue.capture()
    assert capture is not None
    capture.write()
    files: dict[Path, bytes] = disk.files()
    assert sorted(files) == [SEGMENT, HEADS]
    block = files[SEGMENT]
    assert len(block) == BLOCK_BYTES
    assert block[:4] == b"ALNK"
    assert int.from_bytes(block[8:16], "big") == 0
    second = [int.from_bytes(block[64 + n : 72 + n], "big", signed=True) for n in (0, 8, 16, 24)]
    assert second == [1, 0, 0, 0]  # number, previous, jump, number of the jump
    assert files[HEADS][:4] == b"AHED"
