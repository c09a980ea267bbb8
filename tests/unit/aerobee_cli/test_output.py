"""Lines for people, and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_cli import output
from aerobee_cli.options import BadOption, TableOptions
from aerobee_cli.output import unanswered_of
from aerobee_cli.settings import retry_delays
from aerobee_cli.table import TEXT_LINES, Column, Table, number, width_of
from aerobee_cli.times import Moment, format_ms, parse_duration, parse_moment, parse_time_ms


class Place(NamedTuple):
    topic: str
    queue_id: int


def test_items_are_plain_values() -> None:
    @dataclass(frozen=True)
    class Part:
        name: str
        attributes: Mapping[str, str]

    @dataclass(frozen=True)
    class Whole:
        parts: tuple[Part, ...]
        place: Place | None = None

    whole = Whole((Part("a", {"x": "y"}),), Place("t", 3))
    assert output.items_of([whole]) == [asdict(whole)]
    assert isinstance(output.items_of([whole])[0]["place"], Place)


def test_one_thing_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_one({"a": 1, "b": {"c": "d"}}, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"a": 1, "b": {"c": "d"}}


def test_one_thing_is_a_line_for_each_value(capsys: pytest.CaptureFixture[str]) -> None:
    item = {"store_timestamp_ms": 1_700_000_000_001, "empty": "", "up": True, "n": 12_345}
    item |= {"kept_ms": 259_200_000}
    output.show_one(item, as_json=False)
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["store", "timestamp", "2023-11-14T22:13:20.001Z"],
        ["up", "yes"],
        ["n", "12,345"],
        ["kept", "3d"],
    ]


def test_time_zero_is_unknown() -> None:
    assert output.iso_time(0) == ""


def test_a_time_that_no_calendar_has_does_not_spoil_the_table() -> None:
    assert output.iso_time(1_735_689_600_001) == "2025-01-01T00:00:00.001Z"
    assert output.iso_time(1_735_689_600_001, milliseconds=False) == "2025-01-01T00:00:00Z"
    for timestamp_ms in ((1 << 63) - 1, -(1 << 63)):
        assert output.iso_time(timestamp_ms) == f"{timestamp_ms} ms"


def test_a_body_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    body = "a\x1b[2Jb\x9bc\nd\te"
    output.show_one({"body": body}, as_json=False)
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\x9b" not in out
    assert out.startswith("body  a\\x1b[2Jb\\x9bc\nd\te\n")


@pytest.mark.parametrize(
    "reason", ["broker b: it is busy", "b is busy", "broker b: b is busy", "it is busy"]
)
def test_a_broker_without_an_answer_is_named_once(reason: str) -> None:
    assert list(unanswered_of({"b": reason})) == ["the result lacks broker b: it is busy"]


# ---- test table ----
#
# Tables: which columns are shown, what is wrapped, and what programs read.


COLUMNS = (
    Column("id", "id"),
    number("lag", "lag"),
    Column("reason", "reason", text=True),
    Column("stored at", "store_timestamp_ms", extra=True),
)
ID = "C0000202667E26BE0FE98E729CAA0001"


def item(**fields: Any) -> dict[str, Any]:
    return {"id": ID, "lag": 1_234_567, "reason": "", "store_timestamp_ms": 1} | fields


def lines(width: int | None, *items: dict[str, Any]) -> list[str]:
    return Table(COLUMNS).lines(items, width)


def test_a_list_is_one_json_array(capsys: pytest.CaptureFixture[str]) -> None:
    items = [{"topic": "orders", "keys": ("a", "b")}, {"topic": "grüße", "keys": ()}]
    Table(()).show(items, as_json=True)
    assert json.loads(capsys.readouterr().out) == [
        {"topic": "orders", "keys": ["a", "b"]},
        {"topic": "grüße", "keys": []},
    ]


def test_an_empty_list_is_an_empty_array_or_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Table(COLUMNS).show([], as_json=True, empty="no items")
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == ([], "")
    Table(COLUMNS).show([], empty="no items")
    assert capsys.readouterr() == ("", "no items\n")


def test_a_line_for_programs_has_all_columns_and_no_empty_field() -> None:
    reason = "two\nlines, " + "and more " * 100 + "end"
    titles, first, second = lines(None, item(reason=reason), item(lag=None))
    assert titles.split() == ["id", "lag", "reason", "stored-at"]
    fields = re.split("  +", first)
    assert fields[:2] == [ID, "1234567"], "a program can add numbers without separators"
    assert fields[2] == reason.replace("\n", "\\n"), "nothing is cut"
    assert fields[3] == "1970-01-01T00:00:00.001Z"
    assert re.split("  +", lines(None, item(reason="a   b"))[1])[2] == "a b"
    assert re.split("  +", second) == [ID, "-", "-", "1970-01-01T00:00:00.001Z"]


@pytest.mark.parametrize("width", [48, 60, 80, 100, 120, 200])
@pytest.mark.parametrize("reason", ["", "short", "ValueError: " + "no such address " * 20])
def test_no_line_is_wider_than_the_terminal_and_no_id_is_wrapped(width: int, reason: str) -> None:
    shown = lines(width, item(reason=reason), item(reason="other"))
    assert all(width_of(line) <= width for line in shown)
    assert sum(ID in line for line in shown) == 2


def test_text_without_room_is_below_its_row() -> None:
    reason = "ValueError: no such address for order 7"
    assert lines(60, item(reason=reason))[2:] == [f"{ID}  1,234,567", f"    {reason}"]
    assert lines(120, item(reason=reason))[2].split("  ")[2] == reason


def test_extra_columns_are_shown_if_there_is_room() -> None:
    assert "stored at" not in lines(60, item(reason="x"))[0]
    assert "stored at" in lines(100, item(reason="x"))[0]


def test_columns_without_values_are_left_out_for_people() -> None:
    shown = lines(200, item(store_timestamp_ms=0))
    assert shown[0].split() == ["id", "lag"]


def test_items_are_paragraphs_if_their_columns_do_not_fit() -> None:
    shown = lines(40, item(), item(reason="x"))
    first = [f"id      {ID}", "lag     1,234,567"]
    assert shown == [*first, "", *first, "reason  x"]


def test_a_long_text_ends_after_three_lines() -> None:
    shown = lines(80, item(reason="word " * 1_000))
    assert len(shown) == 2 + 1 + TEXT_LINES and shown[-1].endswith(" …")


def test_wide_characters_are_aligned() -> None:
    columns = (Column("topic", "topic"), Column("type", "type"))
    items = [{"topic": "größe 日本", "type": "a"}, {"topic": "e\u0301", "type": "b"}]
    shown = Table(columns).lines(items, 80)
    assert shown[2:] == ["größe 日本  a", "e\u0301           b"]


def test_what_looks_like_markup_is_shown_as_it_is() -> None:
    assert "[red]x[/]" in lines(200, item(reason="[red]x[/]"))[2]


def test_a_cell_cannot_steer_the_terminal() -> None:
    for width in (80, None):
        text = "\n".join(lines(width, item(reason="a\x1b[2Jb\x9bc\nd\te")))
        assert "\x1b" not in text and "\x9b" not in text and "a\\x1b[2Jb\\x9bc" in text


def test_columns_are_chosen_by_their_names() -> None:
    table = TableOptions(columns="stored-at, ID").listing(COLUMNS)
    assert table.lines([item()], 200)[0].split() == ["stored", "at", "id"]
    wide = TableOptions(wide=True).listing(COLUMNS)
    assert wide.lines([item()], 200)[0].split() == ["id", "lag", "reason", "stored", "at"]
    assert wide.lines([item()], 60)[0] == f"id         {ID}", "they do not fit side by side"


@pytest.mark.parametrize(("wide", "chosen"), [(False, "id,size"), (True, "id"), (False, "id,")])
def test_unknown_columns_are_refused(wide: bool, chosen: str) -> None:
    with pytest.raises(BadOption, match="--columns"):
        TableOptions(wide=wide, columns=chosen).listing(COLUMNS)


# ---- test times ----
#
# Times and durations on the command line.


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
