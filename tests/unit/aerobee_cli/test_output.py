"""Lines for people, and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

import pytest

from aerobee_cli import output
from aerobee_cli.unanswered import unanswered_of


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
