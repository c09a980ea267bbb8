"""The wheels as a stranger has them: installed offline into empty environments, used by what docs
say. `make dist` runs this for each Python that is there, `make test` for its own."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tarfile
import time
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from aerobee_wire.version import VERSION
from support.repository.installed import Environment
from support.repository.tree import ROOT, Distribution, distributions

pytestmark = pytest.mark.slow

MB = 1_000_000
CLIENT_PACKAGES, CLIENT_BYTES = 6, 40 * MB
COMMANDS, SECONDS = 6, 120.0
READY = re.compile(r"ready namesrv=(\S+) broker=(\S+) proxy=(\S+)\n")

USERS_PROGRAM = """
import threading

from aerobee_client import (
    AdminClient,
    ConsumeFromWhere,
    DeadLetter,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
)

received: list[bytes] = []
settled = threading.Semaphore(0)


def bill(message: ReceivedMessage) -> None:
    received.append(message.body)
    settled.release()
    if message.tag == "unpaid":
        raise DeadLetter("nothing was paid")


with AdminClient() as admin:
    admin.create_topic("orders")
    admin.create_group("billing")
with Producer() as producer:
    producer.send(Message("orders", b"seven", tag="paid"))
    producer.send(Message("orders", b"eight", tag="unpaid"))
with PushConsumer("billing", bill, consume_from_where=ConsumeFromWhere.FIRST_OFFSET) as consumer:
    consumer.subscribe("orders")
    for _ in range(2):
        assert settled.acquire(timeout=60)
print(sorted(received))
"""


def wheel(built: Path, distribution: Distribution) -> zipfile.ZipFile:
    [path] = built.glob(f"{distribution.name.replace('-', '_')}-*.whl")
    return zipfile.ZipFile(path)


def metadata(archive: zipfile.ZipFile) -> Message:
    [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(archive.read(name).decode())


def documented(heading: str, language: str) -> str:
    """The first block of a language under a heading of docs/testing.md."""
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    section = page.partition(f"## {heading}\n")[2]
    block = re.search(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert block is not None
    return block[1]


# ---- what is in them ----


def test_there_are_three_sdists_and_three_wheels(built: Path) -> None:
    names = [d.name.replace("-", "_") for d in distributions()]
    assert {path.name for path in built.iterdir()} == {
        *(f"{name}-{VERSION}.tar.gz" for name in names),
        *(f"{name}-{VERSION}-py3-none-any.whl" for name in names),
    }


@pytest.mark.parametrize("distribution", distributions(), ids=lambda d: d.name)
def test_a_wheel_has_types_licence_and_a_description(
    built: Path, distribution: Distribution
) -> None:
    with wheel(built, distribution) as archive:
        names = archive.namelist()
        about = metadata(archive)
    info = f"{distribution.name.replace('-', '_')}-{VERSION}.dist-info"
    assert f"{info}/licenses/LICENSE" in names
    packages = {path.name: path for path in distribution.packages}
    assert {name.split("/")[0] for name in names} == {*packages, info}
    written = {name for name, path in packages.items() if (path / "py.typed").exists()}
    assert written and {f"{name}/py.typed" for name in written} <= set(names)
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    assert (about["Name"], about["Version"]) == (distribution.name, VERSION)
    assert about["License-Expression"] == "Apache-2.0"
    assert about.get_payload() == (distribution.folder / distribution.metadata["readme"]).read_text(
        encoding="utf-8"
    )
    # An address of a project that does not exist yet would be made up.
    assert about.get_all("Project-URL") is None


@pytest.mark.parametrize("distribution", distributions(), ids=lambda d: d.name)
def test_a_wheel_needs_the_others_in_its_own_version(
    built: Path, distribution: Distribution
) -> None:
    with wheel(built, distribution) as archive:
        needs = metadata(archive).get_all("Requires-Dist") or []
    ours = [need for need in needs if need.startswith("aerobee")]
    assert len(ours) == len(distribution.exact) == 1
    assert all(f"=={VERSION}" in need for need in ours)


def test_entry_points_are_the_command_and_the_plugin(built: Path) -> None:
    found = {}
    for distribution in distributions():
        with wheel(built, distribution) as archive:
            for name in archive.namelist():
                if name.endswith("/entry_points.txt"):
                    found[distribution.name] = archive.read(name).decode().split("\n\n")
    assert found == {
        "aerobee": ["[console_scripts]\naerobee = aerobee_cli.main:main\n"],
        "aerobee-client": [
            "[pytest11]\naerobee_client.testing.plugin = aerobee_client.testing.plugin\n"
        ],
    }


@pytest.mark.parametrize("distribution", distributions(), ids=lambda d: d.name)
def test_a_checkout_installs_what_the_built_wheel_has(
    built: Path, distribution: Distribution, tmp_path: Path
) -> None:
    """`pip install ./clients/python .`, of which this is the part that builds."""
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    subprocess.run(
        [*pip, "--wheel-dir", str(tmp_path), str(distribution.folder)],
        check=True,
        capture_output=True,
    )
    tracked = {
        str(Path(package.name, path.relative_to(package)))
        for package in distribution.packages
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with wheel(tmp_path, distribution) as ours, wheel(built, distribution) as theirs:
        assert sorted(ours.namelist()) == sorted(theirs.namelist())
        assert tracked <= set(ours.namelist())


def test_an_sdist_has_no_link(built: Path) -> None:
    for path in built.glob("*.tar.gz"):
        with tarfile.open(path) as archive:
            assert [member.name for member in archive if not member.isfile()] == []


# ---- what they do ----


def test_the_client_is_small(built: Path, version: str, tmp_path: Path) -> None:
    stranger = Environment(tmp_path, version, built)
    stranger.install("--compile", "aerobee-client")
    others = stranger.installed() - {"aerobee-client"}
    assert len(others) <= CLIENT_PACKAGES, others
    [site] = (tmp_path / "env" / "lib").glob("python*/site-packages")
    sizes = {
        path: sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        for path in site.iterdir()
        if path.is_dir() and not path.name.startswith("pip")
    }
    assert sum(sizes.values()) < CLIENT_BYTES, sizes
    missing = stranger.finished((str(stranger.bin / "python"), "-c", "import aerobee_broker"), {})
    assert missing.returncode != 0 and "ModuleNotFoundError" in missing.stderr
    shown = "import aerobee_client as a; a.Producer, a.AdminClient; print(a.__version__)"
    assert stranger.python(shown) == f"{VERSION}\n"


@pytest.fixture(scope="module")
def stranger(built: Path, version: str, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("stranger") / version, version, built)


def test_a_stranger_gets_from_nothing_to_a_test_that_passes(stranger: Environment) -> None:
    """In the order of docs/testing.md; the next test uses the environment, too."""
    block = documented("A first test", "sh")
    assert len(block.splitlines()) <= COMMANDS
    begin = time.monotonic()
    (stranger.home / "test_orders.py").write_text(documented("A first test", "python"))
    output = stranger.run("bash", "-euc", block)
    assert "1 passed" in output, output
    assert time.monotonic() - begin < SECONDS


def test_the_command_says_what_the_report_needs(stranger: Environment) -> None:
    command = (str(stranger.bin / "aerobee"), "report", "--group", "g", "--out", "report")
    done = stranger.finished(command, {})
    assert done.returncode == 1 and "pip install 'aerobee-spark[local]'" in done.stderr


def test_services_command_report_and_types_work(stranger: Environment) -> None:
    stranger.install("aerobee-spark[local]", "mypy")
    told = stranger.run(str(stranger.bin / "aerobee"), "--version")
    assert re.fullmatch(rf"aerobee {re.escape(VERSION)} \(commit [0-9a-f]{{12}}(-dirty)?\)\n", told)
    told = stranger.python("import aerobee_spark; print(aerobee_spark.__version__)")
    assert told == f"{VERSION}\n"

    free = shlex.split(
        "--namesrv-port 0 --broker-port 0 --proxy-port 0 --console-port 0 --data data"
    )
    with subprocess.Popen(
        [stranger.bin / "aerobee", "up", *free],
        cwd=stranger.home,
        env=stranger.env,
        stdout=subprocess.PIPE,
        stderr=(stranger.home / "services.log").open("wb"),
        text=True,
    ) as up:
        try:
            assert up.stdout is not None
            ready = READY.match(up.stdout.readline())
            assert ready, (stranger.home / "services.log").read_text()
            _use(stranger, ready[1])
        finally:
            up.terminate()
        assert up.wait(30) == 0


def _use(stranger: Environment, namesrv: str) -> None:
    program = stranger.home / "bill.py"
    program.write_text(USERS_PROGRAM)
    said = stranger.run(str(stranger.bin / "python"), "-m", "mypy", "--strict", str(program))
    assert said.startswith("Success"), said
    said = stranger.run(str(stranger.bin / "python"), str(program), NAMESRV_ADDR=namesrv)
    assert said == "[b'eight', b'seven']\n"
    report = shlex.split("--namesrv H report --group billing --out report")
    report[1] = namesrv
    stranger.run(str(stranger.bin / "aerobee"), *report)
    assert "nothing was paid" in (stranger.home / "report" / "report.html").read_text()
