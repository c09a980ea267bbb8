"""Unit tests do not wait for a disk, also on a worker of pytest-xdist."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
ENOUGH_BYTES = 1 << 30


def test_files_of_a_test_are_in_memory(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    command_line = getattr(pytestconfig, "workerinput", {}).get("mainargv", sys.argv)
    if any(argument.startswith("--basetemp") for argument in command_line):
        pytest.skip("the command line names a folder")
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ENOUGH_BYTES:
        pytest.skip("/dev/shm has less than 1 GiB")
    assert tmp_path.is_relative_to(MEMORY)
