"""Times and durations on the command line."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_cli.settings import retry_delays
from aerobee_cli.times import Moment, format_ms, parse_duration, parse_moment, parse_time_ms

NOON_MS = 1_748_779_200_000


@pytest.mark.parametrize(
    "text",
    [
        "2025-06-01T12:00:00Z",
        "20250601T1200",
        "2025-06-01T12:00",
        "2025-06-01T14:00+02:00",
        "1748779200000",
    ],
)
def test_a_time_is_iso_8601_or_13_digits(text: str) -> None:
    assert parse_time_ms(text) == NOON_MS
    assert parse_moment(text) == Moment(NOON_MS)


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("1970-01-01T00:00:01Z", 1_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-02", 86_400_000),
        ("1960-01-01", 0),
        ("1.5s", 98_500),
        ("24h", 0),
    ],
)
def test_a_moment_is_not_before_1970(text: str, at_ms: int) -> None:
    assert parse_moment(text).at(100_000) == at_ms


@pytest.mark.parametrize(
    "text",
    [
        *("", "yesterday", "24", "24 h", "1.2.3s", "-1h", "1h30", "-1"),
        *("174877920", "17487792000", "1748779200000000"),
        *("17121101112", "171211011121559"),  # Python reads both as hours of the year 1712
    ],
)
def test_other_digits_and_words_are_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="invalid time"):
        parse_moment(text)


def test_an_age_counts_from_the_clock_that_is_given() -> None:
    moment = parse_moment("90s")
    assert moment == Moment(90_000, is_age=True)
    assert moment.at(NOON_MS) == NOON_MS - 90_000
    assert moment.at(1_000) == 0
    assert Moment(NOON_MS).at(5) == NOON_MS


# ---- durations ----


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("200ms", 200),
        ("5s", 5_000),
        ("1.5s", 1_500),
        ("1.001s", 1_001),
        ("2m", 120_000),
        ("1h", 3_600_000),
    ],
)
def test_a_duration_has_a_unit(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == timedelta(milliseconds=milliseconds)


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "5 s", "1w", "0.1ms", "1.0001s", "١s5"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


def test_every_millisecond_can_be_written_in_seconds() -> None:
    for milliseconds in range(1, 20_000):
        text = f"{milliseconds // 1000}.{milliseconds % 1000:03d}s"
        assert parse_duration(text) == timedelta(milliseconds=milliseconds)


def test_a_duration_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError):
        parse_duration("9999999999999d")


def test_a_list_is_separated_by_commas() -> None:
    delays = (timedelta(seconds=1), timedelta(seconds=5), timedelta(milliseconds=200))
    assert retry_delays("1s, 5s,200ms") == [*delays]


@given(st.integers(0, 10**11))
def test_what_is_written_reads_back(duration_ms: int) -> None:
    assert parse_duration(format_ms(duration_ms)) == timedelta(milliseconds=duration_ms)


def test_the_largest_whole_unit_is_written() -> None:
    shown = [format_ms(ms) for ms in (0, 1_500, 90_000, 7_200_000, 172_800_000)]
    assert shown == ["0ms", "1500ms", "90s", "2h", "2d"]
