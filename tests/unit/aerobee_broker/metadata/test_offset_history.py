"""The history of committed offsets: what it answers, its bound, and its file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.disk import RealDisk
from aerobee_broker.metadata.offset_history import (
    COMMIT,
    INTERVAL_MS,
    KEPT_MS,
    RESET,
    SLICE,
    Mover,
    OffsetHistory,
    Passage,
)
from aerobee_broker.metadata.offset_history_file import FILE, OLD_FILE, OffsetHistoryFile
from support.broker.harness import InlineWorker
from support.clock.manual_clock import ManualClock

KEY = ("g", "t", 0)
CLIENT = Mover("client-1", COMMIT, "TAG *")


def content(history: OffsetHistory) -> bytes:
    return b"".join(history.contents())


def history(**given: int) -> OffsetHistory:
    return OffsetHistory(0, **given)


def test_a_passage_names_time_and_client() -> None:
    past = history()
    past.note(KEY, None, 10, CLIENT, 1_000)
    past.note(KEY, 10, 20, Mover("client-2", COMMIT, "TAG a"), 50_000)
    assert past.passage(KEY, 9) == Passage(1_000, 1_000, -1, CLIENT)
    assert past.passage(KEY, 10) == Passage(50_000, 50_000, 10, Mover("client-2", 0, "TAG a"))
    assert past.passage(KEY, 20) is None
    assert past.passage(("other", "t", 0), 9) is None


def test_moves_of_one_client_within_5_s_are_one_sample() -> None:
    past = history()
    for number in range(10):
        past.note(KEY, number, number + 1, CLIENT, number * 1_000)
    assert past.passage(KEY, 3) == Passage(0, INTERVAL_MS - 1_000, 0, CLIENT)
    assert past.passage(KEY, 7) == Passage(INTERVAL_MS, 9_000, 5, CLIENT)


def test_a_reset_is_told_from_a_commit() -> None:
    past = history()
    past.note(KEY, 5, 100, Mover("operator@host", RESET), 1_000)
    found = past.passage(KEY, 50)
    assert found is not None and found.mover == Mover("operator@host", RESET)


def test_the_latest_passage_counts() -> None:
    past = history()
    past.note(KEY, 0, 10, CLIENT, 1_000)
    past.note(KEY, 10, 0, Mover("operator", RESET), 2_000)
    assert past.passage(KEY, 5) == Passage(1_000, 1_000, 0, CLIENT)
    past.note(KEY, 0, 10, CLIENT, 30_000)
    assert past.passage(KEY, 5) == Passage(30_000, 30_000, 0, CLIENT)


def test_samples_older_than_a_day_are_dropped_and_the_history_says_so() -> None:
    day_ms = 24 * 3_600_000
    past = history()
    past.note(KEY, 0, 10, CLIENT, 1_000)
    past.note(KEY, 10, 20, CLIENT, day_ms)
    past.prune(day_ms + 5_000)
    assert past.passage(KEY, 5) is None and past.since_ms == 5_000
    assert past.passage(KEY, 15) == Passage(day_ms, day_ms, 10, CLIENT)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 50)), max_size=400))
def test_the_size_stays_below_its_limit(moves: list[tuple[int, int]]) -> None:
    past = history(max_bytes=4_000)
    for number, (queue_id, client) in enumerate(moves):
        mover = Mover(f"client-{client}", COMMIT, "TAG *")
        past.note(("g", "t", queue_id), number, number + 1, mover, number * 10_000)
        assert past.size <= 4_000
    if moves:  # the newest one is kept
        assert past.passage(("g", "t", moves[-1][0]), len(moves) - 1) is not None


def test_a_clock_that_steps_back_does_not_stop_the_history() -> None:
    past = history(max_bytes=20_000)
    for number in range(1_000):
        now_ms = 1_000_000 + number if number < 100 else number
        past.note(("g", "t", number), 0, 10, CLIENT, now_ms)
        assert past.size <= 20_000
    past.prune(1_000)
    assert past.size <= 15_000


def test_many_queues_that_are_active_at_once_do_not_stop_the_history() -> None:
    past = history(max_bytes=20_000)
    for offset in range(3):  # the samples of all queues end in the same millisecond
        for queue_id in range(60):
            past.note(("g", "t", queue_id), offset, offset + 1, CLIENT, 2_000 * offset)
    past.prune(4_000)
    assert past.size <= 15_000


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.booleans()), max_size=200))
def test_a_name_takes_memory_while_a_sample_uses_it(
    moves: list[tuple[int, int, bool]],
) -> None:
    past = history(max_bytes=4_000, kept_ms=60_000)
    for number, (queue_id, client, pruned) in enumerate(moves):
        now_ms = number * 2_000
        mover = Mover(f"client-{client}", COMMIT, f"TAG {client}")
        past.note(("g", "t", queue_id), number, number + 1, mover, now_ms)
        if pruned:
            past.prune(now_ms)
    restored = history()
    assert restored.load(content(past))
    assert restored.size == past.size and content(restored) == content(past)


def test_a_history_is_pruned_in_slices() -> None:
    past = history(max_bytes=8 << 20)
    for queue_id in range(10 * SLICE):
        past.note(("g", "t", queue_id), 0, 10, CLIENT, 1_000)
    slices = 0
    for _ in past.pruning(1_001 + KEPT_MS):
        past.note(("h", "t", slices), 0, 10, Mover(f"client-{slices}"), 1_001 + KEPT_MS)
        slices += 1
    assert slices == 10
    found = past.passage(("h", "t", 9), 5)
    assert found is not None and found.mover == Mover("client-9")
    assert past.passage(("g", "t", 10 * SLICE - 1), 5) is None


def test_many_samples_fit_into_32_mib() -> None:
    past = history()
    for number in range(300_000):
        past.note(("g", "t", number % 1_000), number, number + 1, CLIENT, number * 300)
    assert past.size < 32 * 1024 * 1024
    assert past.passage(("g", "t", 999), 299_999) is not None
    assert past.since_ms <= 300_000 * 300 - 24 * 3_600_000 + 60_000


def test_a_deleted_group_or_topic_is_forgotten() -> None:
    past = history()
    past.note(KEY, 0, 10, CLIENT, 1_000)
    past.note(("h", "t", 0), 0, 10, CLIENT, 1_000)
    past.note(("g", "other", 0), 0, 10, CLIENT, 1_000)
    size = past.size
    past.forget({("g", "t"), ("h", "t")})
    assert past.passage(KEY, 5) is past.passage(("h", "t", 0), 5) is None and past.size < size
    assert past.passage(("g", "other", 0), 5) is not None


# ---- the file ----


def test_blocks_restore_the_samples() -> None:
    past, restored = history(), history()
    past.note(KEY, 0, 10, CLIENT, 1_000)
    data = past.changes()
    past.note(KEY, 10, 15, CLIENT, 2_000)  # extends the sample of the first block
    past.note(("h", "ü", 3), None, 1, Mover("x", RESET), 3_000)
    data += past.changes()
    assert past.changes() == b""
    assert restored.load(data)
    assert content(restored) == content(past)
    assert restored.passage(KEY, 12) == Passage(1_000, 2_000, 0, CLIENT)
    assert restored.size == past.size


def test_moves_between_the_blocks_of_all_samples_are_changes() -> None:
    past, restored = history(), history()
    for queue_id in range(1_000):
        past.note(("g", "t", queue_id), 0, 10, CLIENT, 1_000)
    data, slices = b"", 0
    for block in past.contents():
        data += block
        for queue_id in (0, 500, 999, 1_000):
            past.note(("g", "t", queue_id), 10 + slices, 11 + slices, CLIENT, 9_000 * (slices + 1))
        slices += 1
    assert slices > 2
    assert restored.load(data + past.changes())
    assert content(restored) == content(past) and restored.size == past.size


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_block_is_ignored(cut: int) -> None:
    past, restored = history(), history()
    past.note(KEY, 0, 10, CLIENT, 1_000)
    first = past.changes()
    past.note(KEY, 10, 20, Mover("other"), 90_000)
    torn = past.changes()[:-cut]
    assert not restored.load(first + torn)
    assert restored.passage(KEY, 5) is not None and restored.passage(KEY, 15) is None


class Restarts:
    """A history with its files, through restarts of the process."""

    def __init__(self, folder: Path, max_file_bytes: int) -> None:
        self.folder, self.max_file_bytes = folder, max_file_bytes
        self.clock = ManualClock()

    def begin(self) -> OffsetHistoryFile:
        saved = OffsetHistoryFile(
            history=OffsetHistory(self.clock.now_ms()),
            disk=RealDisk(),
            folder=self.folder,
            worker=InlineWorker(),
            now_ms=self.clock.now_ms,
            max_file_bytes=self.max_file_bytes,
        )
        saved.restore()
        return saved

    def note(self, saved: OffsetHistoryFile, queue_offset: int) -> None:
        self.clock.advance(60_000)
        moved = queue_offset, queue_offset + 1
        saved.history.note(KEY, *moved, CLIENT, self.clock.now_ms())


@pytest.fixture
def restarts(tmp_path: Path) -> Restarts:
    return Restarts(tmp_path, 1_000)


async def test_the_history_survives_restarts(restarts: Restarts) -> None:
    since_ms = restarts.clock.now_ms()
    for number in range(3):
        saved = restarts.begin()
        restarts.note(saved, number)
        await saved.save()
    restored = restarts.begin().history
    assert [restored.passage(KEY, number) is None for number in range(4)] == [False] * 3 + [True]
    assert restored.since_ms == since_ms


async def test_two_files_bound_the_disk(restarts: Restarts) -> None:
    saved = restarts.begin()
    for number in range(100):
        restarts.note(saved, number)
        await saved.save()
        sizes = [path.stat().st_size for path in restarts.folder.iterdir()]
        assert sum(sizes) <= 2 * restarts.max_file_bytes
    assert sorted(path.name for path in restarts.folder.iterdir()) == [FILE, OLD_FILE]
    assert restarts.begin().history.passage(KEY, 99) is not None


async def test_a_torn_file_is_not_continued(restarts: Restarts) -> None:
    saved = restarts.begin()
    restarts.note(saved, 0)
    await saved.save()
    file = restarts.folder / FILE
    file.write_bytes(file.read_bytes() + b"torn")
    saved = restarts.begin()
    restarts.note(saved, 1)
    await saved.save()
    restored = restarts.begin().history
    assert restored.passage(KEY, 0) is not None and restored.passage(KEY, 1) is not None


async def test_a_forgotten_group_does_not_return_after_a_restart(restarts: Restarts) -> None:
    saved = restarts.begin()
    restarts.note(saved, 0)
    await saved.save()
    saved.history.forget({("g", "t")})
    await saved.save()
    assert restarts.begin().history.passage(KEY, 0) is None


async def test_a_cancelled_save_loses_nothing(restarts: Restarts) -> None:
    saved = restarts.begin()
    saved.history.note(("forgotten", "t", 0), 0, 10, CLIENT, restarts.clock.now_ms())
    await saved.save()
    restarts.note(saved, 0)
    saved.history.forget({("forgotten", "t")})
    cancelled = asyncio.create_task(saved.save())
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await saved.save()
    restored = restarts.begin().history
    assert restored.passage(("forgotten", "t", 0), 5) is None
    assert restored.passage(KEY, 0) is not None
