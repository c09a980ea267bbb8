"""Test reports under spark-submit: engine, Java, and paths that workers share."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_spark.errors import ReportError
from aerobee_spark.jvm import java, session
from aerobee_spark.report.engines import choice
from aerobee_spark.report.engines.spark_engine import spark_path
from aerobee_spark.report.request import AUTO, LOCAL, SPARK
from support.codes import raises_about


@pytest.fixture
def spark_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(session.GATEWAY_PORT, "1")


def no_java() -> java.Java:
    raise ReportError("there is no Java", "PATH")


@pytest.mark.usefixtures("spark_submit")
def test_who_submits_gets_spark_for_any_number_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "require_java", no_java)  # the JVM runs already
    for messages in (0, 10**9):
        assert choice.choose(AUTO, messages, local_up_to=100) == choice.Choice(SPARK)
    assert choice.choose(LOCAL, 10**9, local_up_to=100) == choice.Choice(LOCAL)


@pytest.mark.usefixtures("spark_submit")
def test_the_folder_itself_is_written_and_has_to_have_a_plain_path(tmp_path: Path) -> None:
    with spark_path(tmp_path) as path:
        assert path == tmp_path.resolve()
    comma = tmp_path / "a,b"
    comma.mkdir()
    with raises_about(ReportError, str(comma)), spark_path(comma):
        pass


def test_else_a_link_stands_for_any_folder(tmp_path: Path) -> None:
    comma = tmp_path / "a,b"
    comma.mkdir()
    with spark_path(comma) as path:
        assert path.resolve() == comma.resolve() and "," not in str(path)
