"""Collect a test file when a worker of pytest-xdist runs it, with the option `--late`.

Otherwise each worker collects all files before the first test starts. Each file has two items. The
first one collects and runs the tests. The second one tears down what the next file does not need:
pytest-xdist starts an item when it knows the next one, so the schedule assigns the next file when
only the second item is left.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from itertools import pairwise
from typing import Any

import pytest
from _pytest.nodes import Node
from _pytest.runner import call_and_report

OPTION = "--late"
# Options that choose tests: their names are needed first.
CHOOSING = ("keyword", "markexpr", "deselect", "lf", "failedfirst", "newfirst", "stepwise")


def suits(config: pytest.Config) -> bool:
    """Return whether this is a worker that runs whole files."""
    return (
        bool(config.getoption(OPTION))
        and hasattr(config, "workerinput")
        and not any(config.getoption(option, default=None) for option in CHOOSING)
        and not any("::" in argument for argument in config.args)
    )


class Step(pytest.Item):
    """An item that is not a test."""

    def runtest(self) -> None:
        raise AssertionError("run_step runs it: it needs the next item")

    def iter_markers_with_node(self, name: str | None = None) -> Iterator[tuple[Node, pytest.Mark]]:
        """A step has no markers: a hook may mark all items of a file to be skipped."""
        return iter(())

    def run_step(self, nextitem: pytest.Item | None) -> None:
        raise NotImplementedError


class Tests(Step):
    """Collects and runs the tests of a file."""

    _running: pytest.Item | None = None

    def __init__(self, *, module: pytest.Module, **rest: Any) -> None:
        super().__init__(**rest)
        self._module = module

    @property
    def nodeid(self) -> str:
        """That of the test that runs: pytest-xdist compares it with that of each report."""
        return super().nodeid if self._running is None else self._running.nodeid

    def run_step(self, nextitem: pytest.Item | None) -> None:
        tests = self._collect()
        self.session.items += tests
        for test, after in pairwise([*tests, nextitem]):
            assert test is not None
            self._running = test
            self.config.hook.pytest_runtest_protocol(item=test, nextitem=after)
            if self.session.shouldfail or self.session.shouldstop:
                break
        self._running = None

    def _collect(self) -> list[pytest.Item]:
        """Collect the tests. They stay until the end, so the garbage collector may ignore them."""
        gc.disable()
        try:
            tests = list(self.session.genitems(self._module))
            self.config.hook.pytest_collection_modifyitems(
                session=self.session, config=self.config, items=tests
            )
        finally:
            gc.collect()
            gc.freeze()
            gc.enable()
        return tests


class End(Step):
    """Tears down the folders of a file. A teardown that fails is reported."""

    def run_step(self, nextitem: pytest.Item | None) -> None:
        reports = (
            call_and_report(self, "setup", log=False),
            call_and_report(self, "teardown", log=False, nextitem=nextitem),
        )
        for report in reports:
            if report.failed:
                self.ihook.pytest_runtest_logreport(report=report)


class LateFile(pytest.File):
    """A file that is not imported yet."""

    def __init__(self, *, module: pytest.Module, **rest: Any) -> None:
        super().__init__(**rest)
        self._module = module

    def collect(self) -> list[pytest.Item]:
        return [
            Tests.from_parent(self, name="tests", module=self._module),
            End.from_parent(self, name="end"),
        ]


class Late:
    """The plugin."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(
        self, parent: pytest.Collector
    ) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        found = yield
        return [
            LateFile.from_parent(parent, path=each.path, module=each)
            if isinstance(each, pytest.Module)
            else each
            for each in found
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        if not isinstance(item, Step):
            return None
        item.run_step(nextitem)
        return True
