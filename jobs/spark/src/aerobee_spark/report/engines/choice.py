"""Choosing the engine: by what was asked for, how much there is to read, and what is installed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from aerobee_spark.errors import ReportError
from aerobee_spark.jvm import java, submitted
from aerobee_spark.report.request import AUTO, LOCAL, SPARK

_PACKAGES = {LOCAL: "duckdb", SPARK: "pyspark"}


@dataclass(frozen=True, slots=True)
class Choice:
    engine: str
    # Why not the one that `auto` prefers for so many messages; empty when it is.
    because: str = ""

    def __str__(self) -> str:
        return f"{self.engine} engine" + (f" ({self.because})" if self.because else "")


def check(asked: str) -> None:
    """Raises ReportError when the engine that was asked for by name cannot run here."""
    if asked != AUTO:
        _require(asked)


def choose(asked: str, messages: int, *, local_up_to: int) -> Choice:
    """With AUTO the local engine for up to `local_up_to` messages, Spark above; the other one when
    that cannot run here. Who uses spark-submit wants Spark. Raises ReportError when neither can."""
    if asked == AUTO and submitted.is_submitted():
        return Choice(SPARK)
    if asked != AUTO:
        _require(asked)
        return Choice(asked)
    preferred, other = (LOCAL, SPARK) if messages <= local_up_to else (SPARK, LOCAL)
    try:
        _require(preferred)
        return Choice(preferred)
    except ReportError as error:
        try:
            _require(other)
        except ReportError as second:
            raise ReportError(f"{error.message}; or: {second.message}", error.about) from None
        return Choice(other, error.message.partition(":")[0])


def _require(engine: str) -> None:
    package = _PACKAGES[engine]
    if find_spec(package) is None:
        raise ReportError(
            f"the {engine} engine needs {package}: pip install aerobee-spark[{engine}]", package
        )
    if engine == SPARK and not submitted.is_submitted():
        java.require_java()
