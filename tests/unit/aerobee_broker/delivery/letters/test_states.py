"""The states of dead letters: what is put is found, until retention deletes the letter."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.delivery.letters.states import (
    PAGE_LETTERS,
    LetterEntry,
    LetterState,
    LetterStates,
    Mark,
)

GROUP = "billing"
SENT, FAILED = Mark(LetterState.REDRIVEN, "a"), Mark(LetterState.OPEN, "b", "no such topic")
OFFSETS = st.integers(0, 4 * PAGE_LETTERS)
PUTS = st.tuples(OFFSETS, st.integers(1, 2 * PAGE_LETTERS), st.sampled_from([SENT, FAILED]))


def entries(states: LetterStates, begin: int = 0, end: int = 1 << 40) -> list[LetterEntry]:
    return [entry for page in states.pages(GROUP, 0, begin, end) for entry in page]


@given(st.lists(st.tuples(PUTS, OFFSETS), max_size=6), OFFSETS, OFFSETS)
def test_states_are_those_of_a_table(
    changes: list[tuple[tuple[int, int, Mark], int]], begin: int, end: int
) -> None:
    states = LetterStates()
    expected: dict[int, tuple[Mark, int]] = {}
    low = 0
    for at_ms, ((first, count, mark), min_offset) in enumerate(changes, 1):
        low = max(low, min_offset)
        states.put(GROUP, 0, [(first, first + count)], mark, at_ms, low)
        expected |= dict.fromkeys(range(first, first + count), (mark, at_ms))
    found = {each.queue_offset: (each.mark, each.at_ms) for each in entries(states, begin, end)}
    assert found == {
        offset: each
        for offset, each in sorted(expected.items())
        if low <= offset and begin <= offset < end
    }
    is_handled = {
        offset for offset, (mark, _) in expected.items() if mark is SENT and offset >= low
    }
    open_ones = (offset for offset in range(begin, end) if offset not in is_handled)
    assert states.handled_end(GROUP, 0, begin, end) == next(open_ones, max(begin, end))
    for offset in (begin, end):
        found_mark = states.mark(GROUP, 0, offset)
        assert found_mark == (expected[offset][0] if offset in expected and offset >= low else None)


def test_far_letters_take_memory_for_themselves_only() -> None:
    states = LetterStates()
    tracemalloc.start()
    try:
        states.put(GROUP, 0, [(0, 1), (10_000_000, 10_000_001)], SENT, 1, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000
    assert [entry.queue_offset for entry in entries(states)] == [0, 10_000_000]


def test_reader_between_two_pages_sees_the_present_letters() -> None:
    states = LetterStates()
    states.put(GROUP, 0, [(0, 3 * PAGE_LETTERS)], SENT, 1, 0)
    pages = states.pages(GROUP, 0)
    assert len(next(pages)) == PAGE_LETTERS
    states.trim(GROUP, 0, 2 * PAGE_LETTERS + 5)
    assert [entry.queue_offset for entry in next(pages)][:1] == [2 * PAGE_LETTERS + 5]
    states.forget_group(GROUP)
    assert list(pages) == []


def test_outcome_is_kept_for_the_mark_that_it_belongs_to() -> None:
    states = LetterStates()
    states.put(GROUP, 0, [(0, 2)], SENT, 1, 0)
    first, second = entries(states)
    states.put(GROUP, 0, [(1, 2)], FAILED, 2, 0)
    for entry in (first, second):
        states.settle(GROUP, 0, entry, LetterState.DEAD_AGAIN)
    assert [entry.state for entry in entries(states)] == [LetterState.DEAD_AGAIN, LetterState.OPEN]
    states.forget_group(GROUP)
    states.settle(GROUP, 0, first, LetterState.DEAD_AGAIN)
    assert entries(states) == []


def test_numbers_of_a_forgotten_job_are_used_again() -> None:
    states = LetterStates()
    for at_ms, job_id in enumerate("abc"):
        states.put(GROUP, 0, [(at_ms, at_ms + 1)], Mark(LetterState.REDRIVEN, job_id), at_ms, at_ms)
        if at_ms:
            states.forget_job("abc"[at_ms - 1])
    assert [entry.mark.job_id for entry in entries(states)] == ["c"]
    assert len(states._marks) == 3
