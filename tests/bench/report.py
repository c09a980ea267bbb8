"""The report on ten thousand dead letters and retries, from the command to its files: by the local
engine against Spark."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from aerobee_client import AdminClient, Message, Producer
from aerobee_spark.report.request import LOCAL, SPARK
from aerobee_wire import topics
from bench.measure import Result
from support.processes.service import namesrv_and_broker

GROUP = "bench"
MESSAGES = 10_000
BATCH = 500
ROUNDS = 3
# Of the time that Spark takes, and seconds.
TARGET = 1 / 8
LIMIT_S = 2.0


async def results() -> list[Result]:
    times: dict[str, list[float]] = {LOCAL: [], SPARK: []}
    with (
        tempfile.TemporaryDirectory() as folder,
        namesrv_and_broker(Path(folder)) as (namesrv, _),
    ):
        fill(namesrv.address)
        for _ in range(ROUNDS):
            for engine in (SPARK, LOCAL):
                times[engine].append(report(namesrv.address, engine, Path(folder, engine)))
    ours, spark = (statistics.median(times[engine]) for engine in (LOCAL, SPARK))
    note = f"median of {ROUNDS}, worst {max(times[LOCAL]):.2f} s; baseline: "
    return [
        Result("report_10k", "s", ours, spark, ours / spark, TARGET, f"{note}--engine spark"),
        Result("report_10k_s", "s", ours, LIMIT_S, ours / LIMIT_S, 1.0, f"{note}the limit"),
    ]


def fill(namesrv: str) -> None:
    """A fifth of the messages are dead letters, the others retries: 200 bytes, eight properties."""
    with AdminClient(namesrv) as admin:
        admin.create_group(GROUP)
        for topic in (topics.dead_letter_topic(GROUP), topics.retry_topic(GROUP)):
            admin.create_topic(topic, queues=1)
    with Producer("bench", namesrv=namesrv) as producer:
        for start in range(0, MESSAGES, BATCH):
            dead = start % (5 * BATCH) == 0
            topic = (topics.dead_letter_topic if dead else topics.retry_topic)(GROUP)
            producer.send_batch([message(topic, start + i) for i in range(BATCH)])


def message(topic: str, number: int) -> Message:
    properties = {f"property-{i}": str(number) for i in range(4)}
    return Message(
        topic,
        bytes(200),
        tag=f"tag-{number % 7}",
        keys=f"key-{number % 1000}",
        properties=properties,
    )


def report(namesrv: str, engine: str, out: Path) -> float:
    """Seconds of the command. Raises CalledProcessError."""
    start = time.perf_counter()
    subprocess.run(
        [
            *(sys.executable, "-m", "aerobee_spark", "report", "--group", GROUP, "--quiet"),
            *("--namesrv", namesrv, "--out", str(out), "--engine", engine),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ,
    )
    return time.perf_counter() - start
