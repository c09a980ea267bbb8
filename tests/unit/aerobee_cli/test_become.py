"""Commands that run another program, where it is not installed."""

from __future__ import annotations

import importlib.util

import click
import pytest

from aerobee_cli.processes.become import become


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
