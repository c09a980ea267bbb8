"""Read the rows of a facts table, each message once.

If several commits have a message, the row of the newest commit is used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aerobee_spark.errors import ReportError
from aerobee_spark.reading.offsets import Queue
from aerobee_spark.table.commits import Commit, Landed
from aerobee_spark.table.files import FactsFiles

Offsets = npt.NDArray[np.int64]
ROWS = 65_536
KEY = ("topic", "brokerName", "queueId")


def read(
    files: FactsFiles, commits: Sequence[Commit], topics: Collection[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of commits, each message once. All batches have the schema of the first one.

    Offsets are kept in memory only for queues of which several commits may have the same messages.

    Args:
        files: the table.
        commits: the commits to read, newest first, as `snapshot` returns them.
        topics: the topics to yield. If empty, all topics are yielded.

    Raises:
        ReportError: rows of a commit are missing, because a second compaction or a user has
            deleted files in the meantime.
    """
    seen: dict[Queue, list[Offsets]] = {}
    schema: pa.Schema | None = None
    for commit, older in zip(commits, _older_too(commits), strict=True):
        landed: dict[Queue, list[Offsets]] = {}
        rows = 0
        for name in files.files(commit):
            for found in _batches(files, name):
                schema = schema or found.schema
                batch = found if found.schema.equals(schema) else _cast(found, schema)
                rows += batch.num_rows
                yield from _new(batch, seen, landed, older, topics)
        if rows != commit.rows:
            raise _incomplete(files, f"{commit.folder} has {rows} of {commit.rows} rows")
        for queue, offsets in landed.items():
            seen.setdefault(queue, []).extend(offsets)


def _incomplete(files: FactsFiles, problem: str) -> ReportError:
    return ReportError(
        f"{files.where} is incomplete, or was compacted twice during the read: {problem}; "
        "retry, and if the error remains, write a new table",
        files.where,
    )


def _batches(files: FactsFiles, name: str) -> Iterator[pa.RecordBatch]:
    with ExitStack() as stack:
        try:
            path = stack.enter_context(files.storage.local(name))
            file = stack.enter_context(pq.ParquetFile(path))
        except FileNotFoundError:
            raise _incomplete(files, f"{name} is missing") from None
        yield from file.iter_batches(batch_size=ROWS)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Cast a batch, because the engines name the parts of a map differently."""
    (made,) = pa.Table.from_batches([batch]).cast(schema).combine_chunks().to_batches()
    return made


def _older_too(commits: Sequence[Commit]) -> list[set[Queue]]:
    """Find the queues of each commit whose messages older commits may have too.

    `commits` is sorted from newest to oldest. A queue is included if its offsets in the commit
    overlap the range from the lowest to the highest offset in older commits.
    """
    reach: dict[Queue, tuple[int, int]] = {}
    found = []
    for commit in reversed(commits):
        meeting = set()
        for part in commit.queues:
            if part.first_offset is None or part.last_offset is None:
                continue
            known = reach.get(part.queue)
            first, last = known or (part.first_offset, part.last_offset)
            if known and part.first_offset <= last and first <= part.last_offset:
                meeting.add(part.queue)
            reach[part.queue] = min(first, part.first_offset), max(last, part.last_offset)
        found.append(meeting)
    return found[::-1]


def _new(
    batch: pa.RecordBatch,
    seen: dict[Queue, list[Offsets]],
    landed: dict[Queue, list[Offsets]],
    older: set[Queue],
    topics: Collection[str],
) -> Iterator[pa.RecordBatch]:
    keep = np.ones(batch.num_rows, np.bool_)
    offsets = batch.column("queueOffset").to_numpy()
    for queue, rows in by_queue(batch):
        mine = offsets[rows]
        if topics and queue.topic not in topics:
            keep[rows] = False
        for known in seen.get(queue, ()):
            keep[rows] &= ~np.isin(mine, known)
        if queue in older:
            landed.setdefault(queue, []).append(mine)
    if keep.all():
        yield batch
    elif keep.any():
        yield batch.filter(pa.array(keep))


def by_queue(batch: pa.RecordBatch) -> Iterator[tuple[Queue, npt.NDArray[np.bool_]]]:
    """Yield each queue of a batch, with a mask that selects its rows."""
    columns = [batch.column(name) for name in KEY]
    different = pa.table(columns, names=list(KEY)).group_by(list(KEY)).aggregate([]).to_pylist()
    for key in different:
        queue = Queue(*(key[name] for name in KEY))
        masks = [pc.equal(column, value) for column, value in zip(columns, queue, strict=True)]
        rows = pc.and_(pc.and_(masks[0], masks[1]), masks[2])
        yield queue, rows.to_numpy(zero_copy_only=False)


def landed_at(files: FactsFiles, names: Iterable[str]) -> dict[Queue, Landed]:
    """Return row count, offsets and store times of each queue in files of the table.

    `landed_in` describes the result.
    """
    with ExitStack() as stack:
        return landed_in([stack.enter_context(files.storage.local(name)) for name in names])


def landed_in(paths: Sequence[Path]) -> dict[Queue, Landed]:
    """Return row count, offsets and store times of each queue in Parquet files.

    `start` is None, and `end` is the offset after the last row, because files do not contain the
    range that a batch read.
    """
    found: dict[Queue, Landed] = {}
    names = [*KEY, "queueOffset", "storeTimestamp"]
    tables = [pq.read_table(path, columns=names) for path in paths]
    if not tables:
        return {}
    grouped = (
        pa.concat_tables(tables)
        .group_by(list(KEY))
        .aggregate(
            [("queueOffset", "min_max"), ("queueOffset", "count"), ("storeTimestamp", "min_max")]
        )
    )
    for row in grouped.to_pylist():
        offsets, times = row["queueOffset_min_max"], row["storeTimestamp_min_max"]
        queue = Queue(*(row[name] for name in KEY))
        found[queue] = Landed(
            *queue,
            None,
            offsets["max"] + 1,
            row["queueOffset_count"],
            0,
            offsets["min"],
            offsets["max"],
            None if times["min"] is None else round(times["min"].timestamp() * 1000),
            None if times["max"] is None else round(times["max"].timestamp() * 1000),
        )
    return found
