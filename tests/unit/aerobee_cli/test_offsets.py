"""`aerobee group reset-offset --to`: the place that it names, and what the move costs."""

from __future__ import annotations

import pytest

from aerobee_cli.offsets import effects, reset_target
from aerobee_cli.options import BadOption
from aerobee_client.admin.descriptions import QueueOffset, QueueProgress


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("earliest", {"timestamp_ms": 0}),
        ("latest", {"timestamp_ms": -1}),
        ("now", {"timestamp_ms": -1}),
        ("42", {"queue_offset": 42}),
        ("174873600000", {"queue_offset": 174_873_600_000}),
        ("1748736000000", {"timestamp_ms": 1_748_736_000_000}),  # as users of mqadmin write it
        ("2025-06-01T00:00:00Z", {"timestamp_ms": 1_748_736_000_000}),
        ("2025-06-01", {"timestamp_ms": 1_748_736_000_000}),
        ("2025-06-01T02:00:00+02:00", {"timestamp_ms": 1_748_736_000_000}),
        ("1969-12-31", {"timestamp_ms": 0}),  # below 0 would be the end
    ],
)
def test_offsets_are_reset_to_an_end_a_time_or_an_offset(text: str, target: dict[str, int]) -> None:
    assert reset_target(text) == target


@pytest.mark.parametrize("text", ["yesterday", "17487360000000", "1748736000000000", "-1", ""])
def test_what_is_neither_a_time_nor_an_offset_is_refused(text: str) -> None:
    with pytest.raises(BadOption):
        reset_target(text)


def progress(queue_id: int, consumer_offset: int | None, max_offset: int = 10) -> QueueProgress:
    return QueueProgress("t", "b", queue_id, 2, max_offset, consumer_offset, 0, 0, "")


def moved(*offsets: int) -> list[QueueOffset]:
    return [QueueOffset("t", "b", queue_id, offset) for queue_id, offset in enumerate(offsets)]


def test_messages_that_are_skipped_and_repeated_are_counted() -> None:
    before = [progress(0, 4), progress(1, 9), progress(2, None)]
    said = list(effects(before, moved(7, 5, 5), {"timestamp_ms": 1}))
    assert said == [
        "skipped 6 messages that the group has not consumed",
        "4 messages will be consumed again",
    ]


def test_queues_that_end_before_the_offset_are_counted() -> None:
    said = list(effects([progress(0, 7), progress(1, 3, 3)], moved(7, 3), {"queue_offset": 7}))
    assert said == ["the group is at the end of 1 queue shorter than 7"]


def test_a_move_to_where_the_group_is_says_nothing() -> None:
    assert list(effects([progress(0, 4)], moved(4), {"queue_offset": 4})) == []
