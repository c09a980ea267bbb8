"""The engines of the report: the local one gives what Spark gives, and needs neither Spark nor
Java."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from aerobee_spark.errors import ReportError
from aerobee_spark.report import job, publishing
from aerobee_spark.report.engines import choice
from aerobee_spark.report.request import AUTO, LOCAL, SPARK, ReportRequest
from aerobee_wire import compression, message_id, properties, record, topics
from support.client.fake_broker import FakeBroker, FakeCluster
from support.codes import raises_about

GROUP = "arrivals"
DEAD, RETRY = topics.dead_letter_topic(GROUP), topics.retry_topic(GROUP)
SEED = 20_130_101
MESSAGES = 700
# Keys of the summary that differ between any two reports.
OF_THE_RUN = {"engine", "generated_at", "generated_timestamp_ms", "trend"}

TAGS = (None, "", "UA", "AA", "B6", "été", "=1+1")
REASONS = (None, "LookupError", "Größe", "x" * 300)
KEYS = (None, "", "a", "a b", "b  a", "k1 k2 k1", "ключ")
ORIGINS = (None, "flights", "weather")
HOSTS = (message_id.pack_host("10.0.0.9:50000"), message_id.pack_host("[2001:db8::7]:1"))
# Text, JSON, no UTF-8, empty.
BODIES = (b"late", b'{"carrier": "UA", "delay": null}', b"\xff\xfe\x00", b"", b"\xc3\xa9" * 900)


def put_random(broker: FakeBroker, rng: random.Random, count: int) -> None:
    """Dead letters and retries with everything that a producer may send, in queues of equal ids on
    every broker."""
    for _ in range(count):
        fields, named = random_message(rng)
        encoded = properties.encode(named)
        if rng.random() < 0.1:
            encoded += rng.choice([b"no\x01\xff\xfe\x02", b"UNIQ_KEY\x01twice\x02", b"cut"])
        broker.put(
            rng.choice([DEAD, DEAD, RETRY]),
            queue_id=rng.randrange(2),
            store_timestamp_ms=1_760_000_000_000 + rng.randrange(40) * 60_000,
            properties=encoded,
            reconsume_times=rng.randrange(17),
            **fields,
        )


def random_message(rng: random.Random) -> tuple[dict[str, Any], Mapping[str, str]]:
    body, flag = rng.choice(BODIES), 0
    if rng.random() < 0.3:
        method, flag = rng.choice(list(compression.SYS_FLAGS.items()))
        body = compression.compress(body, method, 3)
        if rng.random() < 0.5:
            body = body[: rng.randrange(len(body) + 1)] + rng.randbytes(rng.randrange(3))
    host = rng.choice(HOSTS)
    flag |= record.BORN_HOST_V6 if len(host) > 8 else 0
    # Also times that no calendar has.
    born = rng.choice([1_759_999_999_000, 1_760_000_900_000, -(1 << 62), (1 << 62)])
    named = {
        "UNIQ_KEY": f"{rng.randrange(MESSAGES // 3):032X}",
        "TAGS": rng.choice(TAGS),
        "KEYS": rng.choice(KEYS),
        "DLQ_REASON": rng.choice(REASONS),
        "DLQ_REASON_DESCRIPTION": rng.choice([None, "no arrival"]),
        "DLQ_ORIGIN_TOPIC": rng.choice(ORIGINS),
        "RETRY_TOPIC": rng.choice(ORIGINS),
        "ORIGIN_MESSAGE_ID": rng.choice([None, "0A"]),
        "trace": rng.choice([None, "t-1"]),
    }
    fields = {"body": body, "sys_flag": flag, "born_timestamp_ms": born, "born_host": host}
    return fields, {name: value for name, value in named.items() if value is not None}


def made(cluster: FakeCluster, out: Path, engine: str, **asked: Any) -> dict[str, Any]:
    request = ReportRequest(cluster.namesrv, GROUP, out, engine=engine, **asked)
    summary = job.run(request, lambda step: None)
    assert summary["engine"] == engine
    return json.loads(json.dumps(summary))  # type: ignore[no-any-return]


@pytest.mark.spark
@pytest.mark.slow
def test_both_engines_give_the_same_report(cluster: FakeCluster, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    for broker in cluster.brokers.values():
        put_random(broker, rng, MESSAGES // 2)
        broker.queue(DEAD).min_offset = 3
        broker.queue(RETRY, 1).corrupt = {5}
    hidden = ("trace", "carrier", "ORIGIN_MESSAGE_ID")
    local = made(cluster, tmp_path / "local", LOCAL, redact=hidden)
    spark = made(cluster, tmp_path / "spark", SPARK, redact=hidden)
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


KEY = ("topic", "brokerName", "queueId", "queueOffset")


def without_ages(value: Any) -> Any:
    """Ages count from the moment of the report."""
    return {k: v for k, v in value.items() if k != "age_ms"} if isinstance(value, dict) else value


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
    chosen = choice.choose(AUTO, 10, local_up_to=5)
    assert chosen.engine == LOCAL and "Java" in chosen.because
    with raises_about(ReportError, str(tmp_path / "bin" / "java")):
        choice.choose(SPARK, 10, local_up_to=5)
