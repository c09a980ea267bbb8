"""Files of unit tests are in memory: thousands of syncs would wait for a disk.

What a disk keeps is tested on a simulated one and by integration tests. `--basetemp` puts the files
into a folder, which stays.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
ENOUGH_BYTES = 1 << 30  # a container has 64 MiB unless it is given more


def memory_suffices() -> bool:
    if not os.access(MEMORY, os.W_OK):
        return False
    found = os.statvfs(MEMORY)
    return found.f_bavail * found.f_frsize >= ENOUGH_BYTES


@pytest.fixture(scope="session")
def tmp_path_factory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[pytest.TempPathFactory]:
    of_worker = getattr(request.config, "workerinput", None)
    given = of_worker["basetemp"] if of_worker else request.config.getoption("basetemp")
    if given or not memory_suffices():
        yield tmp_path_factory
        return
    with tempfile.TemporaryDirectory(prefix="aerobee-unit-", dir=MEMORY) as folder:
        yield pytest.TempPathFactory(
            Path(folder, "files"),
            retention_count=1,
            retention_policy="failed",
            trace=request.config.trace.get("tmpdir"),
            _ispytest=True,
        )


@pytest.fixture(scope="module", autouse=True)
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """`tempfile` uses the same folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.getbasetemp()))
        yield
