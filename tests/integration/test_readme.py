"""Every command and every program of README.md does what a reader would expect: it runs.

In the order of the page, against the services that `aerobee up` of the page itself started. What is
too heavy to run twice is run by the test that is named in `RUN_ELSEWHERE`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.repository.tree import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]

README = (ROOT / "README.md").read_text(encoding="utf-8")
DEFAULT_NAMESRV = "127.0.0.1:9876"
BIN = Path(sys.executable).parent
COMMAND_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0

# command → (test module, what in it runs the command)
RUN_ELSEWHERE = {
    "make demo": ("tests/integration/command/test_demo.py", '"demo"'),
    "docker compose up": ("tests/integration/test_compose.py", "DockerCompose"),
}


@dataclass(frozen=True)
class Block:
    """A fenced block of the page."""

    language: str
    text: str
    line: int

    @property
    def commands(self) -> list[str]:
        return [line for line in self.text.splitlines() if line and not line.startswith("#")]


def blocks() -> list[Block]:
    pattern = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [
        Block(found[1], found[2], README.count("\n", 0, found.start()) + 2)
        for found in pattern.finditer(README)
    ]


def runnable() -> list[Block]:
    """Those that a reader would type, without the ones that are started or run elsewhere."""
    return [
        block
        for block in blocks()
        if block.language in ("sh", "python")
        and not set(block.commands) <= RUN_ELSEWHERE.keys()
        and not block.text.startswith("aerobee up")
    ]


class Up:
    """`aerobee up` as the page has it, but with free ports, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        [command] = [b.commands[0] for b in blocks() if b.text.startswith("aerobee up")]
        self.directory = directory
        free_ports = ["--namesrv-port", "0", "--broker-port", "0", "--proxy-port", "0"]
        self._process = subprocess.Popen(
            [BIN / "aerobee", *shlex.split(command)[1:], *free_ports],
            cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None and self._process.stderr is not None
        self._log: list[str] = []
        # Read all the time: a full pipe would hold up the services.
        self._reader = threading.Thread(target=self._log.extend, args=(self._process.stderr,))
        self._reader.start()
        ready = re.match(
            r"ready namesrv=(\S+) broker=\S+ proxy=\S+$", self._process.stdout.readline()
        )
        if ready is None:
            self.stop()
            pytest.fail("aerobee up was not ready:\n" + "".join(self._log))
        self.namesrv = ready[1]

    def run(self, block: Block) -> subprocess.CompletedProcess[str]:
        """Runs a block in one shell, or one interpreter, as a reader would."""
        text = block.text.replace(DEFAULT_NAMESRV, self.namesrv)
        command = (
            [sys.executable, "-c", text] if block.language == "python" else ["bash", "-euc", text]
        )
        return subprocess.run(
            command,
            cwd=self.directory,
            env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "NAMESRV_ADDR": self.namesrv},
            capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S,
        )  # fmt: skip

    def stop(self) -> int:
        self._process.terminate()
        code = self._process.wait(STOP_TIMEOUT_S)
        self._reader.join()
        assert self._process.stdout is not None and self._process.stderr is not None
        self._process.stdout.close()
        self._process.stderr.close()
        return code


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    made = Up(tmp_path_factory.mktemp("readme"))
    yield made
    assert made.stop() == 0


# In the order of the page: what a command finds is what those before it left.
@pytest.mark.parametrize("block", runnable(), ids=lambda block: f"line-{block.line}")
def test_a_block_of_the_readme_runs(up: Up, block: Block) -> None:
    done = up.run(block)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "error" not in done.stderr.lower(), done.stderr


def test_the_story_of_the_readme_ends_as_it_says(up: Up) -> None:
    """Needs the blocks before it: one dead letter, with its reason, in the report's files."""
    listed = up.run(Block("sh", "aerobee dlq list billing --json", 0))
    assert '"nothing was paid"' in listed.stdout
    assert '"unpaid"' in listed.stdout
    assert "order-8" in listed.stdout
    assert (up.directory / "report" / "report.html").stat().st_size > 0


@pytest.mark.parametrize("command", RUN_ELSEWHERE)
def test_what_is_not_run_here_is_run_by_another_test(command: str) -> None:
    assert any(command in block.commands for block in blocks())
    module, call = RUN_ELSEWHERE[command]
    assert call in (ROOT / module).read_text(encoding="utf-8")


def test_every_verb_that_the_readme_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    verbs = set(re.findall(r"`?make ([a-z]+)", README))
    assert verbs <= set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))


def test_what_the_readme_says_to_set_is_read_by_the_compose_file() -> None:
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"`(AEROBEE_\w+_(?:HOST|PORT))[`=]", README)) - {"AEROBEE_LISTEN_PORT"}
    assert named
    assert {name for name in named if f"${{{name}:-" in compose} == named
