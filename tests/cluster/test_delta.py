"""The table in Delta of docs/spark.md, with the Spark that Delta Lake has jars for. Maven brings
the jars, which Spark itself would fetch for who runs the program.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from aerobee_client import AdminClient
from support.processes.service import namesrv_and_broker
from support.repository.tree import ROOT
from support.spark.recipe import TOPIC, Recipe, send

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SPARK = ROOT / "build" / "pyspark-4.2"
TIMEOUT_S = 600.0
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>tests</groupId><artifactId>delta</artifactId><version>1</version><dependencies><dependency>
<groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency></dependencies>
</project>"""


def test_delta_leaves_out_a_batch_that_is_repeated(tmp_path: Path) -> None:
    if shutil.which("mvn") is None:
        pytest.skip("Maven is not installed")
    page = (ROOT / "docs" / "spark.md").read_text("utf-8")
    package = re.search(r'"spark.jars.packages", "([^"]+)"', page)
    assert package is not None
    replaced = {package[0]: f'"spark.jars", "{jars(tmp_path, package[1])}"'}
    environment = {"PYTHONPATH": str(SPARK)}
    data = tmp_path / "services"
    data.mkdir()
    with namesrv_and_broker(data) as (namesrv, _):
        with AdminClient(namesrv.address) as admin:
            admin.create_topic(TOPIC, queues=2)
        recipe = Recipe(tmp_path, namesrv.address, "orders-delta", "delta", replaced, environment)
        send(namesrv.address, 50)
        assert recipe.run() == (50, 50)
        recipe.forget_last_commit()
        send(namesrv.address, 30)
        assert recipe.run() == (80, 80)


def jars(folder: Path, package: str) -> str:
    """Those of a package and of what it needs beside Spark, separated by commas."""
    (folder / "pom.xml").write_text(POM.format(*package.split(":")))
    subprocess.run(
        [
            *("mvn", "--quiet", "--batch-mode", "dependency:copy-dependencies"),
            *("-DincludeScope=runtime", "-DincludeGroupIds=io.delta,io.unitycatalog"),
            *("-f", str(folder / "pom.xml"), f"-DoutputDirectory={folder / 'jars'}"),
        ],
        check=True,
        timeout=TIMEOUT_S,
    )
    return ",".join(str(path) for path in sorted((folder / "jars").glob("*.jar")))
