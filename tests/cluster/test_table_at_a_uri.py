"""The facts table in HDFS and in S3, on servers of this machine: commits, races, kills, compaction,
reports. In `file:`: tests/fault/spark and tests/integration/spark/in_session.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from aerobee_spark.errors import ReportError
from aerobee_spark.jvm.session import session
from aerobee_spark.table import rows
from aerobee_spark.table.commits import Commit
from aerobee_spark.table.files import FactsFiles
from aerobee_spark.table.hadoop_files import HadoopFiles
from support.clock.polling import until_sync
from support.processes import redriving
from support.processes.command import COMMAND
from support.processes.service import namesrv_and_broker
from support.repository.tree import ROOT
from support.spark.stores.hdfs import hdfs
from support.spark.stores.s3 import CARELESS, s3a

pytestmark = [pytest.mark.spark, pytest.mark.slow]

GROUP, LETTERS = "billing", 3_000
TIMEOUT_S = 600.0
PLACES: dict[str, Callable[[Path], AbstractContextManager[str]]] = {"hdfs": hdfs, "s3a": s3a}


@pytest.fixture(scope="module", params=PLACES)
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The URI of an empty file system."""
    with PLACES[request.param](tmp_path_factory.mktemp(request.param)) as uri:
        yield uri


class Unaware(HadoopFiles):
    """Files whose first look at a name is of the moment before another writer's create: `both`
    have looked before one creates."""

    both: threading.Barrier

    def exists(self, name: str) -> bool:
        found = super().exists(name)
        if not found:
            self.both.wait(TIMEOUT_S)
        return found


def test_a_commit_appears_once_and_a_lock_is_of_one_job(place: str, tmp_path: Path) -> None:
    with session(tmp_path, tmp_path / "log") as spark:
        files = HadoopFiles(spark, f"{place}/commits")
        table = FactsFiles(files)
        table.create({"topics": ["t"]})
        content = bytes(range(256)) * 300
        assert files.create("_commits/x.json", content)
        assert not files.create("_commits/x.json", b"other")
        assert files.read("_commits/x.json") == content
        files.delete("_commits/x.json")
        one, two = (Commit("r", 0, seq, "", 0, ()) for seq in (1, 2))
        table.commit(one)
        with pytest.raises(ReportError):
            table.commit(two)
        assert table.commits() == [one]
        with files.lock("_lock"), pytest.raises(ReportError), files.lock("_lock"):
            pass
        raced = Unaware(spark, f"{place}/commits")
        raced.both = threading.Barrier(2)
        contents = [b"one", b"two"]
        with ThreadPoolExecutor(2) as writers:
            created = list(writers.map(lambda it: raced.create("_commits/y.json", it), contents))
        assert sorted(created) == [False, True]
        assert files.read("_commits/y.json") == contents[created.index(True)]
        if place.startswith("s3a:"):
            careless = HadoopFiles(spark, f"s3a://{CARELESS}/commits")
            with pytest.raises(ReportError), careless.lock("_lock"):
                pass
            assert careless.names("_locks/lock") == []
            hadoop = spark._jsc.hadoopConfiguration()
            hadoop.set("fs.s3a.create.conditional.enabled", "false")
            hadoop.set("fs.s3a.impl.disable.cache", "true")
            with pytest.raises(ReportError):
                HadoopFiles(spark, f"{place}/commits")


def test_each_message_is_landed_once_through_kills(place: str, tmp_path: Path) -> None:
    uri = f"{place}/facts"
    with namesrv_and_broker(tmp_path) as (namesrv, _):
        redriving.fill(namesrv.address, GROUP, "orders", LETTERS)
        given = ("--namesrv", namesrv.address, "--group", GROUP, "--table", uri)
        landing = (*given, "--batch-size", "300", "--json")
        kill_after_a_batch((*COMMAND, "facts", *landing), tmp_path / "killed.log")
        kill_before_a_commit(*landing, "--quiet")
        with session(tmp_path, tmp_path / "log") as spark:
            table = FactsFiles(HadoopFiles(spark, uri))
            with table.lock():
                assert run("facts", *landing, "--quiet").returncode == 1
            committed = table.commits()
            readable = sum(batch.num_rows for batch in rows.read(table, table.snapshot()))
            files = table.parquet(f"run={committed[0].run}")
            written = {name.rpartition("/")[0] for name in files}
        assert readable == sum(commit.rows for commit in committed)
        assert written - {commit.folder for commit in committed}, "files without a commit"
        landed = ran("facts", *landing, "--quiet")
        assert 0 < landed["rows"] == LETTERS - readable < LETTERS
        assert (landed["lost"], landed["away"]) == (0, [])
        assert ran("facts", *landing, "--quiet")["rows"] == 0
    # No broker is asked from here on.
    assert reported(uri, tmp_path / "report") == (LETTERS, LETTERS, True)
    joined = ran("facts", "compact", "--table", uri, "--json")["rows"]
    assert 0 < joined < LETTERS, "the newest batch stays as it is"
    assert reported(uri, tmp_path / "compacted") == (LETTERS, LETTERS, True)


def kill_after_a_batch(command: tuple[str, ...], log: Path) -> None:
    """Kills the command, and Spark's Java by that, once it has committed a batch."""
    with (
        log.open("wb") as out,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        ) as process,
    ):
        until_sync(
            lambda: process.poll() is not None or b"batch 1:" in log.read_bytes(),
            timeout_s=TIMEOUT_S,
        )
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, log.read_text()


def kill_before_a_commit(*arguments: str) -> None:
    """A landing that kills itself between the files of its first batch and their commit."""
    program = (sys.executable, "-m", "support.spark.killed_landing", "written", "0")
    done = subprocess.run(
        [*program, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def ran(*arguments: str) -> Any:
    """What a command prints, which has to succeed."""
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def reported(uri: str, out: Path) -> tuple[int, int, bool]:
    """Dead letters, different messages among them, and whether the report is complete."""
    given = ("--group", GROUP, "--facts", uri, "--engine", "local", "--out", str(out))
    summary = ran("report", *given, "--json", "--quiet")
    return summary["dead_letters"], summary["dead_messages"], summary["complete"]
