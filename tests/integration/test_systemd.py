"""deploy/systemd: units that systemd accepts, and commands that the services accept."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from support.processes.command import aerobee
from support.repository.tree import ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
COMMAND = "/opt/aerobee/bin/aerobee"


def command_of(unit: Path) -> list[str]:
    [line] = [each for each in unit.read_text().splitlines() if each.startswith("ExecStart=")]
    program, *arguments = shlex.split(line.removeprefix("ExecStart="))
    assert program == COMMAND
    return arguments


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_service_accepts_its_command(unit: Path, tmp_path: Path) -> None:
    arguments = command_of(unit)
    options = tmp_path / "service.conf"
    options.touch()
    given = [str(options) if each.startswith("/etc/") else each for each in arguments]
    done = aerobee(*given, "--print-config")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for unit in UNITS:
        text = unit.read_text().replace(COMMAND, "/bin/true").replace("User=aerobee", "User=root")
        (tmp_path / unit.name).write_text(text)
    verified = subprocess.run(
        ["systemd-analyze", "verify", *sorted(map(str, tmp_path.iterdir()))],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    ours = [line for line in verified.stderr.splitlines() if "aerobee-" in line]
    assert not ours, verified.stderr
