"""Tables and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import pytest

from aerobee_cli import output
from aerobee_cli.commands.dlq import dead_letter_columns
from aerobee_cli.output import Column


class Place(NamedTuple):
    topic: str
    queue_id: int


COLUMNS = (
    Column("topic", "topic"),
    output.number("lag", "lag"),
    Column("at", "store_timestamp_ms"),
)


def test_a_list_is_one_json_array(capsys: pytest.CaptureFixture[str]) -> None:
    items = [{"topic": "orders", "keys": ("a", "b")}, {"topic": "grüße", "keys": ()}]
    output.show_list(items, COLUMNS, as_json=True)
    assert json.loads(capsys.readouterr().out) == [
        {"topic": "orders", "keys": ["a", "b"]},
        {"topic": "grüße", "keys": []},
    ]


def test_an_empty_list_is_an_empty_array(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_list([], COLUMNS, as_json=True)
    assert json.loads(capsys.readouterr().out) == []


def test_a_table_that_goes_into_a_pipe_is_not_folded(capsys: pytest.CaptureFixture[str]) -> None:
    name = "n" * 300
    output.show_list(
        [{"topic": name, "lag": 1234567, "store_timestamp_ms": 0}], COLUMNS, as_json=False
    )
    out = capsys.readouterr().out
    assert name in out and "1,234,567" in out and "topic" in out


@pytest.mark.parametrize("title", [None, "Two topics"])
def test_a_long_table_looks_like_a_short_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, title: str | None
) -> None:
    items: list[dict[str, Any]] = [
        {"topic": "größe 日本", "lag": 1234567, "store_timestamp_ms": 0},
        {"topic": "two\nlines, and more", "lag": None, "store_timestamp_ms": 1},
    ]
    output.write_table(items, COLUMNS, title)
    short = capsys.readouterr().out
    monkeypatch.setattr(output, "MANY_ROWS", 0)
    output.write_table(items, COLUMNS, title)
    assert capsys.readouterr().out == short


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


def test_dead_letters_have_a_column_of_lite_topics_when_one_has_any() -> None:
    without, having = {"lite_topic": ""}, {"lite_topic": "session-1"}
    plain = [column.key for column in dead_letter_columns([without, without])]
    assert "lite_topic" not in plain
    found = [column.key for column in dead_letter_columns([without, having])]
    assert found.index("lite_topic") == found.index("origin_topic") + 1
    assert set(found) == {*plain, "lite_topic"}


def test_what_looks_like_markup_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_list(
        [{"topic": "[red]x[/]", "lag": None, "store_timestamp_ms": 0}], COLUMNS, as_json=False
    )
    assert "[red]x[/]" in capsys.readouterr().out


def test_one_thing_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_one({"a": 1, "b": {"c": "d"}}, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"a": 1, "b": {"c": "d"}}


def test_one_thing_is_a_line_for_each_value(capsys: pytest.CaptureFixture[str]) -> None:
    item = {"store_timestamp_ms": 1_700_000_000_001, "empty": "", "up": True, "n": 12_345}
    output.show_one(item, as_json=False)
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["store", "timestamp", "2023-11-14T22:13:20.001Z"],
        ["up", "yes"],
        ["n", "12,345"],
    ]


def test_time_zero_is_unknown() -> None:
    assert output.iso_time(0) == ""


def test_a_time_that_no_calendar_has_does_not_spoil_the_table() -> None:
    assert output.iso_time(1_735_689_600_001) == "2025-01-01T00:00:00.001Z"
    for timestamp_ms in ((1 << 63) - 1, -(1 << 63)):
        assert output.iso_time(timestamp_ms) == f"{timestamp_ms} ms"


def test_a_body_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    body = "a\x1b[2Jb\x9bc\nd\te"
    output.show_one({"body": body}, as_json=False)
    output.show_list([{"topic": body, "lag": 1, "store_timestamp_ms": 0}], COLUMNS, as_json=False)
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\x9b" not in out
    assert out.startswith("body  a\\x1b[2Jb\\x9bc\nd\te\n")
