"""The command line of a service: each option once."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest
import structlog

from aerobee_chassis.command_line import EXIT_BAD_OPTIONS, Flag, run
from aerobee_chassis.config import KnownKeys, Options

PORT = Flag("--port", "P", "listenPort", "the port", int)


class Sample(Options):
    known_keys: ClassVar[KnownKeys] = KnownKeys(harmless={"threads": "there are none"})

    listen_port: int = 1


def run_with(
    *arguments: str, on_serve: Callable[[], None] = lambda: None
) -> tuple[int, list[Sample]]:
    started: list[Sample] = []

    def serve(options: Sample) -> int:
        started.append(options)
        on_serve()
        return 0

    code = run(
        arguments,
        service="sample",
        description="A sample.",
        example="example:\n  sample --port 7",
        model=Sample,
        flags=[PORT],
        serve=serve,
    )
    return code, started


@pytest.mark.parametrize(
    ("twice", "words"),
    [
        (("--port", "0", "--port", "2"), "--port is given twice ('0', '2')"),
        (("--config", "a", "--config", "b"), "--config is given twice ('a', 'b')"),
    ],
)
def test_an_option_given_twice_is_refused_with_both_values(
    twice: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_with(*twice, "--print-config")
    assert ended.value.code == EXIT_BAD_OPTIONS
    assert words in capsys.readouterr().err


def test_an_option_given_once_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_with("--port", "0", "--print-config") == (0, [])
    assert '"listenPort": 0' in capsys.readouterr().out


def test_an_invalid_option_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_with("--set", "listenPrt=1") == (EXIT_BAD_OPTIONS, [])
    problem = "error: unknown option 'listenPrt': did you mean listenPort?\n"
    assert tuple(capsys.readouterr()) == ("", problem)


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_with("--help")
    assert "example:\n  sample --port 7" in capsys.readouterr().out


@pytest.fixture
def default_logs() -> Iterator[None]:
    """Restore structlog after a service has configured it for the output of this test."""
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


ODD_KEYS = ("--set", "threads=4", "--set", "LISTENPORT=7")


def test_the_log_names_keys_without_effect_and_other_spellings(
    default_logs: None, capsys: pytest.CaptureFixture[str]
) -> None:
    code, [options] = run_with(*ODD_KEYS)
    assert (code, options.listen_port) == (0, 7)
    idle, note = map(json.loads, capsys.readouterr().out.splitlines())
    assert (idle["event"], idle["keys"]) == ("options_without_effect", ["threads"])
    assert (note["event"], note["note"]) == ("option_note", "LISTENPORT is read as listenPort")


def test_printed_options_are_json_and_warnings_are_lines_beside_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_with(*ODD_KEYS, "--print-config") == (0, [])
    out, err = capsys.readouterr()
    assert json.loads(out)["listenPort"] == 7
    assert err.splitlines() == [
        "warning: without effect here: threads",
        "warning: LISTENPORT is read as listenPort",
    ]


@pytest.fixture
def default_threshold() -> Iterator[tuple[int, int, int]]:
    """Set Python's default threshold. A command of another test may have left a higher one."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield gc.get_threshold()
    gc.set_threshold(*before)


def test_garbage_is_collected_rarely_until_the_service_ends(
    default_threshold: tuple[int, int, int],
) -> None:
    thresholds = []
    run_with("--port", "0", on_serve=lambda: thresholds.append(gc.get_threshold()))
    assert [young > default_threshold[0] for young, *_ in thresholds] == [True]
    assert gc.get_threshold() == default_threshold


def test_a_command_line_loads_no_service_before_it_serves() -> None:
    services = ("aerobee_namesrv", "aerobee_broker", "aerobee_proxy")
    code = f"""
import runpy, sys
for service in {services}:
    sys.argv = [service, "--print-config"]
    try:
        runpy.run_module(service, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        assert not ended.code
print(*sorted(sys.modules), file=sys.stderr)
"""
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stderr.split()
    assert {f"{service}.config" for service in services} <= set(loaded)
    assert not {f"{service}.app" for service in services} & set(loaded)
