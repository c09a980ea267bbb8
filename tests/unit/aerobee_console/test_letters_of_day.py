"""The dead letters of the last day: exact where it is known, and otherwise with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from aerobee_client.admin.descriptions import BrokerStatus
from aerobee_client.admin.stats import History, Stats
from aerobee_console.reading.overview import HOUR_MS, MINUTE_MS, letters_of_day

END_MS = 1_800_000_000_000 // HOUR_MS * HOUR_MS
NOW_MS = END_MS + 20 * MINUTE_MS + 5_000
DAYS_AGO_MS = END_MS - 100 * HOUR_MS


class Status:
    def __init__(self, started_ms: int = DAYS_AGO_MS, letters: int = 0) -> None:
        self.start_timestamp_ms, self.dead_letters_total = started_ms, letters


def statuses(**given: Status) -> dict[str, BrokerStatus]:
    return cast(dict[str, BrokerStatus], given)


def stats(end_ms: int | None, period_ms: int, **values: Sequence[float | None]) -> Stats:
    by_broker = {name: {"dead_lettered": tuple(each)} for name, each in values.items()}
    return Stats(
        period_ms=period_ms, end_timestamp_ms=end_ms,
        brokers=History(cluster={}, by_broker=by_broker), topics={}, groups={}, omitted={},
        unanswered={},
    )  # fmt: skip


def hours(**values: Sequence[float | None]) -> Stats:
    return stats(END_MS, HOUR_MS, **values)


def minutes(**values: Sequence[float | None]) -> Stats:
    return stats(END_MS + 20 * MINUTE_MS, MINUTE_MS, **values)


def test_hours_of_a_day_and_the_minutes_since_count() -> None:
    of_hours = hours(a=[9.0] * 24 + [0.0] * 23 + [7 / 3_600])
    of_minutes = minutes(a=[5.0] * 100 + [0.0] * 19 + [3 / 60])
    found = letters_of_day(statuses(a=Status()), of_hours, of_minutes, NOW_MS)
    assert (found.count, found.gaps) == (10, ())
    assert found.since_ms == END_MS - 24 * HOUR_MS


def test_a_broker_that_started_later_counts_since_then() -> None:
    recent = Status(END_MS - HOUR_MS, letters=5)
    of_hours = hours(a=[0.0] * 48, b=[None] * 47 + [2.0])
    of_minutes = minutes(a=[0.0] * 120, b=[2.0] * 120)
    found = letters_of_day(statuses(a=Status(), b=recent), of_hours, of_minutes, NOW_MS)
    assert found.count == 5 and found.gaps == ("only since the start of b",)


def test_an_unknown_hour_is_a_gap_and_no_zero() -> None:
    of_hours = hours(a=[0.0] * 40 + [None] + [1 / 3_600] * 7)
    found = letters_of_day(statuses(a=Status()), of_hours, minutes(a=[0.0] * 120), NOW_MS)
    assert found.count == 7 and found.gaps == ("not all hours of a",)
    of_hours, of_minutes = hours(a=[None] * 48), minutes(a=[None] * 120)
    nothing = letters_of_day(statuses(a=Status()), of_hours, of_minutes, NOW_MS)
    assert nothing.count is None and nothing.gaps


def test_without_an_answer_nothing_is_known() -> None:
    assert letters_of_day({}, None, None, NOW_MS).count is None
    assert letters_of_day(statuses(a=Status()), None, None, NOW_MS).count is None
