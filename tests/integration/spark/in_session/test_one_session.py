"""Landings and reports as commands in one Spark session: what a facts table says of a group, and
that both engines give the same report."""

from __future__ import annotations

import csv
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from aerobee_spark.report.request import LOCAL, SPARK
from aerobee_spark.table import rows
from aerobee_spark.table.files import FactsFiles
from aerobee_wire import topics
from support.client.fake_broker import FakeBroker, FakeCluster
from support.spark.in_session import Run, commands_in
from support.spark.random_dead_letters import TAGS, put_random

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

GROUP = "arrivals"
DEAD, RETRIES = topics.dead_letter_topic(GROUP), topics.retry_topic(GROUP)
SEED = 20_130_101
MESSAGES = 700
KEY = ("topic", "brokerName", "queueId", "queueOffset")
# Keys of the summary that differ between any two reports.
OF_THE_RUN = {"engine", "generated_at", "generated_timestamp_ms", "trend"}
# What depends on whether a report is of brokers or of a table.
ASIDE = {*OF_THE_RUN, "queues", "expires", "group_settings", "states_unknown"}


@pytest.fixture(scope="module")
def run(spark: SparkSession) -> Iterator[Run]:
    with commands_in(spark) as running:
        yield running


def report(run: Run, out: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    of_local = () if "--engine" in arguments else ("--engine", LOCAL)
    made = run(
        *("report", "--group", GROUP, "--out", str(out), "--quiet", "--json"),
        *(*of_local, *arguments),
    )
    assert made.returncode == code, made.stderr
    summary: dict[str, Any] = json.loads(made.stdout)
    return summary


def without_ages(value: Any) -> Any:
    """Ages count from the moment of the report."""
    return {k: v for k, v in value.items() if k != "age_ms"} if isinstance(value, dict) else value


# ---- a facts table ----


def died(broker: FakeBroker, number: int) -> None:
    named = {"TAGS": f"T{number % 3}", "KEYS": f"k{number % 2}", "UNIQ_KEY": f"ID{number}"}
    named |= {"RETRY_TOPIC": "flights", "DLQ_REASON": "ValueError"}
    stored = 1_760_000_000_000 + 1000 * number
    broker.put(RETRIES, b"{}", named=named, store_timestamp_ms=stored, reconsume_times=1)
    broker.put(DEAD, b"{}", named=named, store_timestamp_ms=stored + 500, reconsume_times=2)


def figures(summary: dict[str, Any]) -> dict[str, Any]:
    return {key: without_ages(value) for key, value in summary.items() if key not in ASIDE}


def test_a_facts_table_reports_what_the_brokers_had(
    run: Run, cluster: FakeCluster, tmp_path: Path
) -> None:
    """Spark writes the first part of the table, and the local engine the second one."""
    a, b = cluster["broker-a"], cluster["broker-b"]
    for number in range(20):
        died(b if number % 4 == 0 else a, number)
    table = tmp_path / "table"
    landing = ["--namesrv", cluster.namesrv, "--group", GROUP, "--table", str(table)]
    first = run("facts", *landing, "--engine", SPARK, "--quiet", "--json")
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["rows"] == 40
    assert 0 < len(list(table.glob("run=*/batch=*/*.parquet"))) <= 2, "a file for each core"
    of_brokers = report(run, tmp_path / "one", "--namesrv", cluster.namesrv)
    of_table = report(run, tmp_path / "two", "--facts", str(table))
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
    second = run("facts", *landing, "--quiet", "--json")
    assert second.returncode == 3, second.stderr
    result = json.loads(second.stdout)
    assert (result["rows"], result["lost"], len(result["away"])) == (8, 2, 1)
    later = report(run, tmp_path / "three", "--facts", str(table), code=3)
    assert (later["dead_letters"], later["retries"]["records"]) == (23, 25)
    assert [problem.partition(":")[0] for problem in later["problems"]] == [
        f"queue 0 of {DEAD} on broker-a"
    ]
    window = ["--since", "1760000020000", "--kind", "dlq", "--no-bodies"]
    newest = report(run, tmp_path / "four", "--facts", str(table), *window)
    assert (newest["complete"], newest["dead_letters"]) == (True, 3)
    died(a, 25)
    assert run("facts", *landing, "--quiet").returncode == 3
    joined = run("facts", "compact", "--table", str(table), "--json")
    assert json.loads(joined.stdout)["rows"] == 48, joined.stderr
    again = report(run, tmp_path / "five", "--facts", str(table), code=3)
    assert (again["dead_letters"], again["retries"]["records"]) == (24, 26)


def test_a_job_without_its_checkpoint_lands_everything_again_and_each_message_is_there_once(
    run: Run, cluster: FakeCluster, tmp_path: Path
) -> None:
    broker, table = cluster["broker-a"], tmp_path / "table"
    landing = ["--namesrv", cluster.namesrv, "--topic", "t", "--table", str(table), "--quiet"]
    landing += ["--engine", SPARK]

    def lands(count: int, *, rows: int) -> None:
        for _ in range(count):
            broker.put("t", b"more")
        done = run("facts", *landing, "--batch-size", "60", "--json")
        assert (done.returncode, json.loads(done.stdout)["rows"]) == (0, rows), done.stderr

    lands(100, rows=100)
    shutil.rmtree(table / "_checkpoint")
    lands(20, rows=120)
    assert keys_in(table) == Counter(("t", "broker-a", 0, offset) for offset in range(120))
    assert run("facts", "compact", "--table", str(table)).returncode == 0
    assert keys_in(table) == Counter(("t", "broker-a", 0, offset) for offset in range(120))


def keys_in(table: Path) -> Counter[tuple[Any, ...]]:
    files = FactsFiles(table)
    return Counter(
        tuple(row[name] for name in KEY)
        for batch in rows.read(files, files.snapshot())
        for row in batch.select(KEY).to_pylist()
    )


# ---- both engines ----


def test_both_engines_give_the_same_report(run: Run, cluster: FakeCluster, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    for broker in cluster.brokers.values():
        put_random(broker, rng, MESSAGES // 2)
        broker.queue(DEAD).min_offset = 3
        broker.queue(RETRIES, 1).corrupt = {5}
    redacted = ("--namesrv", cluster.namesrv, "--redact", "trace,carrier,ORIGIN_MESSAGE_ID")
    local, spark = (
        report(run, tmp_path / engine, *redacted, "--engine", engine, code=3)
        for engine in (LOCAL, SPARK)
    )
    assert (local["engine"], spark["engine"]) == (LOCAL, SPARK)
    assert set(local) == set(spark)
    for key in set(local) - OF_THE_RUN:
        assert without_ages(local[key]) == without_ages(spark[key]), f"{key}, seed {SEED}"
    assert local["complete"] is False and local["dead_letters"] > MESSAGES / 2
    assert len(local["dead_letters_by_tag"]) == len(TAGS) - 1
    tables = [pq.read_table(tmp_path / engine / "facts") for engine in (LOCAL, SPARK)]
    facts = [
        sorted(table.to_pylist(), key=lambda row: [str(row[name]) for name in KEY])
        for table in tables
    ]
    types = [[(field.name, field.type) for field in table.schema] for table in tables]
    assert types[0] == types[1]
    assert facts[0] == facts[1]
    for name in ("dead_letters.csv", "samples.csv", "poison_keys.csv"):
        lines = [
            sorted((tmp_path / engine / "csv" / name).read_text("utf-8-sig").splitlines())
            for engine in (LOCAL, SPARK)
        ]
        assert lines[0] == lines[1]


@pytest.mark.parametrize("engine", [LOCAL, SPARK])
def test_dead_letters_of_one_cause_are_a_cluster_and_retries_in_place_are_unknown(
    run: Run, cluster: FakeCluster, tmp_path: Path, engine: str
) -> None:
    trace = '  File "/app/cards.py", line 12, in pay\n    post(url)\n'
    for i in range(3):
        failure = {
            "DLQ_REASON": "Timeout",
            "DLQ_REASON_DESCRIPTION": f"order {i} took {i}.5 s",
            "DLQ_STACK_TRACE": trace,
        }
        cluster["broker-a"].put(DEAD, b"{}", named=failure, reconsume_times=2)
    summary = report(run, tmp_path, "--namesrv", cluster.namesrv, "--engine", engine)
    (found,) = summary["clusters"]
    assert (found["reason"], found["frame"], found["text"], found["dead_letters"]) == (
        *("Timeout", "cards.py in pay", "order # took # s", 3),
    )
    page = (tmp_path / "report.html").read_text("utf-8")
    assert page.index("<h2>Why</h2>") < page.index("<h2>Timeline</h2>")
    assert found["redrive"] in page
    assert summary["retries"]["messages"] is None


@pytest.mark.parametrize("engine", [LOCAL, SPARK])
def test_a_dead_letter_names_its_lite_topic(
    run: Run, cluster: FakeCluster, tmp_path: Path, engine: str
) -> None:
    cluster["broker-a"].put(DEAD, b"{}", named={"UNIQ_KEY": "ID0", "__LITE_TOPIC": "s-4711"})
    cluster["broker-a"].put(DEAD, b"{}", named={"UNIQ_KEY": "ID1"})
    summary = report(run, tmp_path, "--namesrv", cluster.namesrv, "--engine", engine)
    lite_topics = {"ID0": "s-4711", "ID1": ""}
    assert {each["message_id"]: each["lite_topic"] for each in summary["samples"]} == lite_topics
    with (tmp_path / "csv" / "dead_letters.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = {row["message_id"]: row["lite_topic"] for row in csv.DictReader(file)}
    assert rows == lite_topics
    assert "<dd>s-4711</dd>" in (tmp_path / "report.html").read_text("utf-8")
