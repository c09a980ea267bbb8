"""Test the processes that commands become or start, and the lines of their logs."""

from __future__ import annotations

import importlib.util
import io
import json

import click
import pytest

from aerobee_cli.processes.become import become
from aerobee_cli.processes.log_lines import LogFormat, for_people, writer_of

# ---- test become ----
#
# Commands that run another program, where it is not installed.


@pytest.mark.parametrize(
    ("module", "remedy"),
    [("aerobee_spark", "pip install 'aerobee-spark[local]'"), ("aerobee_broker", "pip install")],
)
def test_a_missing_program_is_one_line_with_the_command_that_installs_it(
    module: str, remedy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(click.exceptions.Exit) as ended:
        become(module, [])
    said = capsys.readouterr().err
    assert ended.value.exit_code == 1
    assert said.startswith("error: ") and remedy in said and said.count("\n") == 1


def test_the_report_says_how_to_run_it_beside_the_containers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(click.exceptions.Exit):
        become("aerobee_spark", ["report"])
    assert "docker compose --profile spark run --rm report" in capsys.readouterr().err


# ---- test log lines ----
#
# JSON log lines of the services, for people.


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
