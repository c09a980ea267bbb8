"""Parsing and formatting durations."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_cli.durations import format_ms, parse_duration
from aerobee_cli.settings import retry_delays


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
