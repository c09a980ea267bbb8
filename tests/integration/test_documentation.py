"""Every command and every program of README.md and docs/ does what a reader would expect: it runs.

In the order of the pages, against the services that `aerobee up` of docs/usage.md itself started;
what an earlier page has is not run again. What is too heavy to run twice is run by the test that is
named in `RUN_ELSEWHERE`, and of other `make` commands it is shown that they exist (`make -n`).
"""

from __future__ import annotations

import re
import shlex
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from aerobee_broker.config import BrokerOptions
from support.repository import reader
from support.repository.tree import ROOT, files
from support.spark import class_archive

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DEFAULT_NAMESRV, DEFAULT_BROKER = "127.0.0.1:9876", "127.0.0.1:10911"
COMMAND_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
FIRST_PAGES = ("README.md", "docs/usage.md")
# Of these languages no block is a command.
OTHER_LANGUAGES = {"json", "mermaid", "properties", "text", "yaml"}

# command → (test module, what in it runs the command)
RUN_ELSEWHERE = {
    "make demo": ("tests/integration/command/test_demo.py", "with Demo(tmp_path, "),
    "make demo-failover": ("tests/integration/command/test_demo.py", '"--failover"'),
    **dict.fromkeys(
        (
            "python3 -m venv env",
            ". env/bin/activate",
            "pip install 'aerobee-client[testing]'",
            "pytest test_orders.py",
        ),
        ("tests/integration/distributions/test_wheels.py", 'documented("A first test", "sh")'),
    ),
    "pip install --find-links build/dist aerobee": (
        "tests/integration/distributions/test_wheels.py",
        "stranger.install(",
    ),
    "aerobee --version": ("tests/integration/distributions/test_wheels.py", '"--version"'),
    "aerobee up --replicas 3 --set brokerName=broker-a": (
        "tests/integration/command/test_up.py",
        '"--replicas", "3"',
    ),
    "aerobee broker ha-status broker-a": (
        "tests/integration/broker/replication/test_promotion.py",
        '"ha-status"',
    ),
    "aerobee broker promote broker-a": (
        "tests/integration/broker/replication/test_promotion.py",
        '"promote"',
    ),
    **{
        f"aerobee broker diverged {verb}": (
            "tests/integration/broker/replication/test_diverged.py",
            call,
        )
        for verb, call in (
            ("list broker-a", '"list"'),
            ("show broker-a --missing", '"show", file["name"]'),
            ("resend broker-a --dry-run", '"resend", "--dry-run"'),
        )
    },
    "docker compose -f docker-compose.yml -f docker-compose.secure.yml up": (
        "tests/integration/test_compose_secure.py",
        "made.running()",
    ),
    "docker compose up": ("tests/integration/test_compose.py", "made.running()"),
    "docker compose --profile replicated up --scale broker=0": (
        "tests/integration/test_compose.py",
        '"replicated", "up", "--scale", "broker=0"',
    ),
    "docker build -f deploy/Dockerfile -t aerobee .": (
        "tests/support/processes/engine.py",
        '"--file", "deploy/Dockerfile"',
    ),
    "docker run -p 127.0.0.1:8081:8081 aerobee": (
        "tests/integration/test_image.py",
        "running(image, (PROXY,))",
    ),
    "docker run -p 127.0.0.1:9876:9876 -p 127.0.0.1:10911:10911 -p 127.0.0.1:8081:8081 aerobee": (
        "tests/integration/test_image.py",
        "running(image, (NAMESRV, BROKER, PROXY))",
    ),
    "docker compose down": ("tests/integration/test_compose.py", 'project.run("down")'),
    "docker compose --profile replicated down": (
        "tests/integration/test_compose.py",
        '"--profile", "replicated", "down"',
    ),
    "docker compose --profile spark down": (
        "tests/cluster/test_spark_in_compose.py",
        '"--profile", "spark", "down"',
    ),
    "docker compose --profile spark up": (
        "tests/cluster/test_spark_in_compose.py",
        "made.running()",
    ),
    "docker compose --profile spark run --rm report --group billing": (
        "tests/cluster/test_spark_in_compose.py",
        'job("report"',
    ),
    "docker compose --profile spark run --rm facts --group billing": (
        "tests/cluster/test_spark_in_compose.py",
        'job("facts"',
    ),
    "docker compose --profile spark cp spark-shell:/data/report report": (
        "tests/cluster/test_spark_in_compose.py",
        '"cp", "spark-shell:/data/report"',
    ),
    "docker compose --profile spark cp job.py spark-shell:/data/job.py": (
        "tests/cluster/test_spark_in_compose.py",
        '"spark-shell:/data/job.py"',
    ),
    "docker compose --profile spark exec spark-shell spark-submit /data/job.py": (
        "tests/cluster/test_spark_in_compose.py",
        '"spark-submit", "/data/job.py"',
    ),
    "spark-submit --master spark://HOST:7077 --py-files aerobee.zip job.py": (
        "tests/support/spark/submitted.py",
        '"--py-files"',
    ),
    "PYTHONPATH=tests .venv/bin/python -m bench.year": (
        "tests/integration/command/test_year.py",
        '"bench.year"',
    ),
}

# (page, heading) of a section whose blocks are one story, run as such → the same
SECTIONS_ELSEWHERE = {
    ("docs/backup.md", "A copy"): ("tests/integration/command/test_backup.py", '"store", "check"'),
    ("docs/backup.md", "A restore"): ("tests/integration/command/test_backup.py", "Up(restored)"),
    ("docs/console.md", "Login"): (
        "tests/integration/console/test_command.py",
        '"--login", "--tls-cert"',
    ),
    **{
        ("docs/change_over.md", heading): (
            "tests/conformance/test_change_over.py",
            "cluster.run(made)",
        )
        for heading in ("Close a running cluster", "Change the authority")
    },
    ("docs/audit.md", "Write and read"): (
        "tests/integration/command/test_audit.py",
        '"audit", "verify"',
    ),
    ("docs/security.md", "Try it"): ("tests/integration/command/test_secure.py", '"admin.env"'),
    ("docs/security.md", "Two machines"): (
        "tests/integration/command/test_two_machines.py",
        "blocks(HEADING",
    ),
    ("docs/replication.md", "A failover to try"): (
        "tests/integration/broker/replication/test_failover_to_try.py",
        "story()",
    ),
}

# text in a program → the same
PROGRAMS_ELSEWHERE = {
    '("x-aerobee-reason"': ("tests/conformance/sdk/python/agent.py", '("x-aerobee-reason"'),
    "spark.jars.packages": ("tests/cluster/test_delta.py", '"orders-delta"'),
    "secret_key_file=": (
        "tests/integration/command/test_secure.py",
        'Credentials("trains", secret_key_file=',
    ),
}


HEADING = re.compile(r"^#{2,} (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, under its `heading`."""

    page: str
    language: str
    text: str
    line: int
    heading: str = ""

    @property
    def commands(self) -> list[str]:
        """Its lines that are neither empty nor a comment, without the comment behind them."""
        lines = (re.sub(r"\s+# .*", "", line) for line in self.text.splitlines())
        return [line for line in lines if line and not line.startswith("#")]


def pages() -> list[str]:
    """Every page that a reader may take commands from, those that build on no other first."""
    names = [str(path.relative_to(ROOT)) for path in files() if path.suffix == ".md"]
    return sorted(names, key=lambda name: (name not in FIRST_PAGES, name))


def blocks() -> list[Block]:
    pattern = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [
        Block(
            page,
            found[1],
            found[2],
            text.count("\n", 0, found.start()) + 2,
            next(reversed(HEADING.findall(text, 0, found.start())), ""),
        )
        for page in pages()
        for text in [(ROOT / page).read_text(encoding="utf-8")]
        for found in pattern.finditer(text)
    ]


def runnable() -> list[Block]:
    """Those that a reader would type, without the ones that are started or run elsewhere."""
    found: dict[str, Block] = {}
    for block in blocks():
        elsewhere = (
            set(block.commands) <= RUN_ELSEWHERE.keys()
            or (block.page, block.heading) in SECTIONS_ELSEWHERE
            or any(text in block.text for text in PROGRAMS_ELSEWHERE)
        )
        of_make = all(command.startswith("make ") for command in block.commands)
        started = block.text.startswith("aerobee up")
        if block.language in ("sh", "python") and not (elsewhere or of_make or started):
            found.setdefault(block.text, block)
    return in_one_session(list(found.values()))


def in_one_session(given: list[Block]) -> list[Block]:
    """The programs of a page that take a Spark session become one, in place of the first of them: a
    JVM is started once."""
    joined: dict[str, Block] = {}
    for block in given:
        takes_session = block.language == "python" and "SparkSession.builder" in block.text
        key = f"{block.page}:{'session' if takes_session else block.line}"
        first = joined.setdefault(key, block)
        if first is not block:
            joined[key] = replace(first, text=f"{first.text}\n{block.text}")
    return list(joined.values())


def of_make() -> list[str]:
    """The `make` commands of all pages, but those that are run elsewhere."""
    commands = {
        command for block in blocks() if block.language == "sh" for command in block.commands
    }
    return sorted(
        command for command in commands - RUN_ELSEWHERE.keys() if command.startswith("make ")
    )


class Up:
    """`aerobee up` as the page has it, but with free ports, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        [command] = [
            b.commands[0]
            for b in blocks()
            if b.text.startswith("aerobee up") and b.page == "docs/usage.md"
        ]
        self.directory = directory
        self._environment = reader.environment(directory)
        names = ("namesrv", "broker", "proxy", "console")
        free_ports = [f"--{name}-port=0" for name in names]
        self._process = subprocess.Popen(
            [reader.BIN / "aerobee", *shlex.split(command)[1:], *free_ports],
            cwd=directory, env=self._environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None and self._process.stderr is not None
        self._log: list[str] = []
        # Read all the time: a full pipe would hold up the services.
        self._reader = threading.Thread(target=self._log.extend, args=(self._process.stderr,))
        self._reader.start()
        ready = re.match(
            r"ready namesrv=(\S+) broker=(\S+) proxy=\S+$", self._process.stdout.readline()
        )
        if ready is None:
            self.stop()
            pytest.fail("aerobee up was not ready:\n" + "".join(self._log))
        self.namesrv, self.broker = ready.groups()

    def run(self, block: Block) -> subprocess.CompletedProcess[str]:
        """Runs a block in one shell, or one interpreter, as a reader would."""
        text = block.text.replace(DEFAULT_NAMESRV, self.namesrv)
        text = text.replace(DEFAULT_BROKER, self.broker)
        command = (
            [".venv/bin/python", "-c", text]
            if block.language == "python"
            else ["bash", "-euc", text]
        )
        return subprocess.run(
            command,
            cwd=self.directory,
            env={
                **self._environment,
                "NAMESRV_ADDR": self.namesrv,
                class_archive.VARIABLE: class_archive.java_options(),
            },
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


def without_frames(stderr: str) -> str:
    """What a block said, without Java's stack frames, among which the reason is hard to find."""
    return re.sub(r"^\s+at .*\n", "", stderr, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    made = Up(tmp_path_factory.mktemp("readme"))
    yield made
    assert made.stop() == 0


# In the order of the pages: what a command finds is what those before it left.
@pytest.mark.parametrize("block", runnable(), ids=lambda block: f"{block.page}-{block.line}")
def test_a_block_runs(up: Up, block: Block) -> None:
    done = up.run(block)
    assert done.returncode == 0, done.stdout + without_frames(done.stderr)
    if "raise " in block.text:  # of a listener, which the client warns of
        assert "and is now in %DLQ%" in done.stderr
    else:
        assert "error" not in done.stderr.lower(), without_frames(done.stderr)
    assert "replaced a" not in done.stderr, without_frames(done.stderr)  # a data source of Spark


def test_the_first_program_is_ten_lines_and_prints_what_it_sent(up: Up) -> None:
    first = next(b for b in blocks() if b.page == "README.md" and b.language == "python")
    assert first.text.count("\n") == 10
    assert "hello" in up.run(first).stdout


def test_the_first_page_says_what_is_deleted() -> None:
    page = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    options = BrokerOptions()
    for number in (
        f"{options.file_reserved_time} h",
        f"{options.disk_max_used_space_ratio} %",
        f"{options.disk_space_clean_forcibly_ratio} %",
    ):
        assert number in page
    assert "includes unread messages and dead letters" in page


def test_the_story_of_the_pages_ends_as_they_say(up: Up) -> None:
    """Needs the blocks before it: one dead letter, with its reason, in the report's files."""
    listed = up.run(Block("", "sh", "aerobee dlq list billing --json", 0))
    assert '"nothing was paid"' in listed.stdout
    assert '"unpaid"' in listed.stdout
    assert "order-8" in listed.stdout
    assert (up.directory / "report" / "report.html").stat().st_size > 0


@pytest.mark.parametrize("command", [*RUN_ELSEWHERE, *PROGRAMS_ELSEWHERE])
def test_what_is_not_run_here_is_run_by_another_test(command: str) -> None:
    if command in RUN_ELSEWHERE:
        assert any(command in block.commands for block in blocks())
    else:
        assert any(command in block.text for block in blocks() if block.language == "python")
    module, call = {**RUN_ELSEWHERE, **PROGRAMS_ELSEWHERE}[command]
    assert call in (ROOT / module).read_text(encoding="utf-8")


@pytest.mark.parametrize("section", SECTIONS_ELSEWHERE)
def test_a_section_that_is_not_run_here_is_run_by_another_test(section: tuple[str, str]) -> None:
    assert any((block.page, block.heading) == section for block in blocks())
    module, call = SECTIONS_ELSEWHERE[section]
    text = (ROOT / module).read_text(encoding="utf-8")
    assert call in text and all(part in text for part in section)


@pytest.mark.parametrize("command", of_make())
def test_a_make_command_exists(command: str) -> None:
    verb = shlex.split(command)
    done = subprocess.run(
        ["make", "--dry-run", *verb[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_block_says_what_it_is() -> None:
    known = OTHER_LANGUAGES | {"sh", "python"}
    assert [f"{block.page}:{block.line}" for block in blocks() if block.language not in known] == []


def test_every_verb_that_the_pages_name_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = {
        verb
        for page in pages()
        for verb in re.findall(r"`make ([a-z-]+)", (ROOT / page).read_text(encoding="utf-8"))
    }
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


def test_what_the_pages_say_to_set_is_read_by_the_compose_file() -> None:
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(AEROBEE_\w+_(?:HOST|PORT))[`=]", page)) - {"AEROBEE_LISTEN_PORT"}
    assert named
    assert {name for name in named if f"${{{name}:-" in compose} == named
