"""Stream messages in batches into a facts table with Spark.

After a crash, Spark repeats the last batch with the same number and the same range of offsets. A
batch that was committed is skipped; any other batch is written again.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerobee_spark.landing.request import LandRequest, OnStep
from aerobee_spark.landing.signals import noted_signals
from aerobee_spark.reading.offsets import Queue
from aerobee_spark.report.engines.spark_engine import spark_failures_converted, with_log_tail
from aerobee_spark.stream.positions import Positions
from aerobee_spark.table.commits import Commit, Landed
from aerobee_spark.table.files import CHECKPOINT, FactsFiles
from aerobee_spark.table.rows import landed_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S = 1


@dataclass(frozen=True, slots=True)
class RunningSpark:
    spark: SparkSession
    log: Path


@contextmanager
def started(
    request: LandRequest, on_step: OnStep, inherited: Sequence[int] = ()
) -> Iterator[RunningSpark]:
    """Start Spark for the block. `inherited` are open files that Java also keeps open."""
    from aerobee_spark.jvm.session import session

    with tempfile.TemporaryDirectory(prefix="aerobee-facts-") as folder, ExitStack() as stack:
        log, scratch = Path(folder) / "spark.log", Path(folder) / "spark"
        scratch.mkdir()
        on_step("starting Spark")
        with with_log_tail(log):
            running = session(scratch, log, brief=not request.every_ms, inherited=inherited)
            spark = stack.enter_context(running)
        yield RunningSpark(spark, log)


def stream(running: RunningSpark, landing: Landing) -> None:
    """Run the stream until it ends. Raise SystemExit if a signal ended it."""
    with with_log_tail(running.log), spark_failures_converted(), noted_signals() as noted:
        query = _start(running.spark, landing)
        _wait(query, noted)
    if noted:
        raise SystemExit(128 + noted[0])


def _start(spark: SparkSession, landing: Landing) -> StreamingQuery:
    from aerobee_spark.source import FORMAT, register

    register(spark)
    request = landing.request
    trigger: dict[str, Any] = {"availableNow": True}
    if request.every_ms:
        trigger = {"processingTime": f"{request.every_ms} milliseconds"}
    rows = spark.readStream.format(FORMAT).options(**request.stream_options()).load()
    return (
        rows.writeStream.foreachBatch(landing.batch)
        .option("checkpointLocation", f"{landing.link}/{CHECKPOINT}")
        .trigger(**trigger)
        .start()
    )


def _wait(query: StreamingQuery, noted: Sequence[int]) -> None:
    """Wait until the query ends or a signal arrives, and stop the query.

    Raise the exception of the query if it failed.
    """
    try:
        while not query.awaitTermination(POLL_S) and not noted:
            pass
    finally:
        query.stop()


@dataclass(frozen=True, slots=True)
class Landing:
    """Writes the batches of a stream into a facts table.

    `link` is a path or URI of the table, without characters that Spark interprets.
    """

    files: FactsFiles
    link: str
    request: LandRequest
    on_step: OnStep

    def batch(self, rows: DataFrame, number: int) -> None:
        """Write one batch of the query, unless it was committed before."""
        run = self._run()
        if self.files.is_committed(run, number):
            return
        start, end = self._positions(number)
        folder = f"run={run}/batch={number}"
        self.files.storage.delete(folder)  # an attempt that was not committed may have left files
        if start is None or start.of != end.of:
            # Combine tasks: each queue has its own task with few rows, and many small files are
            # slower to write and to read than few large files.
            cores = rows.sparkSession.sparkContext.defaultParallelism
            facts = _with_history(rows, self.request).coalesce(cores)
            facts.write.parquet(f"{self.link}/{folder}")
        found = landed_at(self.files, self.files.parquet(folder))
        commit = Commit(
            run,
            number,
            self.files.next_seq(),
            folder,
            round(time.time() * 1000),
            tuple(_landed(queue, start, at, found) for queue, at in sorted(end.of.items())),
        )
        self.files.commit(commit)
        self.on_step(f"batch {number}: {commit.rows:,} rows")

    def _run(self) -> str:
        """Return the id of the query. It is the same until the checkpoint is deleted."""
        found: dict[str, str] = json.loads(self.files.storage.read(f"{CHECKPOINT}/metadata"))
        return found["id"]

    def _positions(self, number: int) -> tuple[Positions | None, Positions]:
        """Return the offsets before and after a batch, from Spark's checkpoint.

        The offsets before the first batch are None.
        """
        return self._noted(number - 1) if number else None, self._noted(number)

    def _noted(self, number: int) -> Positions:
        noted = self.files.storage.read(f"{CHECKPOINT}/offsets/{number}")
        lines = noted.decode().splitlines()
        return Positions.parse(json.loads(lines[-1]))


def _landed(
    queue: Queue, start: Positions | None, end: int, found: Mapping[Queue, Landed]
) -> Landed:
    begin = None if start is None else min(start.of.get(queue, end), end)
    rows = found.get(queue) or Landed(*queue, None, end, 0)
    first = rows.first_offset if begin is None else begin
    lost = 0 if first is None else end - first - rows.rows
    return replace(rows, start=begin, end=end, lost=lost)


def _with_history(rows: DataFrame, request: LandRequest) -> DataFrame:
    from pyspark.sql import functions as F

    from aerobee_spark.report.engines.spark_engine import with_history

    found = with_history(rows, request.consumer_group)
    if request.consumer_group:
        return found
    nothing = F.lit(None).cast("string")
    return found.withColumns({"kind": nothing, "consumerGroup": nothing})
