"""Copy the messages of a report from a facts table, without contacting a broker.

The table may also have messages that retention has deleted from the broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aerobee_spark.errors import ReportError
from aerobee_spark.options import redact_key
from aerobee_spark.reading import columns
from aerobee_spark.reading.offsets import OffsetRange, Queue
from aerobee_spark.reading.redaction import Redaction, redacted
from aerobee_spark.report.data.coverage import QueueCoverage, kind_of
from aerobee_spark.report.data.forecast import Trend, trend_window
from aerobee_spark.report.engines import local_facts
from aerobee_spark.report.request import DLQ, ReportRequest
from aerobee_spark.table import letter_states
from aerobee_spark.table.commits import Commit, Span, spans
from aerobee_spark.table.files import FactsFiles
from aerobee_spark.table.opening import opened
from aerobee_spark.table.rows import by_queue, landed_in, read
from aerobee_spark.table.storage import Table

SCHEMA = local_facts.SCHEMA


class Written(NamedTuple):
    """The contents of a facts table for a report.

    `trend` is None if the report reads no dead letters, or if its window is empty. `states` has the
    states of the dead letters; None if the table has none.
    """

    planned: list[QueueCoverage]
    trend: Trend | None
    states: pa.Table | None


def write(request: ReportRequest, table: Table, folder: Path, now_ms: int) -> Written:
    """Write the messages of a report to a Parquet file, and count them for each queue.

    Args:
        request: the request for the report.
        table: path or URI of the facts table.
        folder: the folder to write.
        now_ms: the current time, in milliseconds since the epoch.

    Raises:
        ReportError: the table does not exist, belongs to another group, lacks a topic, or needs
            Spark, which is not installed.
    """
    with opened(table) as files:
        _check(request, files)
        snapshot = files.snapshot()
        windows = _Windows(*trend_window(request.since_ms, request.until_ms, now_ms))
        planned = _write(request, windows.counted(read(files, snapshot)), snapshot, folder)
        trend = windows.trend(spans(snapshot)) if DLQ in request.kinds else None
        return Written(planned, trend, letter_states.read(files))


def _write(
    request: ReportRequest,
    batches: Iterator[pa.RecordBatch],
    snapshot: list[Commit],
    folder: Path,
) -> list[QueueCoverage]:
    folder.mkdir()
    path = folder / local_facts.FILE
    with pq.ParquetWriter(path, SCHEMA) as writer:
        for batch in _chosen(request, batches):
            (rows,) = pa.Table.from_batches([batch]).cast(SCHEMA).combine_chunks().to_batches()
            writer.write_batch(redacted_rows(request, rows))
    found = landed_in([path])
    windowed = request.since_ms is not None or request.until_ms is not None
    return [
        _covered(span, 0 if (row := found.get(span.queue)) is None else row.rows, windowed)
        for span in spans(snapshot)
        if kind_of(span.queue.topic) in request.kinds
    ]


class _Windows:
    """Counts the dead letters of the window of the trend, and of the window before it."""

    def __init__(self, since_ms: int, until_ms: int) -> None:
        self._since_ms, self._until_ms = since_ms, until_ms
        self._before_ms = 2 * since_ms - until_ms
        self._within = self._before = 0
        self._rows: Counter[Queue] = Counter()
        self._reach_back: set[Queue] = set()  # they have a row that is older than both windows

    def counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches after counting their dead letters."""
        for batch in batches:
            self._count(batch.filter(pc.equal(batch.column("kind"), DLQ)))
            yield batch

    def _count(self, letters: pa.RecordBatch) -> None:
        stored_ms = np.asarray(letters.column("storeTimestamp").cast(pa.int64())) // 1000
        self._within += int(((stored_ms >= self._since_ms) & (stored_ms < self._until_ms)).sum())
        earlier = (stored_ms >= self._before_ms) & (stored_ms < self._since_ms)
        self._before += int(earlier.sum())
        for queue, mask in by_queue(letters):
            self._rows[queue] += int(mask.sum())
            if (stored_ms[mask] < self._before_ms).any():
                self._reach_back.add(queue)

    def trend(self, covered: list[Span]) -> Trend | None:
        """Return the trend of the counted batches, which are those of the `covered` queues.

        The earlier window is complete if each queue has all of its messages, or an older one and no
        gap.
        """
        if self._until_ms <= self._since_ms:
            return None
        complete = all(
            self._rows[span.queue] == span.end or (not span.lost and span.queue in self._reach_back)
            for span in covered
            if kind_of(span.queue.topic) == DLQ
        )
        return Trend(self._since_ms, self._until_ms, self._within, self._before, complete)


def _check(request: ReportRequest, files: FactsFiles) -> None:
    about = files.about()
    if about.get("group") != request.consumer_group:
        what = f"the group {about['group']}" if "group" in about else ", ".join(about["topics"])
        raise ReportError(
            f"{files.where} is a table of {what}, but the report needs the group "
            f"{request.consumer_group}: use the table of this group",
            files.where,
        )
    missing = [kind for kind in request.kinds if kind not in about["kinds"]]
    if missing:
        raise ReportError(
            f"{files.where} was written with --kind {about['kinds'][0]}: use the same "
            "--kind for the report",
            files.where,
        )


def _chosen(request: ReportRequest, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        keep = pc.is_in(batch.column("kind"), value_set=pa.array(request.kinds))
        stored = batch.column("storeTimestamp")
        for limit, compare in (
            (request.since_ms, pc.greater_equal),
            (request.until_ms, pc.less),
        ):
            if limit is not None:
                moment = pa.scalar(limit * 1000, pa.int64()).cast(columns.TIMESTAMP)
                keep = pc.and_(keep, pc.fill_null(compare(stored, moment.cast(stored.type)), False))
        chosen = batch.filter(keep)
        if not request.include_bodies:
            at = chosen.schema.get_field_index("body")
            empty = pa.nulls(chosen.num_rows, pa.binary())
            chosen = chosen.set_column(at, chosen.schema.field(at), empty)
        if chosen.num_rows:
            yield chosen


def redacted_rows(request: ReportRequest, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Redact rows, and derive the columns that come from properties again.

    The columns then have the redacted values too.
    """
    if not request.redact:
        return rows
    message = pa.RecordBatch.from_arrays(
        [rows.column(name) for name in columns.ARROW_SCHEMA.names], schema=columns.ARROW_SCHEMA
    )
    made = redacted(message, Redaction.of(request.redact, redact_key()))
    return local_facts.with_history(made, request.consumer_group)


def _covered(span: Span, rows: int, windowed: bool) -> QueueCoverage:
    """Return the planned and the read messages of a queue.

    If the report is limited to a time window, lost messages are not counted, because their store
    times are unknown.
    """
    lost = 0 if windowed else span.lost
    problem = f"{lost} messages were deleted before the table got them" if lost else ""
    wanted = OffsetRange(span.queue, max(0, span.end - rows - lost), span.end)
    return QueueCoverage(span.queue, None, wanted, rows, problem, upto_ms=span.upto_ms)
