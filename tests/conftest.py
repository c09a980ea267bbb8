"""Of all tests: Hypothesis has no deadline, SIGINT interrupts, an id is the same in every process.

A machine that is busy takes its time over an example. A shell that starts `make test` in the
background has SIGINT ignored, which every process inherits: tests that interrupt one would wait.
Workers of pytest-xdist refuse to run when they collected different ids, for which one address in an
id is enough.
"""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

from support.processes import prepared
from support.spark import class_archive

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure() -> None:
    prepared.enable()
    class_archive.share()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    named_by_address = [item.nodeid for item in items if " object at 0x" in item.nodeid]
    if named_by_address:
        raise pytest.UsageError(f"give these parameters ids: {named_by_address}")
