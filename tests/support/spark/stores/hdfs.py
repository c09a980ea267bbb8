"""HDFS: a name node and a data node of Hadoop's MiniDFSCluster, which Maven brings, in the version
of the client that PySpark has.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.clock.polling import until_sync
from support.spark.stores import maven

START_TIMEOUT_S = 600.0


@contextmanager
def hdfs(home: Path) -> Iterator[str]:
    """The URI of an empty file system. `home`: an empty folder for its files."""
    cluster = f"org.apache.hadoop:hadoop-client-minicluster:{maven.hadoop_version()}"
    maven.jars(
        home,
        maven.dependency(cluster, "*:*"),
        maven.dependency("org.junit.jupiter:junit-jupiter-api:5.10.2"),
        maven.dependency("org.mockito:mockito-core:4.11.0"),
    )
    details, log = home / "details.json", home / "hdfs.log"
    command = ["java", "-Xmx512m", "-cp", f"{home / 'jars'}/*:{maven.SPARK_JARS}/*"]
    command += ["org.apache.hadoop.test.MiniDFSClusterManager", "-format", "-datanodes", "1"]
    command += ["-writeDetails", str(details)]
    with (
        log.open("wb") as out,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=home) as it,
    ):
        try:
            until_sync(lambda: it.poll() is not None or _port(details), timeout_s=START_TIMEOUT_S)
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
