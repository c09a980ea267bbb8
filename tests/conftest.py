"""Of all tests: Hypothesis has no deadline, SIGINT interrupts, an id is the same in every process.

A machine that is busy takes its time over an example. A shell that starts `make test` in the
background has SIGINT ignored, which every process inherits: tests that interrupt one would wait.
Commands do not see the contexts of the developer. Workers of pytest-xdist refuse to run when they
collected different ids, for which one address in an id is enough.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import settings
from xdist.workermanage import WorkerController

from support import grpc_library  # noqa: F401 - before another module imports that library
from support.processes import prepared
from support.running import late, secure
from support.running.costs import Measure
from support.running.schedule import Schedule
from support.spark import class_archive

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--secure", action="store_true", help="close all services of the tests")
    parser.addoption(late.OPTION, action="store_true", help="collect a file when it is run")
    parser.addoption("--costs", action="store_true", help="write tests/costs.tsv, for the schedule")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--costs"):
        config.pluginmanager.register(Measure())
    if late.suits(config):
        config.pluginmanager.register(late.Late())
    os.environ["AEROBEE_CONTEXT_DIR"] = "/nonexistent"
    if config.getoption("--secure"):
        secure.enable()
    prepared.enable()
    class_archive.share()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure() -> None:
    secure.disable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Schedule | None:
    return Schedule(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    # pytest-xdist gives each worker a --basetemp, also if the command line has none.
    node.workerinput["basetemp"] = node.config.getoption("basetemp")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The thousands of tests stay until the end: the garbage collector need not look at them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    named_by_address = [item.nodeid for item in items if " object at 0x" in item.nodeid]
    if named_by_address:
        raise pytest.UsageError(f"give these parameters ids: {named_by_address}")
    if secure.enabled() is not None:
        for item in items:
            fixtures = getattr(item, "fixturenames", ())
            if reason := secure.reason_against(item.nodeid, fixtures):
                item.add_marker(pytest.mark.skip(reason=reason))
