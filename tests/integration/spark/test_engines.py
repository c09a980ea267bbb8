"""The engines of the report: how one is chosen; the local one needs neither Spark nor Java. That it
gives what Spark gives stands in test_one_session.py."""

from __future__ import annotations

import csv
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from aerobee_spark.errors import ReportError
from aerobee_spark.jvm import java
from aerobee_spark.report import job, publishing
from aerobee_spark.report.engines import choice
from aerobee_spark.report.request import AUTO, LOCAL, SPARK, ReportRequest
from aerobee_wire import topics
from support.client.fake_broker import FakeCluster
from support.codes import raises_about

GROUP = "arrivals"
DEAD = topics.dead_letter_topic(GROUP)
KEY = ("topic", "brokerName", "queueId", "queueOffset")


def made(cluster: FakeCluster, out: Path, engine: str, **asked: Any) -> dict[str, Any]:
    request = ReportRequest(cluster.namesrv, GROUP, out, engine=engine, **asked)
    summary = job.run(request, lambda step: None)
    assert summary["engine"] == engine
    return json.loads(json.dumps(summary))  # type: ignore[no-any-return]


def test_the_local_engine_splits_its_file_and_its_reads(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerobee_spark.report.engines.local_facts.GROUP_ROWS", 100)
    for queue_id in (0, 1):
        for i in range(250):
            cluster["broker-a"].put(DEAD, b"%d" % i, queue_id=queue_id)
    cluster["broker-a"].most_messages = 60
    # Brackets and stars are patterns to DuckDB, but not to the report.
    out = tmp_path / "re[port] *"
    summary = made(cluster, out, LOCAL)
    assert (summary["complete"], summary["dead_letters"]) == (True, 500)
    table = pq.read_table(out / "facts" / "part-00000.parquet")
    expected = [(queue_id, i) for queue_id in (0, 1) for i in range(250)]
    found = zip(*(table.column(name).to_pylist() for name in KEY[2:]), strict=True)
    assert list(found) == expected
    assert sorted(path.name for path in out.iterdir()) == sorted(publishing.PARTS)


def test_what_died_after_a_redrive_is_reported(cluster: FakeCluster, tmp_path: Path) -> None:
    for i, times in enumerate((None, "1", "1", "2", None)):
        redriven = {"REDRIVE_TIMES": times, "REDRIVE_TIMESTAMP": str(1_000 + i)} if times else {}
        cluster["broker-a"].put(DEAD, b"{}", named={"UNIQ_KEY": f"ID{i}", **redriven})
    summary = made(cluster, tmp_path, LOCAL)
    assert summary["dead_lettered_after_redrive"] == 3
    assert summary["dead_letters_by_redrive_times"] == {"1": 2, "2": 1}
    with (tmp_path / "csv" / "dead_letters.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = {row["message_id"]: row for row in csv.DictReader(file)}
    which = {key: (row["redrive_times"], row["redrive_timestamp_ms"]) for key, row in rows.items()}
    assert which == {
        "ID0": ("", ""),
        "ID1": ("1", "1001"),
        "ID2": ("1", "1002"),
        "ID3": ("2", "1003"),
        "ID4": ("", ""),
    }
    assert "Dead-lettered after a redrive" in (tmp_path / "report.html").read_text("utf-8")


def test_states_that_a_broker_does_not_tell_are_unknown(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster["broker-a"].put(DEAD, b"{}", named={"UNIQ_KEY": "ID0"})
    summary = made(cluster, tmp_path, LOCAL)
    assert summary["dead_letters_by_state"] == {"unknown": 1}
    assert list(summary["states_unknown"]) == ["broker-a"]
    assert '<dd class="value">?</dd>' in (tmp_path / "report.html").read_text("utf-8")


def test_an_empty_group_is_reported_on_locally(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster["broker-a"].groups.add(GROUP)
    summary = made(cluster, tmp_path, LOCAL)
    assert (summary["complete"], summary["dead_letters"], summary["queues"]) == (True, 0, [])


def test_a_record_that_cannot_be_decoded_fails_the_report(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster["broker-a"].put(DEAD, b"{}")
    cluster["broker-a"].queue(DEAD).records[0] = b"\0\0\0\x10" + bytes(12)
    with raises_about(ReportError, f"queue 0 of {DEAD} on broker-a"):
        made(cluster, tmp_path, LOCAL)
    assert list(tmp_path.iterdir()) == []


# Fails when anything imports what the first argument names, whatever is installed.
BLOCKED = """
import runpy, sys
from importlib.abc import MetaPathFinder
names = sys.argv.pop(1).split(",")
class Blocked(MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname.partition(".")[0] in names:
            raise ModuleNotFoundError(f"{fullname} is not installed", name=fullname)
sys.meta_path.insert(0, Blocked())
real = __import__("importlib.util").util.find_spec
__import__("importlib.util").util.find_spec = (
    lambda name, package=None: None if name in names else real(name, package)
)
runpy.run_module("aerobee_spark", run_name="__main__")
"""


def report_without(names: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The report in a Python that has not the packages `names`."""
    return subprocess.run(
        [sys.executable, "-c", BLOCKED, names, "report", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environ},
    )


def test_who_only_reports_needs_neither_pyspark_nor_java(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    for i in range(3):
        cluster["broker-a"].put(DEAD, b"{}", named={"TAGS": "UA", "KEYS": f"k{i}"})
    made = report_without(
        "pyspark,py4j,pandas",
        *("--namesrv", cluster.namesrv, "--group", GROUP, "--out", str(tmp_path)),
        JAVA_HOME=str(tmp_path / "nowhere"),
    )
    assert made.returncode == 0, made.stderr
    summary = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    assert (summary["engine"], summary["dead_letters_by_tag"]) == (LOCAL, {"UA": 3})
    assert "the local engine" in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.parametrize(("engine", "package"), [(LOCAL, "duckdb"), (SPARK, "pyspark")])
def test_an_engine_that_is_not_installed_is_named(
    engine: str, package: str, cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster["broker-a"].put(DEAD, b"{}")
    made = report_without(
        package,
        *("--namesrv", cluster.namesrv, "--group", GROUP, "--out", str(tmp_path)),
        *("--engine", engine),
    )
    assert made.returncode == 1
    assert f"aerobee-spark[{engine}]" in made.stderr and made.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_choices_are_by_number_then_by_what_there_is() -> None:
    for messages, limit in itertools.product((0, 5, 10), (0, 5)):
        chosen = choice.choose(AUTO, messages, local_up_to=limit)
        assert chosen == choice.Choice(LOCAL if messages <= limit else SPARK)


def test_without_java_many_messages_are_for_the_local_engine_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(java, "packaged_java", lambda: None)
    chosen = choice.choose(AUTO, 10, local_up_to=5)
    assert chosen.engine == LOCAL and "Java" in chosen.because
    with raises_about(ReportError, str(tmp_path / "bin" / "java")):
        choice.choose(SPARK, 10, local_up_to=5)
