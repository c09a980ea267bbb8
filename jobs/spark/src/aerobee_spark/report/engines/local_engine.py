"""Facts and figures without Spark: read in this process, computed by DuckDB over the Parquet files.

DuckDB runs in this process and fetches no extensions. What does not fit into its memory goes to the
folder of the unfinished report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aerobee_spark.errors import ReportError
from aerobee_spark.reading.offsets import OffsetRange
from aerobee_spark.report import publishing
from aerobee_spark.report.data import buckets, facts, figures
from aerobee_spark.report.data.dialect import DUCKDB
from aerobee_spark.report.data.figures import Figures, Row
from aerobee_spark.report.engines.plain_path import plain_path
from aerobee_spark.report.request import ReportRequest

# The order of nulls is Spark's.
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
    """Raises MqError, also ReportError when DuckDB fails."""
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
    """`scratch`: for what DuckDB keeps outside of its memory."""
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
        raise ReportError(f"DuckDB failed: {first}") from error
