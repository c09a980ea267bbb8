"""Logs: lines for people on a terminal, JSON elsewhere, whatever the service."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.clock.polling import until_sync
from support.processes.terminal import Terminal

SERVICES = {
    "namesrv": ("--port", "0"),
    "broker": ("--port", "0", "--namesrv", "127.0.0.1:1"),
    "proxy": ("--port", "0", "--namesrv", "127.0.0.1:1", "--set", "tlsServerMode=disabled"),
}


def command(service: str, data: Path, *arguments: str) -> list[str]:
    where = () if service == "proxy" else ("--data", str(data))
    module = f"aerobee_{service}"
    return [sys.executable, "-m", module, *SERVICES[service], *where, *arguments]


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_on_a_terminal_logs_lines_for_people(service: str, tmp_path: Path) -> None:
    with Terminal(command(service, tmp_path)) as terminal:
        terminal.until_shown(
            rf"\d\d:\d\d:\d\dZ \[info     \] ready .*address=127\.0\.0\.1:\d+.* service={service}"
        )
        assert "{" not in terminal.text
        assert terminal.end() == 0


def test_a_service_in_a_pipe_logs_json(tmp_path: Path) -> None:
    with subprocess.Popen(command("namesrv", tmp_path), stdout=subprocess.PIPE, text=True) as made:
        assert made.stdout is not None
        assert json.loads(made.stdout.readline())["event"] == "ready"
        made.terminate()


def test_the_format_can_be_chosen(tmp_path: Path) -> None:
    with Terminal(command("namesrv", tmp_path, "--set", "logFormat=json")) as terminal:
        until_sync(lambda: "\n" in terminal.text)
        assert json.loads(terminal.lines[0])["event"] == "ready"
    chosen = command("namesrv", tmp_path, "--set", "logFormat=console")
    with subprocess.Popen(chosen, stdout=subprocess.PIPE, text=True) as made:
        assert made.stdout is not None
        line = made.stdout.readline()
        assert "[info     ] ready" in line and "\x1b" not in line, "no colors in a pipe"
        made.terminate()
