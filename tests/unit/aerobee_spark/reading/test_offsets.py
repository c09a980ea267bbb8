"""Test start and end of a read, data loss, and splitting into tasks."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerobee_spark.errors import DataLossError, OptionError
from aerobee_spark.reading.offsets import (
    EARLIEST,
    LATEST,
    Bounds,
    OffsetRange,
    Position,
    Queue,
    check_known,
    range_of,
    shared,
)
from support.codes import raises_about

QUEUE = Queue("flights", "broker-a", 1)
OTHER = Queue("flights", "broker-b", 0)


def bounds_of(start: int, end: int, *, strict: bool = True) -> tuple[int, int]:
    found = range_of(QUEUE, Bounds(10, 20), start, end, fail_on_data_loss=strict)
    return found.start, found.end


def test_earliest_and_latest_are_the_bounds_of_the_queue() -> None:
    assert bounds_of(EARLIEST, LATEST) == (10, 20)
    assert bounds_of(LATEST, LATEST) == (20, 20)
    assert bounds_of(EARLIEST, EARLIEST) == (10, 10)


def test_given_offsets_inside_the_bounds_are_taken_as_they_are() -> None:
    assert bounds_of(12, 17) == (12, 17)
    assert bounds_of(10, 20) == (10, 20)


def test_an_end_before_the_start_reads_nothing() -> None:
    assert bounds_of(17, 12) == (17, 17)


@pytest.mark.parametrize(
    ("start", "end", "lost"),
    [(4, LATEST, range(4, 10)), (21, LATEST, range(20, 21)), (EARLIEST, 22, range(20, 22))],
)
def test_an_offset_out_of_bounds_is_data_loss(start: int, end: int, lost: range) -> None:
    with raises_about(DataLossError, str(QUEUE)) as caught:
        bounds_of(start, end)
    assert caught.value.lost == lost


def test_without_fail_on_data_loss_the_range_is_cut() -> None:
    assert bounds_of(4, 30, strict=False) == (10, 20)
    assert bounds_of(25, 30, strict=False) == (20, 20)
    assert bounds_of(1, 3, strict=False) == (10, 10)


def test_a_position_has_exceptions_for_some_queues() -> None:
    position = Position(EARLIEST, {QUEUE: 5})
    assert (position.of(QUEUE), position.of(OTHER)) == (5, EARLIEST)


def test_offsets_of_a_queue_that_is_not_read_are_refused() -> None:
    check_known(Position(EARLIEST, {QUEUE: 5}), [QUEUE, OTHER], "startingOffsets")
    with raises_about(OptionError, "startingOffsets"):
        check_known(Position(EARLIEST, {QUEUE: 5}), [OTHER], "startingOffsets")


def test_a_long_range_is_cut_into_nearly_equal_parts() -> None:
    tasks = shared([OffsetRange(QUEUE, 0, 250)], max_records=100)
    assert [(part.start, part.end) for (part,) in tasks] == [(0, 83), (83, 166), (166, 250)]


def test_short_ranges_share_a_task_up_to_half_of_a_large_one() -> None:
    ranges = [OffsetRange(Queue("t", "b", n), 0, length) for n, length in enumerate(LENGTHS)]
    tasks = shared(ranges, max_records=100)
    assert [list(map(len, task)) for task in tasks] == [[20, 30], [1], [50], [70], [9, 9, 9]]
    assert [part for task in tasks for part in task] == [each for each in ranges if len(each)]
    assert len(shared(ranges, max_records=100, min_partitions=6)) >= 6


LENGTHS = (20, 30, 1, 50, 70, 9, 0, 9, 9)
RANGES = st.lists(
    st.builds(
        lambda queue, start, length: OffsetRange(queue, start, start + length),
        st.sampled_from([QUEUE, OTHER]),
        st.integers(0, 2**40),
        st.integers(0, 60),
    ),
    max_size=4,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(RANGES, st.integers(1, 40), st.integers(1, 20))
def test_splits_cover_every_offset_once(
    ranges: list[OffsetRange], max_records: int, min_partitions: int
) -> None:
    tasks = shared(ranges, max_records=max_records, min_partitions=min_partitions)
    total, parts = sum(map(len, ranges)), [part for task in tasks for part in task]
    assert all(map(len, parts))
    assert all(0 < sum(map(len, task)) <= max_records for task in tasks)
    assert len(tasks) >= min(min_partitions, total)
    wanted = [(whole.queue, offset) for whole in ranges for offset in range(whole.start, whole.end)]
    assert wanted == [
        (part.queue, offset) for part in parts for offset in range(part.start, part.end)
    ]
