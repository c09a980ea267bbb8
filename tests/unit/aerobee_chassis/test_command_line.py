"""The command line of a service: each option once."""

from __future__ import annotations

import pytest

from aerobee_chassis.command_line import EXIT_BAD_OPTIONS, Flag, run
from aerobee_chassis.config import Options

PORT = Flag("--port", "P", "listenPort", "the port", int)


class Sample(Options):
    listen_port: int = 1


def run_with(*arguments: str) -> tuple[int, list[Sample]]:
    started: list[Sample] = []

    def serve(options: Sample) -> int:
        started.append(options)
        return 0

    code = run(
        arguments,
        service="sample",
        description="A sample.",
        example="",
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
