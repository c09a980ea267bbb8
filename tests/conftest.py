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
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from _pytest.pathlib import import_path
from hypothesis import settings
from xdist.workermanage import WorkerController

from support.processes import prepared
from support.running import secure
from support.running.costs import Measure
from support.running.schedule import Schedule
from support.spark import class_archive

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

LEFT_THREADS = 10  # of servers of the session


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--secure", action="store_true", help="close all services of the tests")
    parser.addoption("--costs", action="store_true", help="write tests/costs.tsv, for the schedule")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--costs"):
        config.pluginmanager.register(Measure())
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
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """The thousands of tests stay until the end: the garbage collector need not look at them."""
    gc.disable()
    try:
        _import_a_part(session.config)
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def _import_a_part(config: pytest.Config) -> None:
    """Import some of the unit tests, each worker of pytest-xdist others.

    All workers collect all files at the same time. In a new checkout, each of them would rewrite
    the assertions of all files, which takes as long as the rest of the collection. So they find
    most files rewritten by another worker.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode:
        return
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    chosen = [Path(each.partition("::")[0]).resolve() for each in config.args]
    ignored = [Path(each).resolve() for each in config.getoption("ignore") or ()]
    files = [
        path
        for path in sorted((Path(__file__).parent / "unit").rglob("test_*.py"))
        if any(map(path.is_relative_to, chosen)) and not any(map(path.is_relative_to, ignored))
    ]
    for path in files[number::count]:
        before = set(sys.modules)
        try:
            import_path(
                path,
                mode=config.getoption("importmode"),
                root=config.rootpath,
                consider_namespace_packages=False,
            )
        except Exception:  # pytest imports the file again, and reports the failure
            for name in sys.modules.keys() - before:
                del sys.modules[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    named_by_address = [item.nodeid for item in items if " object at 0x" in item.nodeid]
    if named_by_address:
        raise pytest.UsageError(f"give these parameters ids: {named_by_address}")
    if secure.enabled() is not None:
        for item in items:
            fixtures = getattr(item, "fixturenames", ())
            if reason := secure.reason_against(item.nodeid, fixtures):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True, scope="module")
def _ports_end() -> Iterator[None]:
    """Fail if the tests of a file leave threads that count the connections of a port.

    They would take time from all later tests. Threads of listeners end a moment after their client.
    """
    before = set(threading.enumerate())
    yield
    left = [each for each in set(threading.enumerate()) - before if each.name == "connections"]
    assert len(left) <= LEFT_THREADS, f"the tests of this file left {len(left)} ports open"
