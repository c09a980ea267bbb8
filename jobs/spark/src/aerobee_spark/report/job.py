"""Making a report, step by step: plan, read, compute, write, publish.

The plan fixes the offsets: messages that are stored later belong to the next report. Slow imports
come after the plan, so that a wrong name fails at once.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from aerobee_spark.errors import ReportError
from aerobee_spark.jvm import java
from aerobee_spark.reading.offsets import OffsetRange
from aerobee_spark.report import publishing
from aerobee_spark.report.data import survey
from aerobee_spark.report.data.coverage import Coverage, QueueCoverage, with_rows
from aerobee_spark.report.data.figures import Figures
from aerobee_spark.report.data.previous import PreviousReport
from aerobee_spark.report.data.summary import Summary, build, check_extra
from aerobee_spark.report.request import ReportRequest
from aerobee_spark.report.view import buckets

ProgressSink = Callable[[str], None]
# Of Spark's log, in the message of a failure.
LOG_LINES = 15
# Up to so many, starting Spark takes longer than the work.
FEW_MESSAGES = 300_000


def run(request: ReportRequest, on_step: ProgressSink) -> Summary:
    """Writes the report to `request.out` and returns its summary. `on_step` gets each step.

    Raises MqError, also ReportError; the folder is then unchanged.
    """
    check_extra(request.extra)
    java.require_java()
    publishing.check_target(request.out)
    previous = PreviousReport.read(request.out / publishing.SUMMARY, request.consumer_group)
    planned = survey.plan(request, previous.queues(request.kinds))
    with publishing.scratch_folder(request.out) as folder:
        summary = _make(request, planned, previous, folder, on_step)
        publishing.publish(folder, request.out)
    return summary


def _make(
    request: ReportRequest,
    planned: Sequence[QueueCoverage],
    previous: PreviousReport,
    folder: Path,
    on_step: ProgressSink,
) -> Summary:
    ranges = Coverage(tuple(planned)).to_read
    messages = sum(map(len, ranges))
    on_step(f"{messages:,} messages in {len(ranges)} queues of {request.consumer_group} to read")
    figures, bucket_ms = _with_spark(request, ranges, folder, on_step)
    rows = figures.rows_by_queue()
    summary = build(
        request,
        with_rows(planned, rows, survey.reasons(request, planned, rows)),
        figures,
        now_ms=round(time.time() * 1000),
        bucket_ms=bucket_ms,
        earlier=previous.earlier,
    )
    on_step("writing tables and page")
    _write(summary, request, folder)
    return summary


def _with_spark(
    request: ReportRequest, ranges: Sequence[OffsetRange], folder: Path, on_step: ProgressSink
) -> tuple[Figures, int]:
    """Writes the facts; returns the figures, and the bucket width of the timeline in ms.

    Raises ReportError with the end of Spark's log.
    """
    from aerobee_spark.jvm.session import session
    from aerobee_spark.report.data import facts, figures

    log, brief = folder / "spark.log", sum(map(len, ranges)) <= FEW_MESSAGES
    with _with_log(log), _plain_name(folder) as plain:
        scratch, target = plain / "spark", plain / publishing.FACTS
        scratch.mkdir()
        on_step("starting Spark")
        with session(scratch, log, brief=brief) as spark, _first_line():
            on_step("reading from the brokers")
            schema = facts.write(spark, request, ranges, target)
            bucket_ms = buckets.choose(facts.time_span(target), request.bucket_ms)
            on_step("computing the figures")
            found = figures.compute(spark, target, schema, bucket_ms=bucket_ms, top=request.top)
    return found, bucket_ms


@contextmanager
def _plain_name(folder: Path) -> Iterator[Path]:
    """The same folder by a path without commas, brackets and colons, which mean lists, patterns and
    URIs to Spark."""
    with tempfile.TemporaryDirectory(prefix="aerobee-report-") as directory:
        link = Path(directory) / "work"
        link.symlink_to(folder.resolve(), target_is_directory=True)
        yield link


@contextmanager
def _first_line() -> Iterator[None]:
    """Turns a failure inside Spark into a ReportError with its first line. Its text must be read
    before Spark stops."""
    try:
        yield
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ReportError(f"Spark failed: {first}") from error


@contextmanager
def _with_log(log: Path) -> Iterator[None]:
    """Adds the end of Spark's log to a ReportError."""
    try:
        yield
    except ReportError as error:
        lines = log.read_text("utf-8", "replace").splitlines() if log.exists() else []
        tail = [f"  {line}" for line in lines[-LOG_LINES:]]
        raise ReportError("\n".join([error.message, *tail]), error.about) from error


def _write(summary: Summary, request: ReportRequest, folder: Path) -> None:
    from aerobee_spark.report.view import listing, page, tables

    csv_folder = folder / publishing.TABLES
    csv_folder.mkdir()
    for table in tables.tables_of(summary):
        tables.write_csv(csv_folder / f"{table.name}.csv", table.columns, table.rows)
    listing.write(
        folder / publishing.FACTS, csv_folder / "dead_letters.csv", folder / publishing.REDRIVE
    )
    (folder / publishing.PAGE).write_text(page.render(summary, request.extra), encoding="utf-8")
    text = json.dumps(summary, indent=2, ensure_ascii=False)
    (folder / publishing.SUMMARY).write_text(text + "\n", encoding="utf-8")
