"""S3 for Spark: Hadoop's S3A with the modules of the AWS SDK that it needs, which Maven brings, and
a server of its own (s3_server.py).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.clock.polling import until_sync
from support.repository.tree import ROOT
from support.spark.stores import maven

PACKAGES = ROOT / "build" / "moto"
START_TIMEOUT_S = 120.0
# The second one is of a store that ignores conditions.
BUCKET, CARELESS = "tables", "careless"
AWS_SDK = "2.35.4"  # that Hadoop 3.5.0 is built with
MODULES = ("s3", "s3-transfer-manager", "apache-client", "netty-nio-client", "sts")
# What these need besides, Spark has.
GROUPS = (
    "org.apache.hadoop",
    "org.reactivestreams",
    "software.amazon.awssdk",
    "software.amazon.eventstream",
    "software.amazon.s3.analyticsaccelerator",
)


@contextmanager
def s3a(home: Path) -> Iterator[str]:
    """The URI of an empty bucket. `home`: an empty folder. Spark is configured for it within the
    block, as docs/spark.md says."""
    if not (PACKAGES / ".installed").is_file():
        pytest.skip("moto is not installed: make cluster installs it")
    hadoop = maven.dependency(
        f"org.apache.hadoop:hadoop-aws:{maven.hadoop_version()}", "software.amazon.awssdk:bundle"
    )
    modules = [maven.dependency(f"software.amazon.awssdk:{name}:{AWS_SDK}") for name in MODULES]
    jars = maven.jars(home, hadoop, *modules, groups=GROUPS)
    with _served(home) as address:
        for bucket in (BUCKET, CARELESS):
            create = urllib.request.Request(f"{address}/{bucket}", method="PUT")
            with urllib.request.urlopen(create) as answer:
                assert answer.status == 200
        settings = documented(address)
        settings += f"\nspark.jars {','.join(map(str, jars))}\n"
        (home / "spark-defaults.conf").write_text(settings)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SPARK_CONF_DIR", str(home))
            yield f"s3a://{BUCKET}"


def documented(address: str) -> str:
    """The settings of docs/spark.md, with the address of a server."""
    page = (ROOT / "docs" / "spark.md").read_text("utf-8")
    (block,) = re.findall(r"```properties\n(.*?)```", page, re.DOTALL)
    settings, replaced = re.subn(r"(?m)^(\S+\.endpoint\s+)\S+$", rf"\g<1>{address}", block)
    assert replaced == 1
    return settings


@contextmanager
def _served(home: Path) -> Iterator[str]:
    """The address of a server that ends with the block."""
    port, log = home / "port", home / "s3.log"
    with (
        port.open("wb") as out,
        log.open("wb") as err,
        subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("s3_server.py"))],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, "PYTHONPATH": str(PACKAGES)},
        ) as it,
    ):
        try:
            until_sync(
                lambda: it.poll() is not None or port.read_text().endswith("\n"),
                timeout_s=START_TIMEOUT_S,
            )
            assert it.poll() is None, log.read_text()
            yield f"http://127.0.0.1:{int(port.read_text())}"
        finally:
            it.kill()
