"""The records of pop: what stands in runs of messages is read as it was meant, old forms too."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.delivery.pop import journal_format
from aerobee_broker.delivery.pop.lease_table import LeaseTable
from support.clock.manual_clock import ManualClock

OFFSETS = st.lists(st.integers(0, 30), unique=True)
KEY = ("g", "t", 0)


def written(kind: str, content: dict[str, Any]) -> dict[str, Any]:
    """As it comes back from the log."""
    return journal_format.parse(journal_format.record("log", kind, content, 7).body)


@given(offsets=OFFSETS, behind=OFFSETS)
def test_settled_messages_come_back_in_their_order(offsets: list[int], behind: list[int]) -> None:
    entry = written("settle", journal_format.settled([(KEY, offsets, behind)]))
    [[group, topic, queue_id, done, acknowledged]] = entry["queues"]
    assert (group, topic, queue_id, acknowledged) == (*KEY, behind)
    assert list(journal_format.settled_offsets(done)) == offsets


@given(messages=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3)), unique=True))
def test_messages_on_lease_come_back_in_their_order(messages: list[tuple[int, int]]) -> None:
    runs = written("lease", {"runs": journal_format.leased_runs(messages)})["runs"]
    assert list(journal_format.leased_messages(runs)) == messages


def test_a_run_is_one_entry() -> None:
    assert journal_format.leased_runs((offset, 1) for offset in range(5, 37)) == [[5, 1, 32]]
    assert journal_format.leased_runs([(5, 1), (6, 2), (7, 2), (9, 2)]) == [
        [5, 1, 1],
        [6, 2, 2],
        [9, 2, 1],
    ]
    settled = journal_format.settled([(KEY, [5, 6, 7, 9, 8], [])])
    assert settled == {"queues": [[*KEY, [[5, 3], [9, 1], [8, 1]], []]]}


LEASE = {"group": "g", "topic": "t", "id": 9, "at": 100, "for": 50, "fifo": False, "attempt": "a"}
OLD_LEASE = [[0, 4, 10, [[4, 1], [5, 1], [6, 2], [8, 1]], [9]]]
NEW_LEASE = [[0, 4, 10, [[4, 1, 2], [6, 2, 1], [8, 1, 1]], [9]]]
OLD_SETTLE = [[*KEY, [4, 5, 8], [6]]]
NEW_SETTLE = [[*KEY, [[4, 2], [8, 1]], [6]]]
MIXED_SETTLE = [[*KEY, [[4, 2], 8], [6]]]


@pytest.mark.parametrize("lease", [OLD_LEASE, NEW_LEASE])
@pytest.mark.parametrize("settle", [OLD_SETTLE, NEW_SETTLE, MIXED_SETTLE])
def test_both_forms_of_a_record_say_the_same(lease: list[Any], settle: list[Any]) -> None:
    table = LeaseTable(ManualClock())
    table.apply(written("lease", {**LEASE, "queues": lease}))
    found = table.find(*KEY)
    assert found is not None
    place, queue = found
    leased = {held.offset: held.attempt for held in queue if held.leased}
    assert leased == {4: 1, 5: 1, 6: 2, 8: 1}
    assert place.attempts["a"].messages == ((0, 4), (0, 5), (0, 6), (0, 8))
    assert (queue.cursor, sorted(queue.open)) == (10, [4, 5, 6, 8, 9])
    table.apply(written("settle", {"queues": settle}))
    assert sorted(queue.open) == [6, 9]
    assert queue.open[6].acked and not queue.open[6].leased


@pytest.mark.parametrize("entry", [[1, 2, 3], ["5"], None, "x", [1]])
def test_an_entry_of_no_known_form_is_refused(entry: object) -> None:
    table = LeaseTable(ManualClock())
    table.apply(written("lease", {**LEASE, "queues": NEW_LEASE}))
    body = json.dumps({"kind": "settle", "queues": [[*KEY, [entry], []]]}).encode()
    with pytest.raises((TypeError, ValueError)):
        table.apply(journal_format.parse(body))
