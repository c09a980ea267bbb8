"""The timer table: which messages wait, in which order, and what a start restores."""

from __future__ import annotations

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aerobee_broker.delivery.delay import timer_table
from aerobee_broker.delivery.delay.timer_table import (
    BLOCK_OFFSETS,
    TimerTable,
    due_of,
    key_of,
    offset_of,
)
from aerobee_broker.store.messages import Unit


def units(*codes: int) -> list[Unit]:
    return [(0, 100, code) for code in codes]


def table_of(*codes: int) -> TimerTable:
    table = TimerTable()
    table.take(units(*codes))
    return table


def take_stored(table: TimerTable, chunks: list[list[Unit]]) -> None:
    for _ in table.take_stored(chunks):
        pass


def drained(table: TimerTable) -> list[tuple[int, int]]:
    """(due time, queue offset) of what is delivered."""
    keys = []
    while table.head() is not None:
        keys.append(table.pop())
    delivered = [(due_of(key), offset_of(key)) for key in keys if not table.is_recalled(key)]
    table.forget(keys)
    return delivered


def test_units_of_recalls_and_blanks_are_skipped() -> None:
    table = table_of(0, 10, -2)
    assert (len(table), table.end) == (1, 3)


def test_the_next_messages_are_listed_without_taking_them() -> None:
    dues = [50, 20, 90, 20, 70, 10, 30, 60, 40, 80]
    table = table_of(*dues)
    assert table.recall(key_of(30, 6))
    assert [due_of(key) for key in table.first(4)] == [10, 20, 20, 40]
    assert [due_of(key) for key in table.first(99)] == [*(10, 20, 20, 40, 50), *(60, 70, 80, 90)]
    assert len(table) == 9 and TimerTable().first(5) == []


def test_a_start_takes_what_is_stored_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    table = TimerTable()
    assert len(list(table.take_stored([units(10, 20), units(30, 40)]))) == 2
    monkeypatch.setattr(timer_table, "SLICE", 3)
    table = TimerTable()
    assert len(list(table.take_stored([units(10, 20), units(30, 40, -2)]))) == 4
    assert len(table) == 3


def test_marks_merge_when_late_messages_have_caught_up() -> None:
    table = table_of(10, 50, 90)
    table.forget([table.pop(), table.pop()])
    table.take(units(20, 5))
    assert len(table.marks) == 2
    drained(table)
    assert len(table.marks) == 1


def test_a_start_reads_from_the_block_of_the_first_waiting() -> None:
    table = table_of(*range(1, BLOCK_OFFSETS + 101))
    for _ in range(BLOCK_OFFSETS + 50):
        table.forget([table.pop()])
    assert table.floor() == BLOCK_OFFSETS
    restored = TimerTable()
    restored.restore(table.progress(), 0)
    assert restored.end == BLOCK_OFFSETS
    take_stored(restored, [units(*range(BLOCK_OFFSETS + 1, BLOCK_OFFSETS + 101))])
    assert len(restored) == 50


def test_a_popped_message_keeps_its_block_until_forgotten() -> None:
    table = table_of(1, *[9] * BLOCK_OFFSETS)
    marks = list(table.marks)
    key = table.pop()
    assert table.floor() == 0
    table.put_back([key], marks)
    assert table.head() == key
    table.forget([table.pop()])
    assert table.floor() == 0, "others of the block wait"


def test_a_recall_holds_once() -> None:
    table = table_of(10, 20)
    assert table.recall(key_of(10, 0))
    assert not table.recall(key_of(10, 0)), "its recall is under way"
    assert len(table) == 1
    assert table.is_being_recalled(key_of(10, 0))
    table.end_recall(key_of(10, 0), recalled=True)
    assert drained(table) == [(20, 1)]
    assert not table.recall(key_of(10, 0))
    assert not table.recall(key_of(20, 1)), "it was delivered"


def test_beyond_max_marks_messages_are_repeated_not_lost() -> None:
    """Above MAX_MARKS marks are merged, and the lower key holds."""
    table = table_of(1_000)
    table.forget([table.pop()])
    for due in range(900, 700, -1):
        table.take(units(due))
    assert len(table.marks) <= 64
    assert not table.recall(key_of(1_000, 0)), "it was delivered, though no mark says so"
    restored = TimerTable()
    restored.restore(table.progress() | {"floor": 0}, 0)
    take_stored(restored, [units(1_000, *range(900, 700, -1))])
    assert set(drained(table)) <= set(drained(restored))


@pytest.mark.parametrize("broken", [{}, {"floor": 0}, {"floor": "x", "marks": []}])
def test_malformed_progress_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        TimerTable().restore(broken, 0)


class Model(RuleBasedStateMachine):
    """The tags codes of the queue in order, and which messages were delivered or recalled."""

    def __init__(self) -> None:
        super().__init__()
        self.table = TimerTable()
        self.codes: list[int] = []
        self.gone: set[int] = set()
        self.recalled: set[int] = set()
        # The newest progress record, and the offsets that were delivered by then.
        self.saved = ({"floor": 0, "marks": []}, frozenset[int]())

    def waiting(self, gone: set[int] | frozenset[int]) -> list[int]:
        return sorted(
            key_of(code, offset)
            for offset, code in enumerate(self.codes)
            if code > 0 and offset not in gone and offset not in self.recalled
        )

    @rule(dues=st.lists(st.integers(1, 60), max_size=6))
    def arrive(self, dues: list[int]) -> None:
        self.codes += dues
        self.table.take(units(*dues))

    @rule(count=st.integers(1, 5), fails=st.booleans())
    def deliver(self, count: int, fails: bool) -> None:
        marks = list(self.table.marks)
        keys = []
        delivered: list[int] = []
        while len(delivered) < count and self.table.head() is not None:
            keys.append(self.table.pop())
            if not self.table.is_recalled(keys[-1]):
                delivered.append(keys[-1])
        assert delivered == self.waiting(self.gone)[:count]
        if fails:
            self.table.put_back(keys, marks)
            return
        self.saved = (self.table.progress(), frozenset(self.gone | set(map(offset_of, keys))))
        self.table.forget(keys)
        self.gone.update(map(offset_of, keys))

    @precondition(lambda self: self.codes)
    @rule(data=st.data(), recalled=st.booleans())
    def recall(self, data: st.DataObject, recalled: bool) -> None:
        offset = data.draw(st.integers(0, len(self.codes) - 1))
        key = key_of(max(self.codes[offset], 1), offset)
        waits = key in self.waiting(self.gone)
        if self.codes[offset] > 0:
            assert self.table.recall(key) == waits
        if waits:
            self.table.end_recall(key, recalled=recalled)
        if waits and recalled:
            self.recalled.add(offset)
            self.codes.append(-1 - offset)
            self.table.take(units(-1 - offset))

    @rule()
    def crash(self) -> None:
        progress, gone = self.saved
        self.gone = set(gone)
        self.table = TimerTable()
        self.table.restore(json.loads(json.dumps(progress)), 0)
        rest = self.codes[self.table.end :]
        take_stored(self.table, [units(*rest[at : at + 4]) for at in range(0, len(rest), 4)])

    @invariant()
    def as_many_wait(self) -> None:
        waiting = [offset_of(key) for key in self.waiting(self.gone)]
        assert len(self.table) == len(waiting)
        assert self.table.floor() <= min(waiting, default=self.table.end)
        assert waiting or self.table.floor() == self.table.end


Model.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestModel = Model.TestCase


def test_messages_are_recalled_while_what_is_stored_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is taken, one that is not yet, and one whose recall is stored as well."""
    monkeypatch.setattr(timer_table, "SLICE", 2)
    table = TimerTable()
    filling = table.take_stored([units(10, 20), units(30, 40, -1, -3)])
    next(filling)
    for key in (key_of(20, 1), key_of(30, 2)):
        assert table.recall(key)
        table.end_recall(key, recalled=True)
    for _ in filling:
        pass
    assert len(table) == 1
    assert drained(table) == [(40, 3)]
    assert table.floor() == table.end
