"""A Docker engine, for tests that cannot do without one."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def require_engine() -> None:
    """Skips the test where no engine can be used; fails it when AEROBEE_REQUIRE_ENGINE is set."""
    problem = _problem()
    if problem and os.environ.get("AEROBEE_REQUIRE_ENGINE"):
        pytest.fail(f"AEROBEE_REQUIRE_ENGINE is set, but {problem}")
    if problem:
        pytest.skip(f"needs a Docker engine: {problem}")


def _problem() -> str | None:
    """Why no engine can be used here, or None."""
    if shutil.which("docker") is None:
        return "no `docker` command"
    for command, missing in (("info", "no engine answers"), ("compose version", "no Compose v2")):
        answer = subprocess.run(
            ["docker", *command.split()], capture_output=True, text=True, check=False
        )
        if answer.returncode != 0:
            return f"{missing}: {answer.stderr.strip().splitlines()[-1:]}"
    return None
