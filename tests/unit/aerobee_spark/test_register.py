"""Test how `register` chooses the Python of Spark's workers, without Spark."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from aerobee_spark.source import RocketMqSource, register


class Session:
    """A session of Spark that notes what is registered. `found` is what Spark has found itself."""

    def __init__(
        self, *, master: str = "local[2]", option: str = "", python: str = "python3", found: bool
    ) -> None:
        self.sparkContext = self.dataSource = self._jsparkSession = self
        self.master, self.pythonExec = master, python
        self.registered: list[type] = []
        self._option, self._found = option, found

    def getConf(self) -> dict[str, str]:
        class Conf(dict[str, str]):
            def contains(self, name: str) -> bool:
                return name in self

        return Conf({"spark.pyspark.python": self._option} if self._option else {})

    def sessionState(self) -> Session:
        return self

    def dataSourceManager(self) -> Session:
        return self

    def dataSourceExists(self, name: str) -> bool:
        return self._found or any(each.name() == name for each in self.registered)  # type: ignore[attr-defined]

    def register(self, source: type) -> None:
        self.registered.append(source)


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only folder of the PATH. Its `python3` is not the Python of this process."""
    (tmp_path / "python3").write_text("#!/bin/sh\n")
    (tmp_path / "python3").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    return tmp_path


def registered(session: Any) -> list[type]:
    register(session)
    found: list[type] = session.registered
    return found


@pytest.mark.parametrize("found", [False, True])
@pytest.mark.parametrize("master", ["local", "local[*]", "local-cluster[1,1,1024]"])
def test_workers_of_a_local_session_run_this_python(master: str, found: bool) -> None:
    session = Session(master=master, found=found)
    assert registered(session) == [RocketMqSource]
    assert session.pythonExec == sys.executable


def test_second_call_replaces_nothing() -> None:
    session = Session(found=False)
    register(session)  # type: ignore[arg-type]
    assert registered(session) == [RocketMqSource]


def test_chosen_python_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for session in (
        Session(option="/opt/python", found=False),
        Session(master="spark://host:7077", found=False),
    ):
        assert registered(session) == [RocketMqSource]
        assert session.pythonExec == "python3"
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    session = Session(python="/opt/python", found=False)
    assert registered(session) == [RocketMqSource]
    assert session.pythonExec == "/opt/python"


def test_format_that_spark_has_found_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert registered(Session(python=sys.executable, found=True)) == []


def test_python_of_an_activated_environment_is_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    session = Session(python=Path(sys.executable).name, found=True)
    assert registered(session) == []
    assert session.pythonExec == Path(sys.executable).name
