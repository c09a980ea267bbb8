"""`make profile` with one short row."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.profiles import sampler
from bench.profiles.run import SAMPLER
from support.repository.tree import ROOT

pytestmark = pytest.mark.slow


def profile(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench.profiles.run", *arguments],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": "tests"},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def test_a_row_has_a_flame_graph_and_steps_of_each_process(tmp_path: Path) -> None:
    try:
        sampler.find(SAMPLER)
    except sampler.SamplerError as missing:
        pytest.skip(str(missing))
    done = profile("--only", "v2_send", "--seconds", "2", "--output", tmp_path)
    if "ptrace is not permitted" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    assert "1 of 1: v2_send" in done.stderr
    [(row, profiles)] = json.loads((tmp_path / "profile.json").read_text()).items()
    assert row == "v2_send"
    assert [each["process"] for each in profiles] == ["broker", "proxy", "client"]
    for each in profiles:
        assert each["samples"] > 0 and each["us"] > 0
        assert sum(each["steps"].values()) == pytest.approx(each["us"])
        assert "<svg" in (tmp_path / "v2_send" / f"{each['process']}.svg").read_text()
    assert "write responses (gRPC, kernel)" in profiles[1]["steps"]


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    unknown = profile("--only", "sends", "--output", tmp_path)
    assert unknown.returncode == 1
    assert "error: unknown row 'sends': use some of lone_send, send_64" in unknown.stderr
    nothing = tmp_path / "py-spy"
    nothing.write_text("#!/bin/sh\nexit 0\n")
    nothing.chmod(0o755)
    unsampled = profile("--only", "lone_send", "--seconds", "1", "--sampler", nothing,
                        "--output", tmp_path)  # fmt: skip
    assert unsampled.returncode == 1
    assert "error: py-spy failed" in unsampled.stderr
