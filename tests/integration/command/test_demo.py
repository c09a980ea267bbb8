"""`aerobee demo` as users run it: real data, the Spark report, no process left behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from support.clock.polling import until_sync
from support.processes.demo import DEMO_TIMEOUT_S, Demo, check_failover, check_figures, no_java


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
    for text in ("messages sent", "2,000", "mean-arrival-delay", str(demo.out / "report.html")):
        assert text in demo.stdout


@pytest.mark.slow
def test_the_demo_survives_a_broker_that_is_killed_twice_and_needs_no_java(tmp_path: Path) -> None:
    """The second kill hits the broker while it starts again."""
    messages = 10_000
    with Demo(tmp_path, "--messages", str(messages), **no_java(tmp_path)) as demo:
        until_sync(lambda: demo.stored() > messages / 5, "a fifth of the flights is stored")
        killed = demo.service_pid("aerobee_broker")
        os.kill(killed, signal.SIGKILL)

        def restarted() -> int | None:
            found = demo.service_pid("aerobee_broker")
            return found if found != killed else None

        again = until_sync(restarted, "another broker runs", retry_on=(AssertionError,))
        assert again is not None
        os.kill(again, signal.SIGKILL)
        assert demo.wait(DEMO_TIMEOUT_S) == 0
        demo.check_nothing_is_left()
    assert demo.stdout.count("  broker ended by SIGKILL") == 2
    check_figures(demo.summary(), messages)
    assert demo.summary()["engine"] == "local"


@pytest.mark.slow
def test_the_figures_hold_when_the_master_of_three_brokers_is_killed(tmp_path: Path) -> None:
    """The demo promotes. Elected by etcd: tests/fault/replication/test_demo_failover.py."""
    with Demo(tmp_path, "--failover", "--messages", "4000", **no_java(tmp_path)) as demo:
        assert demo.wait(DEMO_TIMEOUT_S) == 0
        demo.check_nothing_is_left()
    check_failover(demo, "promoted")
    check_figures(demo.summary(), 4_000)


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
