"""`aerobee facts` of a group, and `aerobee report --facts`: programs, on brokers whose queues are
lists."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aerobee_spark.table.files import FactsFiles
from aerobee_wire import topics
from support.client.fake_broker import FakeBroker, FakeCluster
from support.clock.polling import until_sync

GROUP = "arrivals"
# Spark's start, on a machine that is busy.
START_S = 120.0
DEAD, RETRIES = topics.dead_letter_topic(GROUP), topics.retry_topic(GROUP)
# Of a report: what depends on when and where it was made.
ASIDE = ("queues", "generated_at", "generated_timestamp_ms", "expires", "trend", "group_settings")
AGES = ("oldest_dead_letter", "newest_dead_letter")


def run(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "aerobee_spark", command, *arguments, "--quiet", "--json"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def report(out: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    made = run("report", "--group", GROUP, "--out", str(out), "--engine", "local", *arguments)
    assert made.returncode == code, made.stderr
    summary: dict[str, Any] = json.loads(made.stdout)
    return summary


def died(broker: FakeBroker, number: int) -> None:
    named = {"TAGS": f"T{number % 3}", "KEYS": f"k{number % 2}", "UNIQ_KEY": f"ID{number}"}
    named |= {"RETRY_TOPIC": "flights", "DLQ_REASON": "ValueError"}
    stored = 1_760_000_000_000 + 1000 * number
    broker.put(RETRIES, b"{}", named=named, store_timestamp_ms=stored, reconsume_times=1)
    broker.put(DEAD, b"{}", named=named, store_timestamp_ms=stored + 500, reconsume_times=2)


def figures(summary: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in summary.items() if key not in ASIDE}
    for key in AGES:
        kept[key] = {name: value for name, value in kept[key].items() if name != "age_ms"}
    return kept


@pytest.mark.spark
@pytest.mark.slow
def test_a_facts_table_reports_what_the_brokers_had(cluster: FakeCluster, tmp_path: Path) -> None:
    a, b = cluster["broker-a"], cluster["broker-b"]
    for number in range(20):
        died(b if number % 4 == 0 else a, number)
    table = tmp_path / "table"
    landing = ["--namesrv", cluster.namesrv, "--group", GROUP, "--table", str(table)]
    first = run("facts", *landing)
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["rows"] == 40
    of_brokers = report(tmp_path / "one", "--namesrv", cluster.namesrv)
    of_table = report(tmp_path / "two", "--facts", str(table))
    assert figures(of_table) == figures(of_brokers)
    ends = {
        (queue["topic"], queue["broker_name"]): (queue["end_offset"], queue["upto_ms"])
        for queue in of_table["queues"]
    }
    assert ends[DEAD, "broker-a"] == (15, 1_760_000_019_500)
    # What retention took, and a broker that is away, are in the table still; two letters that were
    # taken before they were landed are told.
    b.stop()
    for number in range(20, 25):
        died(a, number)
    a.queue(DEAD).min_offset = 17
    second = run("facts", *landing)
    assert second.returncode == 3, second.stderr
    result = json.loads(second.stdout)
    assert (result["rows"], result["lost"], len(result["away"])) == (8, 2, 1)
    later = report(tmp_path / "three", "--facts", str(table), code=3)
    assert (later["dead_letters"], later["retries"]["records"]) == (23, 25)
    assert [problem.partition(":")[0] for problem in later["problems"]] == [
        f"queue 0 of {DEAD} on broker-a"
    ]
    window = ["--since", "1760000020000", "--kind", "dlq", "--no-bodies"]
    newest = report(tmp_path / "four", "--facts", str(table), *window)
    assert (newest["complete"], newest["dead_letters"]) == (True, 3)


@pytest.mark.spark
@pytest.mark.slow
def test_a_job_that_goes_on_lands_what_comes_until_it_is_stopped(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    broker, table = cluster["broker-a"], tmp_path / "table"
    landing = ["--namesrv", cluster.namesrv, "--topic", "t", "--table", str(table)]
    broker.put("t", b"first")
    command = [sys.executable, "-m", "aerobee_spark", "facts", *landing, "--every", "1s", "--quiet"]
    job = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        until_sync(lambda: rows_in(table) == 1, "the first message is landed", timeout_s=START_S)
        second = run("facts", *landing)
        assert second.returncode == 1 and str(job.pid) in second.stderr, second.stderr
        for _ in range(3):
            broker.put("t", b"more")
        until_sync(lambda: rows_in(table) == 4, "what came later is landed", timeout_s=START_S)
        job.terminate()
        _, stderr = job.communicate(timeout=START_S)
    finally:
        job.kill()
        job.wait()
    assert (job.returncode, stderr) == (143, "")
    assert rows_in(table) == 4


def rows_in(table: Path) -> int:
    return sum(commit.rows for commit in FactsFiles(table).snapshot())


def test_a_report_is_refused_the_table_of_something_else(tmp_path: Path) -> None:
    tables: dict[str, dict[str, Any]] = {
        "topics": {"topics": ["t"]},
        "other": {"group": "g", "kinds": ["dlq"]},
        "dlq": {"group": GROUP, "kinds": ["dlq"]},
    }
    for name, about in tables.items():
        FactsFiles(tmp_path / name).create(about)
    for name in ("topics", "other", "dlq", "nowhere"):
        out = tmp_path / f"report-{name}"
        made = run("report", "--group", GROUP, "--out", str(out), "--facts", str(tmp_path / name))
        assert made.returncode == 1
        assert made.stderr.startswith("error: ") and made.stderr.count("\n") == 1, made.stderr
        assert str(tmp_path / name) in made.stderr
