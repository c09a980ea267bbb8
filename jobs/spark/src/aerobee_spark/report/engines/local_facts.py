"""Write the messages of a report into one Parquet file (its facts), without Spark.

Messages are decoded by the same code as in Spark's workers. The memory depends on the size of a row
group, but not on the number of messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aerobee_spark.errors import ReportError
from aerobee_spark.reading import columns, planning
from aerobee_spark.reading.chunks import Chunk, read_ranges
from aerobee_spark.reading.offsets import OffsetRange
from aerobee_spark.reading.options import ReadOptions
from aerobee_spark.reading.redaction import Redaction, redacted
from aerobee_spark.report.data import facts
from aerobee_spark.report.request import DLQ, RETRY, ReportRequest
from aerobee_wire import topics
from aerobee_wire.record import CorruptRecord

FILE = "part-00000.parquet"
# A row group is written when it reaches this number of rows, or this number of bytes in memory.
GROUP_ROWS = 100_000
GROUP_BYTES = 64 * 1024 * 1024

_ADDED = ["kind", "consumerGroup", *facts.HISTORY, "producerHost"]
SCHEMA = pa.schema([*columns.ARROW_SCHEMA, *((name, pa.string()) for name in _ADDED)])


def write(request: ReportRequest, ranges: Sequence[OffsetRange], folder: Path) -> None:
    """Read the messages in `ranges`, and write them to a Parquet file in `folder`.

    Raises:
        MqError: the messages cannot be read.
        ReportError: a record cannot be decoded.
    """
    write_batches(_batches(request, ranges), folder)


def write_batches(batches: Iterable[pa.RecordBatch], folder: Path) -> None:
    """Write batches with the columns of `SCHEMA` to a Parquet file in a new folder."""
    folder.mkdir(parents=True)
    with pq.ParquetWriter(folder / FILE, SCHEMA) as writer:
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            waiting.append(batch)
            rows, size = sum(each.num_rows for each in waiting), sum(map(_size, waiting))
            if rows >= GROUP_ROWS or size >= GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(waiting, SCHEMA), row_group_size=rows)
                waiting = []
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting, SCHEMA))


def _size(batch: pa.RecordBatch) -> int:
    size: int = batch.nbytes
    return size


def _batches(request: ReportRequest, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
    if not ranges:
        return
    options = ReadOptions.parse(facts.read_options(request, ranges))
    redaction = Redaction.of(options.redact, options.redact_key)
    with planning.connect(request.name_server) as admin:
        for wanted, chunk in read_ranges(admin, ranges, options):
            batch = decoded(wanted, chunk, include_body=options.include_body)
            rows = redacted(batch, redaction) if options.redact else batch
            yield with_history(rows, request.consumer_group)


def decoded(wanted: OffsetRange, chunk: Chunk, *, include_body: bool) -> pa.RecordBatch:
    """Decode a chunk of a range. Raise ReportError if a record cannot be decoded."""
    try:
        return columns.decode(chunk.records, wanted.queue.broker_name, include_body=include_body)
    except CorruptRecord as error:
        problem = f"{wanted.queue}: cannot decode a record: {error.reason}"
        raise ReportError(problem, str(wanted.queue)) from None


def with_history(rows: pa.RecordBatch, consumer_group: str) -> pa.RecordBatch:
    """Add the columns of a report's Parquet files that the data source does not have.

    Without a group, `kind` and `consumerGroup` are null.
    """
    properties = rows.column("properties")

    def first_of(names: Sequence[str]) -> pa.Array:
        return pc.coalesce(*(pc.map_lookup(properties, name, "first") for name in names))

    kind = group = pa.nulls(rows.num_rows, pa.string())
    if consumer_group:
        dead = pc.equal(rows.column("topic"), topics.dead_letter_topic(consumer_group))
        kind, group = pc.if_else(dead, DLQ, RETRY), pa.repeat(consumer_group, rows.num_rows)
    added = [
        kind,
        group,
        *(first_of(names) for names in facts.HISTORY.values()),
        pc.replace_substring_regex(rows.column("bornHost"), facts.PORT, ""),
    ]
    return pa.RecordBatch.from_arrays([*rows.columns, *added], schema=SCHEMA)
