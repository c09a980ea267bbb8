"""Make a report: plan, choose the engine, read messages, compute figures, write files, publish.

The plan fixes the offsets to read, so messages that are stored later belong to the next report.
Modules that are slow to import are imported after the plan, so that a wrong name fails at once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from aerobee_spark.reading import planning
from aerobee_spark.report import publishing
from aerobee_spark.report.data import plan
from aerobee_spark.report.data.clusters import Clusters
from aerobee_spark.report.data.coverage import Coverage, QueueCoverage, with_rows
from aerobee_spark.report.data.forecast import Forecast, Trend
from aerobee_spark.report.data.states import (
    BrokerStates,
    LetterStates,
    StateSource,
    TableStates,
    as_columns,
)
from aerobee_spark.report.data.summary import PreviousReport, Summary, build, check_extra, new_from
from aerobee_spark.report.engines import choice, local_engine, spark_engine
from aerobee_spark.report.formats import encodable
from aerobee_spark.report.request import DLQ, LOCAL, SPARK, ReportRequest
from aerobee_spark.table.storage import Table

if TYPE_CHECKING:
    import pyarrow as pa

    from aerobee_client import AdminClient
    from aerobee_spark.report.engines.from_table import Written

ProgressSink = Callable[[str], None]
_ENGINES = {LOCAL: local_engine.make, SPARK: spark_engine.make}


def run(request: ReportRequest, on_step: ProgressSink) -> Summary:
    """Write the report to `request.out` and return its summary.

    Args:
        request: the request for the report.
        on_step: called with each step.

    Raises:
        MqError: the messages cannot be read. The folder is unchanged.
        ReportError: the report cannot be made. The folder is unchanged.
    """
    check_extra(request.extra)
    choice.check(request.engine)
    publishing.check_target(request.out)
    previous = PreviousReport.read(request.out / publishing.SUMMARY, request.consumer_group)
    now_ms = round(time.time() * 1000)
    planned: Sequence[QueueCoverage] = ()
    states: pa.Table | None = None
    trend: Trend | None = None
    if not request.table:
        planned = plan.queues(request, previous.queues(request.kinds))
    with publishing.scratch_folder(request.out) as folder:
        if request.table:
            on_step(f"reading the facts of {request.table}")
            planned, trend, states = _from_table(request, request.table, folder, now_ms)
        summary = _make(request, planned, previous, folder, on_step, trend=trend)
        on_step("writing tables and page")
        _write(
            summary, request, folder, states, new_from(Coverage(tuple(planned)), previous.earlier)
        )
        publishing.publish(folder, request.out)
    return summary


def _from_table(request: ReportRequest, table: Table, folder: Path, now_ms: int) -> Written:
    """Write the messages of a facts table into `folder`, so that the engine only computes figures.

    Return the queues of the report with the number of their messages, the trend, and the states of
    letters.
    """
    from aerobee_spark.report.engines import from_table

    return from_table.write(request, table, folder / publishing.FACTS, now_ms)


def _make(
    request: ReportRequest,
    planned: Sequence[QueueCoverage],
    previous: PreviousReport,
    folder: Path,
    on_step: ProgressSink,
    *,
    trend: Trend | None,
) -> Summary:
    """Compute the figures. `trend` is that of a facts table."""
    ranges = Coverage(tuple(planned)).to_read
    messages = sum(map(len, ranges))
    chosen = choice.choose(request.engine, messages, local_up_to=request.local_up_to)
    where = f"{len(ranges)} queues of {request.consumer_group}"
    on_step(f"{messages:,} messages in {where}: using the {chosen}")
    figures, bucket_ms = _ENGINES[chosen.engine](request, ranges, folder, on_step)
    rows = figures.rows_by_queue()
    now_ms = round(time.time() * 1000)
    coverage = Coverage(tuple(planned))
    forecast = Forecast(trend=trend)
    if not request.table:
        coverage = with_rows(planned, rows, plan.reasons(request, planned, rows))
        forecast = plan.forecast(request, planned, folder / publishing.FACTS, now_ms)
    return build(
        request,
        coverage,
        figures,
        engine=chosen.engine,
        forecast=forecast,
        now_ms=now_ms,
        bucket_ms=bucket_ms,
        earlier=previous.earlier,
    )


def _write(
    summary: Summary,
    request: ReportRequest,
    folder: Path,
    table_states: pa.Table | None,
    new: Mapping[tuple[str, int], int],
) -> None:
    from aerobee_spark.report.view import listing, page, tables

    csv_folder = folder / publishing.TABLES
    csv_folder.mkdir()
    with planning.connect(request.name_server) if not request.table else nullcontext() as admin:
        states = LetterStates(_states_from(admin, table_states))
        clusters = Clusters(request.consumer_group, summary["generated_timestamp_ms"], new)
        listing.write(
            folder / publishing.FACTS,
            csv_folder / "dead_letters.csv",
            folder / publishing.REDRIVE,
            states,
            clusters,
        )
        for sample in summary["samples"]:
            place = (sample[name] for name in ("topic", "broker_name", "queue_id", "queue_offset"))
            sample.update(as_columns(states.of(*place)))
    if DLQ in request.kinds:
        summary["dead_letters_by_state"] = dict(states.counts.most_common())
        summary["states_unknown"] = states.problems
        summary["number_of_clusters"] = clusters.count
        summary["clusters"] = encodable(clusters.top(request.top))
    for table in tables.tables_of(summary):
        tables.write_csv(csv_folder / f"{table.name}.csv", table.columns, table.rows)
    (folder / publishing.PAGE).write_text(
        page.render(summary, encodable(request.extra)), encoding="utf-8"
    )
    text = json.dumps(summary, indent=2, ensure_ascii=False)
    (folder / publishing.SUMMARY).write_text(text + "\n", encoding="utf-8")


def _states_from(admin: AdminClient | None, table_states: pa.Table | None) -> StateSource | None:
    """Return the source of the states: the brokers, or the facts table; None if it has none."""
    if admin is not None:
        return BrokerStates(admin)
    return None if table_states is None else TableStates(table_states)
