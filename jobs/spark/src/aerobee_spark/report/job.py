"""Makes a report, step by step: plan, read, compute, write, publish.

The plan fixes the offsets: what is stored meanwhile belongs to the next report. Nothing that is
heavy to load is imported before the plan stands.
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

Tell = Callable[[str], None]
# Of Spark's log, shown when it fails.
LOG_LINES = 15
# Up to here the start of Spark is most of the work.
FEW_MESSAGES = 300_000


def run(request: ReportRequest, tell: Tell) -> Summary:
    """Writes the report to `request.out` and returns its summary. `tell` hears of progress.

    Raises MqError (ReportError among them); then nothing has changed in the folder.
    """
    check_extra(request.extra)
    java.require_java()
    publishing.check_target(request.out)
    previous = PreviousReport.read(request.out / publishing.SUMMARY, request.consumer_group)
    planned = survey.plan(request, previous.queues(request.kinds))
    with publishing.workshop(request.out) as folder:
        summary = _make(request, planned, previous, folder, tell)
        publishing.publish(folder, request.out)
    return summary


def _make(
    request: ReportRequest,
    planned: Sequence[QueueCoverage],
    previous: PreviousReport,
    folder: Path,
    tell: Tell,
) -> Summary:
    ranges = Coverage(tuple(planned)).to_read
    messages = sum(map(len, ranges))
    tell(f"{messages:,} messages in {len(ranges)} queues of {request.consumer_group} to read")
    figures, bucket_ms = _with_spark(request, ranges, folder, tell)
    rows = figures.rows_by_queue()
    summary = build(
        request,
        with_rows(planned, rows, survey.reasons(request, planned, rows)),
        figures,
        now_ms=round(time.time() * 1000),
        bucket_ms=bucket_ms,
        earlier=previous.earlier,
    )
    tell("writing tables and page")
    _write(summary, request, folder)
    return summary


def _with_spark(
    request: ReportRequest, ranges: Sequence[OffsetRange], folder: Path, tell: Tell
) -> tuple[Figures, int]:
    """The facts in their folder, the figures, and the width of the timeline's columns.

    Raises ReportError with the end of Spark's log.
    """
    from aerobee_spark.jvm.session import session
    from aerobee_spark.report.data import facts, figures
    from aerobee_spark.report.view import listing

    log, brief = folder / "spark.log", sum(map(len, ranges)) <= FEW_MESSAGES
    with _with_log(log), _plain_name(folder) as plain:
        scratch, target = plain / "spark", plain / publishing.FACTS
        scratch.mkdir()
        tell("starting Spark")
        with session(scratch, log, brief=brief) as spark, _in_a_sentence():
            tell("reading from the brokers")
            schema = facts.write(spark, request, ranges, target)
            bucket_ms = buckets.choose(listing.time_span(target), request.bucket_ms)
            tell("computing the figures")
            found = figures.compute(spark, target, schema, bucket_ms=bucket_ms, top=request.top)
    return found, bucket_ms


@contextmanager
def _plain_name(folder: Path) -> Iterator[Path]:
    """The same folder by a name in which Spark sees no list, pattern or address: commas, brackets
    and colons mean something to it."""
    with tempfile.TemporaryDirectory(prefix="aerobee-report-") as place:
        link = Path(place) / "work"
        link.symlink_to(folder.resolve(), target_is_directory=True)
        yield link


@contextmanager
def _in_a_sentence() -> Iterator[None]:
    """Of a failure inside Spark, its first line; it cannot be asked once Spark has stopped."""
    try:
        yield
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ReportError(f"Spark failed: {first}") from error


@contextmanager
def _with_log(log: Path) -> Iterator[None]:
    """Puts the end of Spark's log below what failed."""
    try:
        yield
    except ReportError as error:
        lines = log.read_text("utf-8", "replace").splitlines() if log.exists() else []
        tail = [f"  {line}" for line in lines[-LOG_LINES:]]
        raise ReportError("\n".join([error.message, *tail])) from error


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
