"""Compact a facts table: join its files by day, and delete expired rows.

One commit adds the joined files, and replaces the commits of the original files. The original files
stay until the next compaction, so that readers that have started still find them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aerobee_spark.table.commits import Commit, Landed, spans
from aerobee_spark.table.files import FactsFiles
from aerobee_spark.table.rows import landed_in, read

RUN = "compact"
UNKNOWN_DAY = "unknown"  # for store times outside the supported range


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of a compaction: the number of rows kept, rows expired, and files."""

    rows: int
    expired: int
    files_before: int
    files_after: int


def compact(
    files: FactsFiles, *, keep_ms: int | None = None, now_ms: int | None = None
) -> Compacted:
    """Join the files of all commits by day, except those of the newest batch.

    The newest batch is excluded because the job may write it again after a crash.

    Args:
        files: the table.
        keep_ms: delete rows stored longer ago than this, in milliseconds; None keeps all.
        now_ms: the current time, in milliseconds since the epoch; None reads the clock.

    Raises:
        ReportError: the table does not exist, or another compaction holds the lock.
    """
    files.about()
    with files.lock("_compact.lock"):
        _remove_leftovers(files)
        chosen = _joinable(files.snapshot())
        before = sum(len(files.files(commit)) for commit in chosen)
        now = round(time.time() * 1000) if now_ms is None else now_ms
        oldest = None if keep_ms is None else now - keep_ms
        if not chosen or (before <= 1 and oldest is None):
            return Compacted(0, 0, before, before)
        return _join(files, chosen, before, oldest, now)


def _joinable(snapshot: Sequence[Commit]) -> list[Commit]:
    """Return all commits except that of the newest batch, which the job may write again."""
    newest = max((commit.seq for commit in snapshot if commit.run != RUN), default=0)
    return [commit for commit in snapshot if commit.run == RUN or commit.seq < newest]


def _join(
    files: FactsFiles, chosen: Sequence[Commit], before: int, oldest_ms: int | None, now_ms: int
) -> Compacted:
    number = 1 + max((each.batch for each in files.commits() if each.run == RUN), default=0)
    folder = f"{RUN}={number}"
    with files.storage.writing(folder) as target:
        rows, expired, written = _write(files, chosen, target, oldest_ms)
        found = landed_in(written)
    queues = []
    for span in spans(chosen):
        landed = found.get(span.queue) or Landed(*span.queue, None, span.end, 0)
        queues.append(replace(landed, start=span.start, end=span.end, lost=span.lost))
    files.commit(
        Commit(
            RUN,
            number,
            max(commit.seq for commit in chosen),
            folder,
            now_ms,
            tuple(queues),
            tuple(commit.name for commit in chosen),
        )
    )
    return Compacted(rows, expired, before, len(written))


def _write(
    files: FactsFiles, chosen: Sequence[Commit], folder: Path, oldest_ms: int | None
) -> tuple[int, int, list[Path]]:
    """Write the rows of commits into one file for each day, without expired rows.

    Return the number of written rows, the number of expired rows, and the files.
    """
    writers: dict[str, pq.ParquetWriter] = {}
    rows = expired = 0
    try:
        for batch in read(files, chosen):
            kept = batch
            if oldest_ms is not None:
                limit = pa.scalar(
                    datetime.fromtimestamp(oldest_ms / 1000, UTC), _stored(batch).type
                )
                young = pc.fill_null(pc.greater_equal(_stored(batch), limit), True)
                kept = batch.filter(young)
            expired += batch.num_rows - kept.num_rows
            rows += kept.num_rows
            for day, part in _by_day(kept):
                if day not in writers:
                    path = folder / f"day={day}" / "part.parquet"
                    path.parent.mkdir(parents=True)
                    writers[day] = pq.ParquetWriter(path, part.schema)
                writers[day].write_batch(part)
    finally:
        for writer in writers.values():
            writer.close()
    return rows, expired, sorted(folder.rglob("*.parquet"))


def _stored(batch: pa.RecordBatch) -> pa.Array:
    return batch.column("storeTimestamp")


def _by_day(batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
    days = pc.fill_null(pc.strftime(_stored(batch), format="%Y-%m-%d"), UNKNOWN_DAY)
    return [(day.as_py(), batch.filter(pc.equal(days, day))) for day in pc.unique(days)]


def _remove_leftovers(files: FactsFiles) -> None:
    """Delete files that the last compaction replaced, and folders of uncommitted compactions."""
    commits = files.commits()
    live = {commit.folder for commit in files.snapshot()}
    replaced = {name for commit in commits for name in commit.replaces}
    for commit in commits:
        if commit.name in replaced:
            if commit.folder:
                files.storage.delete(commit.folder)
            files.forget(commit)
    for name in files.storage.names():
        if name.startswith(f"{RUN}=") and name not in live:
            files.storage.delete(name)
