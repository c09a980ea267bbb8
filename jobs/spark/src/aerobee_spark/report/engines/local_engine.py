"""Write the messages of a report and compute its figures without Spark, with DuckDB.

DuckDB runs in this process and does not download extensions. If data exceeds its memory, DuckDB
writes temporary files into the folder of the unfinished report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aerobee_spark.errors import ReportError
from aerobee_spark.reading.offsets import OffsetRange
from aerobee_spark.report import publishing
from aerobee_spark.report.data import buckets, facts, figures
from aerobee_spark.report.data.figures import Figures, Row
from aerobee_spark.report.data.sql_dialect import DUCKDB
from aerobee_spark.report.publishing import plain_path
from aerobee_spark.report.request import ReportRequest

# Settings of DuckDB. Null values are ordered as in Spark.
_SETTINGS: dict[str, Any] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "default_null_order": "nulls_first_on_asc_last_on_desc",
}


def make(
    request: ReportRequest,
    ranges: Sequence[OffsetRange],
    folder: Path,
    on_step: Callable[[str], None],
) -> tuple[Figures, int]:
    """Write the messages of a report to a Parquet file, and compute the figures.

    Args:
        request: the request for the report.
        ranges: the ranges to read.
        folder: the folder of the unfinished report.
        on_step: called with each step.

    Returns:
        The figures, and the width of a bucket of the timeline in milliseconds.

    Raises:
        MqError: the messages cannot be read.
        ReportError: DuckDB fails.
    """
    from aerobee_spark.report.engines import local_facts

    with plain_path(folder) as plain:
        target = plain / publishing.FACTS
        if not request.table:
            on_step("reading from the brokers")
            local_facts.write(request, ranges, target)
        bucket_ms = buckets.choose(facts.time_span(target), request.bucket_ms)
        on_step("computing the figures")
        return _compute(target, plain / "duckdb", bucket_ms, request.top), bucket_ms


def _compute(target: Path, scratch: Path, bucket_ms: int, top: int) -> Figures:
    """Compute the figures. DuckDB uses the folder `scratch` for data that exceeds its memory."""
    import duckdb

    settings = _SETTINGS | {"temp_directory": str(scratch)}
    try:
        with duckdb.connect(":memory:", config=settings) as connection:
            files = str(target / "*.parquet")
            connection.read_parquet(files).create_view("facts")

            def query(text: str) -> list[Row]:
                with connection.cursor() as cursor:
                    result = cursor.execute(text)
                    names = [column[0] for column in result.description]
                    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

            return figures.compute(query, DUCKDB, bucket_ms=bucket_ms, top=top)
    except duckdb.Error as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ReportError(f"DuckDB failed: {first}; use --engine spark, or free memory") from error
