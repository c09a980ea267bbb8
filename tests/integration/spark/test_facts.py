"""`aerobee facts --every` and `aerobee report --facts` as programs, and the program of
docs/spark.md that lands a table of one's own. What a table says of a group stands in
test_one_session.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aerobee_client import AdminClient
from aerobee_spark.report.request import LOCAL, SPARK
from aerobee_spark.table.files import FactsFiles
from support.client.fake_broker import FakeCluster
from support.clock.polling import until_sync
from support.processes.service import namesrv_and_broker
from support.spark import class_archive
from support.spark.recipe import TOPIC, Recipe, send

GROUP = "arrivals"
# Spark's start, on a machine that is busy.
START_S = 120.0


def run(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "aerobee_spark", command, *arguments, "--quiet", "--json"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize(
    "engine", [LOCAL, pytest.param(SPARK, marks=[pytest.mark.spark, pytest.mark.slow])]
)
def test_a_job_that_goes_on_lands_what_comes_until_it_is_stopped(
    cluster: FakeCluster, tmp_path: Path, engine: str
) -> None:
    broker, table = cluster["broker-a"], tmp_path / "table"
    landing = ["--namesrv", cluster.namesrv, "--topic", "t", "--table", str(table)]
    broker.put("t", b"first")
    command = [sys.executable, "-m", "aerobee_spark", "facts", *landing, "--every", "1s", "--quiet"]
    command += ["--engine", engine]
    environment = dict(os.environ)
    if engine == SPARK:
        environment[class_archive.VARIABLE] = class_archive.java_options()
    job = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
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


@pytest.mark.spark
@pytest.mark.slow
def test_a_table_of_one_s_own_has_a_batch_that_is_repeated_once(tmp_path: Path) -> None:
    """In Parquet; in Delta: tests/cluster/test_delta.py."""
    data = tmp_path / "services"
    data.mkdir()
    with namesrv_and_broker(data) as (namesrv, _):
        with AdminClient(namesrv.address) as admin:
            admin.create_topic(TOPIC, queues=2)
        recipe = Recipe(tmp_path, namesrv.address, "orders-table", "parquet")
        send(namesrv.address, 50)
        assert recipe.run() == (50, 50)
        recipe.forget_last_commit()
        send(namesrv.address, 30)
        assert recipe.run() == (80, 80)
