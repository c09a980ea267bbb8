"""Times on the command line."""

from __future__ import annotations

import pytest

from aerobee_cli.times import Moment, parse_moment, parse_time_ms

NOON_MS = 1_748_779_200_000


@pytest.mark.parametrize(
    "text", ["2025-06-01T12:00:00Z", "2025-06-01T12:00", "2025-06-01T14:00+02:00", "1748779200000"]
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
