"""Choose the engine of a report by the request, the number of messages, and installed packages."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from aerobee_spark.errors import ReportError
from aerobee_spark.jvm import java, session
from aerobee_spark.report.request import AUTO, LOCAL, SPARK

_PACKAGES = {LOCAL: "duckdb", SPARK: "pyspark"}


@dataclass(frozen=True, slots=True)
class Choice:
    engine: str
    # The reason why AUTO did not choose the preferred engine for this number of messages. It is
    # empty if AUTO chose the preferred engine.
    because: str = ""

    def __str__(self) -> str:
        return f"{self.engine} engine" + (f" ({self.because})" if self.because else "")


def check(asked: str) -> None:
    """Raise ReportError if the requested engine cannot run here."""
    if asked != AUTO:
        _require(asked)


def choose(asked: str, messages: int, *, local_up_to: int) -> Choice:
    """Choose the engine of a report.

    AUTO prefers the local engine for up to `local_up_to` messages, and Spark for more messages. If
    the preferred engine cannot run, AUTO chooses the other engine. Under spark-submit, AUTO always
    chooses Spark.

    Raises:
        ReportError: no suitable engine can run.
    """
    if asked == AUTO and session.is_submitted():
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
            f"the {engine} engine needs {package}: pip install 'aerobee-spark[{engine}]'", package
        )
    if engine == SPARK and not session.is_submitted():
        java.require_java()
