"""*Two machines* of docs/security.md: the commands of the page close a cluster on two machines.

The machines are network namespaces. Each has /etc/aerobee and /var/lib/aerobee of its own, and gets
only what the page copies there. Needs root.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.clock.polling import until_sync
from support.processes.command import found_by_doctor
from support.processes.network_namespaces import Network, require_namespaces
from support.repository import reader
from support.repository.tree import ROOT

PAGE, HEADING = "docs/security.md", "Two machines"
FIRST, SECOND = "10.0.0.5", "10.0.0.6"  # on the page
SERVICES = ("namesrv", "broker", "proxy")
# Of a machine: the directory that only it sees in place of one of the page.
PLACES = {"/etc/aerobee": "etc", "/var/lib/aerobee": "lib"}
COMMAND_TIMEOUT_S = 60.0
SCP = """#!/bin/sh
for target; do :; done
while [ $# -gt 1 ]; do
  cp -p -- "$1" "{machines}/${{target%%:*}}/etc/" || exit 1
  shift
done
"""


def blocks(heading: str, language: str) -> list[str]:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


class Machines:
    """Two machines, and the third one of the page, the office, which makes the certificates."""

    def __init__(self, folder: Path, network: Network, stack: ExitStack) -> None:
        self._folder, self._network, self._stack = folder, network, stack
        self.addresses = {FIRST: network.add("first"), SECOND: network.add("second")}
        network.add("office")
        self.office = folder / "office"
        self.office.mkdir()
        self._environment = reader.environment(self.office)
        for name in PLACES.values():
            (folder / name).mkdir()
            for address in self.addresses.values():
                (folder / "machines" / address / name).mkdir(parents=True)
        scp = self.office / "bin" / "scp"
        scp.write_text(SCP.format(machines=folder / "machines"))
        scp.chmod(0o700)

    def local(self, text: str) -> str:
        """Return a text of the page with the addresses and directories of this test."""
        places = {place: str(self._folder / name) for place, name in PLACES.items()}
        for old, new in {**self.addresses, **places}.items():
            text = text.replace(old, new)
        return text

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in the office."""
        done = subprocess.run(
            [*self._network.enter("office"), *command],
            cwd=self.office,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0 or not check, f"{command}\n{done.stdout}{done.stderr}"
        return done

    def start(self, host: str, block: str) -> None:
        """Start each service of a block on a machine, and wait until it is ready."""
        *settings, namesrv, broker, proxy = self.local(block).splitlines()
        own = self._folder / "machines" / self._network.addresses[host]
        mounts = "; ".join(
            f"mount --bind {own / name} {self._folder / name}" for name in PLACES.values()
        )
        for service, line in zip(SERVICES, (namesrv, broker, proxy), strict=True):
            assert line.startswith(f"aerobee {service} ")
            log = own / f"{service}.log"
            script = "\n".join([mounts, *settings, f"exec {line}"])
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [*self._network.enter(host), "unshare", "--mount", "bash", "-euc", script],
                    cwd=own,
                    env=self._environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            self._stack.callback(_stop, process)
            until_sync(lambda log=log: '"ready"' in log.read_text(), f"{service} on {host}")  # type: ignore[misc]


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(COMMAND_TIMEOUT_S)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    require_namespaces()
    with Network() as network, ExitStack() as stack:
        yield Machines(tmp_path, network, stack)


def test_the_commands_of_the_page_close_a_cluster_of_two_machines(machines: Machines) -> None:
    certificates, first, second, users, asked = blocks(HEADING, "sh")
    machines.run("bash", "-euc", machines.local(certificates))
    machines.start("first", first)
    machines.start("second", second)
    for line in machines.local(users).splitlines():
        if line == "aerobee doctor":
            assert (
                found_by_doctor(machines.run("aerobee", "doctor", "--json", check=False).stdout)
                == []
            )
        else:
            machines.run("bash", "-euc", f"umask 077; {line}")
    brokers = machines.run("aerobee", "cluster", "list").stdout
    assert all(f"{address}:10911" in brokers for address in machines.addresses.values())

    # The program of the page, as soon as all processes know the user.
    [program] = blocks("Users and policies", "python")
    python = str(reader.BIN / "python")
    send = ("-c", machines.local(program))
    until_sync(lambda: machines.run(python, *send, check=False).returncode == 0, "a message")
    refused = machines.run(python, "-c", send[1].replace("invoices", "orders"), check=False)
    assert "user 'billing' lacks" in refused.stderr

    # What an SDK gets that compares the address with the certificate, at each proxy.
    for address in machines.addresses:
        machines.run("bash", "-euc", machines.local(asked.replace(FIRST, address)))

    # A stranger.
    for address in machines.addresses.values():
        call = ("aerobee", "--namesrv", f"{address}:9876", "topic", "list")
        done = machines.run("env", "AEROBEE_CONTEXT_DIR=missing", *call, check=False)
        assert done.returncode == 1 and "it may require TLS" in done.stderr
