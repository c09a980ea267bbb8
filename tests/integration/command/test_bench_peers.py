"""`make bench-peers` measures what can be had; here Aerobee alone, once, and shortly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.repository.tree import ROOT

pytestmark = pytest.mark.slow

ROWS = ("ready", "send_64", "drain", "letters", "v2_drain_8", "idle", "memory")


def test_the_comparison_measures_each_kind_of_row(tmp_path: Path) -> None:
    output = tmp_path / "peers.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench.peers.run", "--peers", "aerobee", "--rows", ",".join(ROWS),
         "--rounds", "1", "--small", "--output", output],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": "tests"},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(output.read_text())
    found = report["products"]["aerobee"]["figures"]
    for client in report["clients"].values():
        found |= client["figures"]
    assert set(found) == {*ROWS, "v2_drain_8"}
    refused = {row: figures for row, [figures] in found.items() if "refused" in figures}
    assert not refused
    assert "Aerobee" in done.stdout


def test_an_unknown_row_is_named_with_the_known_ones() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.peers.run", "--rows", "send_65"],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": "tests"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "unknown name 'send_65': use some of send_1, send_64" in done.stderr
