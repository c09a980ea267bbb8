"""JSON log lines of the services, for people."""

from __future__ import annotations

import io
import json

import pytest

from aerobee_cli.processes.log_lines import LogFormat, for_people, writer_of


def line(**fields: object) -> str:
    return json.dumps({"timestamp": "2026-11-28T15:51:05.496937Z", "level": "info", **fields})


def test_a_line_has_time_service_level_event_and_fields() -> None:
    shown = for_people(line(event="ready", service="broker", address="127.0.0.1:1", ids=[1, 2]))
    assert shown == (
        "15:51:05Z broker  [info     ] ready                address=127.0.0.1:1 ids=[1, 2]"
    )


def test_a_traceback_has_lines_of_its_own() -> None:
    shown = for_people(line(event="failed", exception="Traceback:\n  x", reason="no room"))
    assert shown.splitlines()[1:] == ["Traceback:", "  x"]
    assert "reason='no room'" in shown.splitlines()[0]


@pytest.mark.parametrize("text", ["not JSON", "{", '{"no": "event"}', "[1]"])
def test_another_line_is_shown_as_it_is(text: str) -> None:
    assert for_people(text) == text


def test_a_line_cannot_steer_the_terminal() -> None:
    for text in ("\x1b[2J", line(event="\x1b[2J", name="\x1b[2J")):
        assert "\x1b" not in for_people(text) and "\\x1b[2J" in for_people(text)


def test_colors_change_nothing_else() -> None:
    text = line(event="ready", level="warning", address="127.0.0.1:1")
    colored = for_people(text, colors=True)
    for color in ("\x1b[1m", "\x1b[36m", "\x1b[33m", "\x1b[0m"):
        assert color in colored
        colored = colored.replace(color, "")
    assert colored == for_people(text)


@pytest.mark.parametrize(
    ("log_format", "is_json"),
    [(LogFormat.AUTO, True), (LogFormat.JSON, True), (LogFormat.CONSOLE, False)],
)
def test_lines_in_a_pipe_are_json_unless_chosen(log_format: LogFormat, is_json: bool) -> None:
    out = io.StringIO()
    text = line(event="ready")
    writer_of(log_format, out)(text)
    assert (out.getvalue() == f"{text}\n") is is_json
