"""What a facts table asks of its file system, of a folder and of a URI; and landing, report and
compaction of a table at a URI."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aerobee_spark.errors import ReportError
from aerobee_spark.table import hadoop_files, opening, rows
from aerobee_spark.table.commits import Commit
from aerobee_spark.table.files import FactsFiles
from aerobee_spark.table.hadoop_files import HadoopFiles
from aerobee_spark.table.local_files import LocalFiles
from aerobee_spark.table.storage import TableFiles
from support.client.fake_broker import FakeCluster
from support.spark.in_session import Run, commands_in
from support.spark.random_dead_letters import put_random

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

GROUP = "arrivals"
MESSAGES = 60


@pytest.fixture(params=["folder", "uri"])
def files(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> TableFiles:
    table = tmp_path / "table"
    return LocalFiles(table) if request.param == "folder" else HadoopFiles(spark, table.as_uri())


@pytest.fixture
def run(spark: SparkSession) -> Iterator[Run]:
    with commands_in(spark) as running:
        yield running


# ---- the same of both ----


def test_a_file_is_created_whole_and_once(files: TableFiles, tmp_path: Path) -> None:
    files.make("_commits")
    content = bytes(range(256)) * 300
    assert not files.exists("_commits/r-0.json")
    assert files.create("_commits/r-0.json", content)
    assert not files.create("_commits/r-0.json", b"other")
    assert files.read("_commits/r-0.json") == content
    assert files.names("_commits") == ["r-0.json"]
    for newer in (b"one", content):
        files.replace("states.parquet", newer)
        assert files.read("states.parquet") == newer
    hidden = {path.name for path in (tmp_path / "table/_commits").glob(".*")}
    assert hidden <= {".r-0.json.crc"}  # Hadoop's checksum
    with pytest.raises(FileNotFoundError):
        files.read("_commits/r-1.json")


def test_a_file_that_was_begun_by_a_killed_job_is_created(
    files: TableFiles, tmp_path: Path
) -> None:
    files.make("_commits")
    (tmp_path / "table/_commits/.r-0.json.new").write_bytes(b"torn")
    assert files.names("_commits") == []
    assert files.create("_commits/r-0.json", b"whole")
    assert files.read("_commits/r-0.json") == b"whole"


def test_what_is_written_to_a_folder_is_listed_read_and_deleted(files: TableFiles) -> None:
    files.make("")
    with files.writing("compact=1") as folder:
        for day in ("day=2", "day=1"):
            (folder / day).mkdir(parents=True)
            (folder / day / "part.parquet").write_text(day)
    names = ["compact=1/day=1/part.parquet", "compact=1/day=2/part.parquet"]
    assert files.below("compact=1") == names
    assert (files.names(), files.names("compact=1")) == (["compact=1"], ["day=1", "day=2"])
    files.sync(names)
    with files.local(names[1]) as path:
        assert path.read_text() == "day=2"
    files.delete(names[0])
    assert files.below("compact=1") == names[1:]
    files.delete("compact=1")
    files.delete("compact=1")
    assert (files.names(), files.below("compact=1"), files.names("none")) == ([], [], [])


def test_the_file_of_a_reader_may_be_gone(files: TableFiles) -> None:
    files.make("")
    with pytest.raises(FileNotFoundError), files.local("none") as path:
        path.read_bytes()


def test_a_second_commit_of_a_batch_is_refused(files: TableFiles) -> None:
    table = FactsFiles(files)
    table.create({"topics": ["t"]})
    one, two = (Commit("r", 0, seq, "", 0, ()) for seq in (1, 2))
    table.commit(one)
    table.commit(one)
    with pytest.raises(ReportError):
        table.commit(two)
    assert (table.commits(), table.next_seq()) == ([one], 2)
    table.forget(one)
    assert table.commits() == []


def test_a_folder_of_other_things_becomes_no_table(files: TableFiles, tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "table/mine.txt").write_text("")
    with pytest.raises(ReportError):
        FactsFiles(files).create({"topics": ["t"]})
    assert not list((tmp_path / "table/_commits").iterdir())


def test_the_lock_is_of_one_job(files: TableFiles) -> None:
    files.make("")
    with files.lock("_lock"):
        with pytest.raises(ReportError, match=str(os.getpid())), files.lock("_lock"):
            pass
        with files.lock("_compact.lock"):
            pass
    with files.lock("_lock"):
        pass


# ---- the lock at a URI ----


@pytest.fixture
def at_a_uri(spark: SparkSession, tmp_path: Path) -> HadoopFiles:
    return HadoopFiles(spark, (tmp_path / "table").as_uri())


def hold(files: HadoopFiles, machine: str, *processes: str) -> str:
    files.make("_locks/lock")
    name = "_locks/lock/other.json"
    assert files.create(name, json.dumps({"machine": machine, "processes": processes}).encode())
    return name


def test_the_lock_of_a_job_that_was_killed_here_is_taken(at_a_uri: HadoopFiles) -> None:
    dead = f"{os.getpid()} 1"  # the number is of another process by now
    name = hold(at_a_uri, hadoop_files._machine(), dead, dead)
    with at_a_uri.lock("_lock"):
        assert not at_a_uri.exists(name)


def test_the_java_of_a_job_that_was_killed_is_waited_for(at_a_uri: HadoopFiles) -> None:
    with subprocess.Popen(["sleep", "0.5"]) as java:
        hold(at_a_uri, hadoop_files._machine(), f"{os.getpid()} 1", hadoop_files._process(java.pid))
        with at_a_uri.lock("_lock"):
            assert java.poll() is not None


def test_the_lock_of_another_machine_is_left_to_a_person(at_a_uri: HadoopFiles) -> None:
    name = hold(at_a_uri, "elsewhere 1", "1 1", "2 1")
    with pytest.raises(ReportError, match=name), at_a_uri.lock("_lock"):
        pass
    assert at_a_uri.names("_locks/lock") == ["other.json"]


# ---- what is no place for a table ----


def test_a_file_system_without_one_step_is_refused(spark: SparkSession) -> None:
    for uri in ("har://file-tmp/x.har", "nosuch://host/table", "http://127.0.0.1:1/table"):
        with pytest.raises(ReportError, match=uri):
            HadoopFiles(spark, uri)


# ---- commands ----


def test_a_table_at_a_uri_is_landed_reported_and_compacted(
    run: Run, cluster: FakeCluster, tmp_path: Path
) -> None:
    put_random(cluster["broker-a"], random.Random(1), MESSAGES)
    table = tmp_path / "table"
    uri = table.as_uri()
    landing = ["--namesrv", cluster.namesrv, "--group", GROUP, "--table", uri, "--batch-size", "40"]
    for expected in (MESSAGES, 0):
        done = run("facts", *landing, "--quiet", "--json")
        assert (done.returncode, json.loads(done.stdout)["rows"]) == (0, expected), done.stderr
    assert not list((table / "_locks/lock").iterdir())
    assert rows_at(table) == MESSAGES
    facts: list[pa.Table] = []
    for where in (uri, str(table)):
        out = tmp_path / f"report-{len(facts)}"
        made = run(
            *("report", "--group", GROUP, "--facts", where, "--engine", "local", "--json"),
            *("--out", str(out), "--quiet"),
        )
        assert made.returncode == 0, made.stderr
        facts.append(pq.read_table(out / "facts"))
    assert facts[0].num_rows == MESSAGES and facts[0].equals(facts[1])
    batches = len(FactsFiles(table).snapshot())
    assert batches > 1
    for number in (1, 2):
        put_random(cluster["broker-a"], random.Random(number), 5)
        assert run("facts", *landing, "--quiet").returncode == 0
        done = run("facts", "compact", "--table", uri, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["rows"] == MESSAGES + 5 * (number - 1)
        assert rows_at(table) == MESSAGES + 5 * number
    # The first compaction replaced these, and the second one removed them.
    assert len(list(table.glob("run=*/batch=*"))) == 2
    assert [path.name for path in table.glob("compact=*")] in (
        ["compact=1", "compact=2"],
        ["compact=2", "compact=1"],
    )


def rows_at(table: Path) -> int:
    files = FactsFiles(table)
    return sum(batch.num_rows for batch in rows.read(files, files.snapshot()))


def test_a_report_without_spark_says_what_to_do_with_a_uri(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    uri = (tmp_path / "table").as_uri()
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    with pytest.raises(ReportError, match=uri), opening.opened(opening.parse(uri)):
        pass


def test_a_path_is_no_uri_and_a_uri_has_nothing_that_spark_reads_as_a_pattern() -> None:
    assert opening.parse("facts/of:billing") == Path("facts/of:billing")
    assert opening.parse("s3a://bucket/facts") == "s3a://bucket/facts"
    for text in ("file:///tmp/a b", "hdfs://host/{a}", "s3a://bucket/a*"):
        with pytest.raises(ReportError):
            opening.parse(text)
