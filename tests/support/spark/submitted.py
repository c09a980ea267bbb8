"""A job under spark-submit on a standalone cluster, in an environment without our packages: they
come in the zip of --py-files. What happened is read from Spark's own record of events.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from aerobee_spark import py_files
from aerobee_spark.jvm import session
from support.spark.pythons import python_without_ours
from support.spark.standalone import HOST, StandaloneCluster, spark_home

TIMEOUT_S = 180.0


class Submitted:
    """`job`: a file and its arguments. `lacking`: modules that the workers are without. `log`: what
    the job says."""

    def __init__(
        self,
        folder: Path,
        cluster: StandaloneCluster,
        namesrv: str,
        *job: str,
        lacking: tuple[str, ...] = (),
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.log, self.events = folder / "log", folder / "events"
        self.events.mkdir()
        ours = folder / "aerobee.zip"
        py_files.write(ours)
        settings = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": self.events.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
            "spark.ui.enabled": "false",
            "spark.executor.memory": "512m",
            "spark.driver.extraJavaOptions": session.BRIEF,
            "spark.executor.extraJavaOptions": session.BRIEF,
        }
        options = [part for pair in settings.items() for part in ("--conf", "=".join(pair))]
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "SPARK_HOME": str(spark_home()),
            "PYSPARK_PYTHON": str(_python(folder, lacking)),
            "SPARK_LOCAL_IP": HOST,
            "NAMESRV_ADDR": namesrv,
        }
        submit = [str(spark_home() / "bin" / "spark-submit"), "--master", cluster.url]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [*submit, "--py-files", str(ours), *options, *job],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
            )

    def tasks(self) -> tuple[int, int]:
        """How many are done, and how many are under way, as it last said."""
        # Java writes to the same file at any moment, also into a line.
        said = re.findall(r"^tasks (\d+) (\d+)$", self.log.read_text(), re.MULTILINE)
        done, active = said[-1] if said else (0, 0)
        return int(done), int(active)

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(TIMEOUT_S)

    def listened(self, event: str) -> list[dict[str, Any]]:
        """The events of a kind in Spark's own log."""
        [path] = self.events.iterdir()
        events = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        return [found for found in events if found["Event"] == event]


def _python(folder: Path, lacking: tuple[str, ...]) -> Path:
    """One path, as Spark wants it; behind it, as on other machines, another environment for what a
    worker starts."""
    whole = python_without_ours(folder / "whole")
    if not lacking:
        return whole
    part = python_without_ours(folder / "part", *lacking)
    script = folder / "python"
    script.write_text(
        f'#!/bin/sh\n[ -n "$SPARK_EXECUTOR_DIRS" ] && exec {part} "$@"\nexec {whole} "$@"\n'
    )
    script.chmod(0o755)
    return script
