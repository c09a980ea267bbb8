"""The process behind the fixtures: what it says when it cannot start, and how it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aerobee_client import Code
from aerobee_client.testing import SuiteProcess
from support.clock.polling import until_sync
from support.codes import raises_code
from support.processes.command import is_alive
from support.processes.service import run

STARTER = """
import sys
from pathlib import Path
from aerobee_client.testing import SuiteProcess
suite = SuiteProcess(Path(sys.argv[1]))
suite.start()
print(suite.pid, flush=True)
sys.stdin.read()
"""


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    with raises_code(Code.SERVICE_NOT_AVAILABLE) as raised:
        SuiteProcess(tmp_path, ["brokerNmae=b"]).start()
    assert "did you mean brokerName?" in str(raised.value)


def test_it_is_gone_with_a_starter_that_was_killed(tmp_path: Path) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert is_alive(pid)
        starter.send_signal(signal.SIGKILL)
    until_sync(lambda: not is_alive(pid), "the suite has ended")


@pytest.mark.parametrize(
    ("arguments", "code"), [(["--help"], 0), (["--set", "brokerName"], 2), (["--nope"], 2)]
)
def test_the_command_line_says_what_is_wrong_with_it(arguments: list[str], code: int) -> None:
    assert run("aerobee_suite", *arguments).returncode == code


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    with SuiteProcess(tmp_path / "first") as suite:
        port = suite.namesrv.rpartition(":")[2]
        ports = ("--namesrv-port", port, "--broker-port", "0", "--proxy-port", "0")
        second = run("aerobee_suite", "--data", str(tmp_path / "second"), *ports)
    assert second.returncode == 1
    assert second.stderr.startswith("error: ") and second.stderr.count("\n") == 1
