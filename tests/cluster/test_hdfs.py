"""The facts table in HDFS: a name node and a data node of Hadoop's MiniDFSCluster, which Maven
brings, in the version of the client that PySpark has.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from aerobee_spark.errors import ReportError
from aerobee_spark.jvm.session import session
from aerobee_spark.table.commits import Commit
from aerobee_spark.table.files import FactsFiles
from aerobee_spark.table.hadoop_files import HadoopFiles
from support.clock.polling import until_sync
from support.processes import redriving
from support.processes.command import COMMAND
from support.processes.service import namesrv_and_broker

pytestmark = [pytest.mark.spark, pytest.mark.slow]

GROUP, LETTERS = "billing", 3_000
TIMEOUT_S = 600.0
JARS = Path(pyspark.__file__).parent / "jars"
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>tests</groupId><artifactId>hdfs</artifactId><version>1</version><dependencies><dependency>
<groupId>org.apache.hadoop</groupId><artifactId>hadoop-client-minicluster</artifactId>
<version>{}</version><exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId>
</exclusion></exclusions></dependency><dependency><groupId>org.junit.jupiter</groupId>
<artifactId>junit-jupiter-api</artifactId><version>5.10.2</version></dependency><dependency>
<groupId>org.mockito</groupId><artifactId>mockito-core</artifactId><version>4.11.0</version>
</dependency></dependencies></project>"""


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URI of an empty file system."""
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.skip("Maven or Java is not installed")
    home = tmp_path_factory.mktemp("hdfs")
    (version,) = (path.stem.rpartition("-")[2] for path in JARS.glob("hadoop-client-api-*.jar"))
    (home / "pom.xml").write_text(POM.format(version))
    subprocess.run(
        [
            *("mvn", "--quiet", "--batch-mode", "dependency:copy-dependencies"),
            *("-f", str(home / "pom.xml"), f"-DoutputDirectory={home / 'jars'}"),
        ],
        check=True,
        timeout=TIMEOUT_S,
    )
    details, log = home / "details.json", home / "hdfs.log"
    command = ["java", "-Xmx512m", "-cp", f"{home / 'jars'}/*:{JARS}/*"]
    command += ["org.apache.hadoop.test.MiniDFSClusterManager", "-format", "-datanodes", "1"]
    command += ["-writeDetails", str(details)]
    with (
        log.open("wb") as out,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=home) as it,
    ):
        try:
            until_sync(lambda: it.poll() is not None or _port(details), timeout_s=TIMEOUT_S)
            assert it.poll() is None, log.read_text()
            yield f"hdfs://localhost:{_port(details)}"
        finally:
            it.kill()


def _port(details: Path) -> int | None:
    """Of the name node; None before it listens."""
    try:
        found: int = json.loads(details.read_text())["namenode_port"]
    except (FileNotFoundError, ValueError):
        return None
    return found


def test_a_commit_appears_once_and_a_lock_is_of_one_job(hdfs: str, tmp_path: Path) -> None:
    with session(tmp_path, tmp_path / "log") as spark:
        files = HadoopFiles(spark, f"{hdfs}/commits")
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


def test_each_message_is_landed_once_through_kills(hdfs: str, tmp_path: Path) -> None:
    uri = f"{hdfs}/facts"
    with namesrv_and_broker(tmp_path) as (namesrv, _):
        redriving.fill(namesrv.address, GROUP, "orders", LETTERS)
        given = ("--namesrv", namesrv.address, "--group", GROUP, "--table", uri)
        landing = ("facts", *given, "--batch-size", "300", "--json")
        kill_after_a_batch((*COMMAND, *landing), tmp_path / "killed.log")
        landed = ran(*landing, "--quiet")
        assert 0 < landed["rows"] < LETTERS, "the run that was killed has landed some"
        assert (landed["lost"], landed["away"]) == (0, [])
        assert ran(*landing, "--quiet")["rows"] == 0
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


def ran(*arguments: str) -> Any:
    """What a command prints, which has to succeed."""
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def reported(uri: str, out: Path) -> tuple[int, int, bool]:
    """Dead letters, different messages among them, and whether the report is complete."""
    given = ("--group", GROUP, "--facts", uri, "--engine", "local", "--out", str(out))
    summary = ran("report", *given, "--json", "--quiet")
    return summary["dead_letters"], summary["dead_messages"], summary["complete"]
