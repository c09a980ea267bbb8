"""`bench.compare` measures what is installed; here Aerobee alone, once, and shortly."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from support.repository.tree import ROOT

pytestmark = pytest.mark.slow


def test_the_comparison_measures_start_memory_and_processor() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.compare", "--only", "aerobee", "--rounds", "1",
         "--settle-s", "0", "--idle-s", "0.5"],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": "tests"},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    row = re.search(r"aerobee\D+([\d.]+)\D+([\d.]+)\D+([\d.]+)\D+([\d.]+)", done.stdout)
    assert row, done.stdout
    start_s, start_cpu_s, memory_mb, _ = map(float, row.groups())
    assert start_s > 0
    assert start_cpu_s > 0
    assert memory_mb > 1
