"""One JVM for all modules of this folder: its start costs seconds, and more until it is warm.

The scheduler of tests/conftest.py runs them on one worker, one after the other.
"""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).parent


class Jvm:
    """The first session of a JVM that runs from the first use to the last test of the folder."""

    def __init__(self) -> None:
        self._until_closed = ExitStack()
        self._session: SparkSession | None = None
        self.log = Path()

    def session(self, scratch: Path) -> SparkSession:
        from aerobee_spark.jvm.session import session

        if self._session is None:
            before = of_this_process()
            self._until_closed.callback(self._check, before)
            self.log = scratch / "log"
            self._session = self._until_closed.enter_context(session(scratch, self.log))
        return self._session

    def close(self) -> None:
        self._session = None
        self._until_closed.close()

    @staticmethod
    def _check(before: object) -> None:
        # A later session or child process of this process must not look for a worker in `scratch`.
        assert of_this_process() == before


def of_this_process() -> object:
    """What a session changes as long as it is there."""
    variables = {name: value for name, value in os.environ.items() if "PYSPARK" in name}
    return variables, signal.getsignal(signal.SIGINT)


_jvm = Jvm()


@pytest.hookimpl(trylast=True)  # behind the fixtures that use it
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    if nextitem is None or FOLDER not in nextitem.path.parents:
        _jvm.close()


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """Settings, views and formats of its own, in the JVM of all. It knows the format."""
    from aerobee_spark import source

    running = _jvm.session(tmp_path_factory.mktemp("spark")).newSession()
    source.register(running)
    return running


@pytest.fixture
def spark_log(spark: SparkSession) -> Path:
    """What Java and the workers print."""
    return _jvm.log
