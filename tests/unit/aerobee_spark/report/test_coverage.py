"""Test whether a report is complete, and its problems if it is not."""

from __future__ import annotations

from aerobee_spark.reading.offsets import Bounds, OffsetRange, Queue
from aerobee_spark.report.data.coverage import Coverage, QueueCoverage, with_rows
from aerobee_wire import topics

DEAD = topics.dead_letter_topic("g")
Q0, Q1 = Queue(DEAD, "broker-a", 0), Queue(DEAD, "broker-b", 0)


def planned(queue: Queue, start: int, end: int) -> QueueCoverage:
    return QueueCoverage(queue, Bounds(0, 100), OffsetRange(queue, start, end))


def test_complete_is_one_row_for_each_offset_of_every_range() -> None:
    coverage = with_rows([planned(Q0, 0, 10), planned(Q1, 5, 5)], {Q0: 10}, {})
    assert coverage.complete
    assert (coverage.rows, coverage.expected, coverage.problems) == (10, 10, [])


def test_nothing_to_read_is_complete() -> None:
    assert Coverage(()).complete
    assert Coverage(()).expected == 0


def test_too_few_rows_are_a_problem_with_its_reason() -> None:
    coverage = with_rows([planned(Q0, 0, 10), planned(Q1, 0, 5)], {Q0: 7, Q1: 5}, {Q0: "gone"})
    assert not coverage.complete
    assert coverage.problems == [f"{Q0}: 7 of 10 messages were read: gone"]
    assert [each.complete for each in coverage.queues] == [False, True]


def test_too_many_rows_are_a_problem_too() -> None:
    assert with_rows([planned(Q0, 0, 10)], {Q0: 11}, {}).problems


def test_a_silent_broker_makes_completeness_unknown() -> None:
    down = QueueCoverage(Q1, None, None, problem="broker-b is down")
    coverage = with_rows([planned(Q0, 0, 10), down], {Q0: 10}, {})
    assert not coverage.complete
    assert (coverage.rows, coverage.expected) == (10, None)
    assert coverage.problems == [f"{Q1}: broker-b is down"]
    assert coverage.to_read == [OffsetRange(Q0, 0, 10)]
    assert coverage.queues[1].as_json() == {
        "kind": "dlq",
        "topic": DEAD,
        "broker_name": "broker-b",
        "queue_id": 0,
        "min_offset": None,
        "max_offset": None,
        "start_offset": None,
        "end_offset": None,
        "expected": None,
        "rows": 0,
        "complete": False,
        "problem": "broker-b is down",
        "upto_ms": None,
    }


def test_an_empty_range_is_item_by_its_offsets() -> None:
    item = planned(Q0, 5, 5).as_json()
    assert (item["start_offset"], item["end_offset"], item["expected"]) == (5, 5, 0)
    assert (item["min_offset"], item["max_offset"]) == (0, 100)
