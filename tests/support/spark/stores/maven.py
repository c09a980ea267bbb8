"""Jars that Maven brings for a test: those of a POM's dependencies."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pyspark
import pytest

SPARK_JARS = Path(pyspark.__file__).parent / "jars"
TIMEOUT_S = 600.0
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>tests</groupId><artifactId>jars</artifactId><version>1</version><dependencies>
{}
</dependencies></project>"""


def hadoop_version() -> str:
    """Of the Hadoop client that PySpark has."""
    (version,) = (path.stem.rpartition("-")[2] for path in SPARK_JARS.glob("hadoop-client-api-*"))
    return version


def dependency(coordinates: str, *excluded: str) -> str:
    """An element of a POM. `coordinates`: group:artifact:version; `excluded`: group:artifact."""
    group, artifact, version = coordinates.split(":")
    exclusions = "".join(
        f"<exclusion><groupId>{group}</groupId><artifactId>{artifact}</artifactId></exclusion>"
        for group, artifact in (each.split(":") for each in excluded)
    )
    return (
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version><exclusions>{exclusions}</exclusions></dependency>"
    )


def jars(folder: Path, *dependencies: str, groups: tuple[str, ...] = ()) -> list[Path]:
    """The jars of dependencies, and of what these need, in `folder`; with `groups` those of these
    alone. Skips the test where Maven or Java is missing."""
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.skip("Maven or Java is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    pom, target = folder / "pom.xml", folder / "jars"
    pom.write_text(POM.format("\n".join(dependencies)))
    subprocess.run(
        [
            *("mvn", "--quiet", "--batch-mode", "dependency:copy-dependencies", "-f", str(pom)),
            *(f"-DoutputDirectory={target}", f"-DincludeGroupIds={','.join(groups)}"),
        ],
        check=True,
        timeout=TIMEOUT_S,
    )
    return sorted(target.glob("*.jar"))
