"""deploy/systemd: units that systemd accepts, and commands that the services accept."""

from __future__ import annotations

import json
import re
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


def options_of_the_page() -> list[str]:
    """Return the options of one machine, and those of several, as docs/systemd.md has them."""
    page = (ROOT / "docs" / "systemd.md").read_text(encoding="utf-8")
    [alone] = re.findall(r"^echo (\S+) \| tee /etc/aerobee/broker.conf", page, re.MULTILINE)
    [several] = re.findall(r"^```properties\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [alone, several]


@pytest.mark.parametrize("machines", ["one machine", "several"])
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_service_accepts_its_command(unit: Path, machines: str, tmp_path: Path) -> None:
    arguments = command_of(unit)
    alone, options = options_of_the_page()
    if machines == "one machine":
        file = tmp_path / "service.conf"
        options = "" if arguments[0] == "namesrv" else alone
    else:
        assert aerobee("certs", "init", str(tmp_path / "secure")).returncode == 0
        file = tmp_path / "secure" / f"{arguments[0]}.conf"
    with file.open("a") as appended:
        appended.write(options)
    given = [str(file) if each.startswith("/etc/") else each for each in arguments]
    done = aerobee(*given, "--print-config")
    assert done.returncode == 0, done.stderr
    if arguments[0] != "namesrv":  # the command line must not stand above the file
        expected = dict(line.split("=") for line in options.split())
        assert json.loads(done.stdout).items() >= expected.items()


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
