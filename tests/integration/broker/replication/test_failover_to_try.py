"""docs/replication.md: the failover that a reader tries, and the file of a real machine."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from aerobee_broker.config import BrokerOptions
from aerobee_chassis.config import load
from support.clock.polling import until_sync
from support.processes.command import is_alive
from support.repository.tree import ROOT

PAGE, HEADING = "docs/replication.md", "A failover to try"
NAMESRV, FIRST_BROKER, BROKERS = "9876", "10911", 3
STORY_S = 180.0


def section(heading: str) -> str:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def story() -> str:
    """The blocks of the section, one behind the other."""
    return "\n".join(re.findall(r"^```sh\n(.*?)^```$", section(HEADING), re.MULTILINE | re.DOTALL))


def free_ports() -> tuple[int, int]:
    """One port, and the first of three in a row. Others may take them meanwhile, as everywhere."""
    for first in range(21_000 + os.getpid() % 9_000, 32_000, BROKERS + 1):
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + BROKERS + 1):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first, first + 1
    raise AssertionError("no free ports")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for file in (tmp_path / "try").glob("*.pid"):
        with suppress(ProcessLookupError):
            os.kill(int(file.read_text()), signal.SIGKILL)


def test_the_failover_of_the_page_goes_as_it_says(directory: Path) -> None:
    namesrv, first = free_ports()
    text = story().replace(NAMESRV, str(namesrv)).replace(FIRST_BROKER, str(first))
    done = subprocess.run(
        ["bash", "-euc", text],
        cwd=directory,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "NAMESRV_ADDR": f"127.0.0.1:{namesrv}",
        },
        capture_output=True, text=True, check=False, timeout=STORY_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "aerobee broker promote broker-a" in done.stderr
    assert "is not registered" in done.stdout
    *_, last = done.stdout.split("confirmed")  # of the last table of replicas
    assert re.search(r"^0 +slave", last, re.MULTILINE)
    assert len(re.findall(r"^[12] +master", last, re.MULTILINE)) == 1
    pids = [int(file.read_text()) for file in (directory / "try").glob("*.pid")]
    assert len(pids) == BROKERS + 1
    until_sync(lambda: not any(map(is_alive, pids)), "all have ended", timeout_s=60)


def test_the_file_of_a_real_machine_is_one_that_a_broker_takes(tmp_path: Path) -> None:
    [text] = re.findall(r"^```text\n(.*?)^```$", section("Real machines"), re.MULTILINE | re.DOTALL)
    file = tmp_path / "broker.conf"
    file.write_text(text)
    options = load(BrokerOptions, file=file)
    assert options.is_replicated and options.is_synchronous and not options.is_elected
    assert (options.total_replicas, options.required_replicas) == (3, 2)
    assert options.bind_address == "0.0.0.0"
    assert len(options.namesrvs) == 2
