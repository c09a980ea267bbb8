"""Write the messages of a report and compute its figures with Spark.

Spark runs in a new session, or in the session of spark-submit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from aerobee_spark.errors import ReportError
from aerobee_spark.jvm import session
from aerobee_spark.reading.offsets import OffsetRange
from aerobee_spark.report import publishing
from aerobee_spark.report.data import buckets, facts, figures
from aerobee_spark.report.data.figures import Figures, Row
from aerobee_spark.report.data.sql_dialect import SPARK
from aerobee_spark.report.publishing import plain_path
from aerobee_spark.report.request import DLQ, RETRY, ReportRequest
from aerobee_wire import topics

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

# Characters in paths that Spark interprets as lists, patterns, URIs or escapes.
MEANINGFUL = frozenset(",:;[]{}()*?!^\\%#\"' ")
# The number of lines of Spark's log in the message of a failure.
LOG_LINES = 15
# Up to this number of messages, starting Spark takes longer than the work.
FEW_MESSAGES = 300_000
# Matches the last line of a traceback that ends in an error of this project.
_OUR_ERROR = re.compile(r"^\s*aerobee_\w+(?:\.\w+)*\.\w+: (.+)$", re.MULTILINE)
# Below this number of messages, a second task takes more time than it saves.
MESSAGES_FOR_TWO_TASKS = 20_000


def make(
    request: ReportRequest,
    ranges: Sequence[OffsetRange],
    folder: Path,
    on_step: Callable[[str], None],
) -> tuple[Figures, int]:
    """Write the messages of a report to Parquet files, and compute the figures.

    Args:
        request: the request for the report.
        ranges: the ranges to read.
        folder: the folder of the unfinished report.
        on_step: called with each step.

    Returns:
        The figures, and the width of a bucket of the timeline in milliseconds.

    Raises:
        ReportError: Spark fails. The message contains the end of Spark's log.
    """
    log, brief = folder / "spark.log", sum(map(len, ranges)) <= FEW_MESSAGES
    with with_log_tail(log), spark_path(folder) as plain:
        scratch, target = plain / "spark", plain / publishing.FACTS
        scratch.mkdir()
        on_step("starting Spark")
        with session.session(scratch, log, brief=brief) as spark, spark_failures_converted():
            if request.table:
                schema = spark.read.parquet(str(target)).schema
            else:
                on_step("reading from the brokers")
                schema = write_facts(spark, request, ranges, target)
            bucket_ms = buckets.choose(facts.time_span(target), request.bucket_ms)
            on_step("computing the figures")
            found = figures_of(spark, target, schema, bucket_ms=bucket_ms, top=request.top)
    return found, bucket_ms


def figures_of(
    spark: SparkSession, folder: Path, schema: StructType, *, bucket_ms: int, top: int
) -> Figures:
    """Compute the figures of a report from the Parquet files in `folder`.

    `schema` is the schema of the Parquet files, so that Spark does not need to read it from them.
    """
    spark.read.schema(schema).parquet(str(folder)).createOrReplaceTempView("facts")

    def query(text: str) -> list[Row]:
        return [row.asDict() for row in spark.sql(text).collect()]

    return figures.compute(query, SPARK, bucket_ms=bucket_ms, top=top)


def write_facts(
    spark: SparkSession, request: ReportRequest, ranges: Sequence[OffsetRange], folder: Path
) -> StructType:
    """Read the messages in `ranges`, and write them to Parquet files in `folder`.

    Return the schema of the files.
    """
    from pyspark.sql import functions as F

    from aerobee_spark.reading.schema import SCHEMA
    from aerobee_spark.source import FORMAT, register

    register(spark)
    if ranges:
        many = sum(map(len, ranges)) >= MESSAGES_FOR_TWO_TASKS
        tasks = spark.sparkContext.defaultParallelism if many else 1
        options = facts.read_options(request, ranges, tasks)
        read = spark.read.format(FORMAT).options(**options).load()
    else:
        # `createDataFrame` would start Python workers, even without rows.
        nothing = [F.lit(None).cast(each.dataType).alias(each.name) for each in SCHEMA]
        read = spark.range(0).select(nothing)
    rows = with_history(read, request.consumer_group)
    rows.write.parquet(str(folder))
    return rows.schema


def with_history(rows: DataFrame, consumer_group: str) -> DataFrame:
    """Add the columns of a report's Parquet files that the data source does not have."""
    from pyspark.sql import functions as F

    def first_of(names: Sequence[str]) -> Column:
        return F.coalesce(*(F.col("properties")[name] for name in names))

    dead = topics.dead_letter_topic(consumer_group)
    return rows.withColumns(
        {
            "kind": F.when(F.col("topic") == dead, F.lit(DLQ)).otherwise(F.lit(RETRY)),
            "consumerGroup": F.lit(consumer_group),
            **{column: first_of(names) for column, names in facts.HISTORY.items()},
            "producerHost": F.regexp_replace("bornHost", facts.PORT, ""),
        }
    )


@contextmanager
def spark_failures_converted() -> Iterator[None]:
    """Convert a failure of Spark in the block to a ReportError.

    If an error of this project caused the failure, the message is that of the error. Otherwise, it
    is the first line of Spark's message. Use this inside the session, because the message must be
    read before Spark stops.
    """
    try:
        yield
    except Exception as error:
        text = str(error).strip()
        ours = _OUR_ERROR.findall(text)
        first = next(iter(text.splitlines()), type(error).__name__)
        raise ReportError(ours[-1] if ours else f"Spark failed: {first}") from error


@contextmanager
def with_log_tail(log: Path) -> Iterator[None]:
    """Add the end of Spark's log to a ReportError that is raised in the block."""
    try:
        yield
    except ReportError as error:
        lines = log.read_text("utf-8", "replace").splitlines() if log.exists() else []
        tail = [f"  {line}" for line in lines[-LOG_LINES:]]
        raise ReportError("\n".join([error.message, *tail]), error.about) from error


@contextmanager
def spark_path(folder: Path) -> Iterator[Path]:
    """Provide a path to `folder` without characters that Spark interprets, during the block.

    The path is a link to the folder. Under spark-submit, it is the folder itself, because workers
    on other machines do not have the link. Then raise ReportError if the path has a character that
    Spark interprets.
    """
    if not session.is_submitted():
        with plain_path(folder) as link:
            yield link
        return
    whole = folder.resolve()
    if found := MEANINGFUL & set(str(whole)):
        raise ReportError(
            f"{whole} has {min(found)!r}, which has a meaning for Spark: use another folder",
            str(whole),
        )
    yield whole
