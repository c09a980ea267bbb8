"""deploy/healthy: which health checks wait, and which are reported at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.repository.tree import ROOT

HEALTHY = ROOT / "deploy" / "healthy"


class Container:
    """The script with a marker of its own, and a `sleep` that records its argument."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark = folder / "mark"
        sleep = folder / "sleep"
        sleep.write_text(f'#!/bin/sh\necho "$1" >>{folder}/slept\n')
        sleep.chmod(0o755)

    def check(self, command: str) -> tuple[int, list[str]]:
        """Exit code of one check, and how long it would have slept."""
        slept = self._folder / "slept"
        slept.unlink(missing_ok=True)
        path = f"{self._folder}:{os.environ['PATH']}"
        done = subprocess.run(
            [sys.executable, "-IS", HEALTHY, *command.split()],
            env={"PATH": path, "HEALTHY_MARK": str(self._mark)},
            capture_output=True,
            check=False,
        )
        return done.returncode, slept.read_text().split() if slept.exists() else []

    def lose_shared_memory(self) -> None:
        self._mark = self._folder / "missing" / "mark"


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def test_the_first_success_is_reported_at_once_and_later_ones_after_30_s(
    container: Container,
) -> None:
    assert container.check("true") == (0, [])
    assert container.check("true") == (0, ["30"])
    assert container.check("true") == (0, ["30"])


def test_a_failure_is_reported_at_once_and_so_is_the_success_after_it(
    container: Container,
) -> None:
    assert container.check("false") == (1, [])
    container.check("true")
    assert container.check("false") == (1, [])
    assert container.check("true") == (0, [])
    assert container.check("true") == (0, ["30"])


def test_the_command_gets_its_arguments(container: Container) -> None:
    assert container.check("test a = a") == (0, [])
    assert container.check("test a = b") == (1, [])


def test_a_success_that_cannot_be_recorded_is_a_failure(container: Container) -> None:
    container.lose_shared_memory()
    code, slept = container.check("true")
    assert code != 0 and slept == []
