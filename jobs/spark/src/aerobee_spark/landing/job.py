"""Run the job of `aerobee facts`, which streams messages in batches into a facts table.

After a crash, Spark repeats the last batch with the same number and the same range of offsets. A
batch that was committed is skipped; any other batch is written again. So the table has each message
once, and readers do not see part of a batch. This holds even if a broker, Spark or this process is
killed.
"""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerobee_spark.errors import MqError, ReportError
from aerobee_spark.reading import planning
from aerobee_spark.reading.offsets import Bounds, Queue
from aerobee_spark.reading.options import ReadOptions
from aerobee_spark.report.engines import choice
from aerobee_spark.report.engines.spark_engine import (
    spark_failures_converted,
    spark_path,
    with_log_tail,
)
from aerobee_spark.report.request import SPARK
from aerobee_spark.stream.positions import Positions
from aerobee_spark.table.commits import Commit, Landed, Span, spans
from aerobee_spark.table.files import CHECKPOINT, FactsFiles
from aerobee_spark.table.hadoop_files import HadoopFiles
from aerobee_spark.table.local_files import LocalFiles
from aerobee_spark.table.rows import landed_at
from aerobee_spark.table.storage import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

OnStep = Callable[[str], None]
POLL_S = 1
# If a broker is unavailable, the read of a batch waits up to this time in milliseconds for it.
PULL_TIMEOUT_MS = 60_000
LOG_LINES = 15


@dataclass(frozen=True, slots=True)
class LandRequest:
    """A request to write messages into a facts table.

    The messages are those of a consumer group's dead-letter or retry topics (`kinds`), or those of
    `topics`. `every_ms` is the interval of batches in milliseconds. If it is 0, the job writes the
    existing messages and ends.
    """

    name_server: str
    table: Table
    consumer_group: str = ""
    kinds: tuple[str, ...] = ("dlq", "retry")
    topics: tuple[str, ...] = ()
    every_ms: int = 0
    # Most messages of one batch.
    batch_size: int = 200_000
    include_bodies: bool = True

    def about(self) -> dict[str, Any]:
        """Return the description that the table stores: its group or topics.

        It must be the same for all runs that write into a table.
        """
        if self.consumer_group:
            return {"group": self.consumer_group, "kinds": list(self.kinds)}
        return {"topics": sorted(self.topics)}

    def options(self) -> dict[str, str]:
        """Return the options of the data source for the stream.

        With these options, lost messages do not stop the stream; they are only counted.
        """
        options = {
            "nameServer": self.name_server,
            "maxOffsetsPerTrigger": str(self.batch_size),
            "failOnDataLoss": "false",
            "pullTimeoutMs": str(PULL_TIMEOUT_MS),
            "includeBody": str(self.include_bodies).lower(),
        }
        if self.consumer_group:
            kind = "both" if len(self.kinds) > 1 else self.kinds[0]
            return {**options, "consumerGroup": self.consumer_group, "kind": kind}
        return {**options, "topic": ",".join(self.topics)}


@dataclass(frozen=True, slots=True)
class LandResult:
    """The result of one run.

    `away` has a sentence for each queue that was not read completely. `queues` describes the
    content of the whole table.
    """

    rows: int
    lost: int
    batches: int
    away: tuple[str, ...]
    queues: tuple[Span, ...]


def land(request: LandRequest, on_step: OnStep) -> LandResult:
    """Write messages into a facts table: the existing messages, or new ones until interrupted.

    After an error the table is still consistent, and the next run continues where this one ended.

    Raises:
        MqError: the messages cannot be read.
        ReportError: Spark fails, or the table does not match the request.
    """
    choice.check(SPARK)
    if isinstance(request.table, str):
        with _spark(request, on_step) as running:
            files = FactsFiles(HadoopFiles(running.spark, request.table))
            landing = Landing(files, files.where, request, on_step)
            return _land(request, files, lambda held: _stream(running, landing))
    here = LocalFiles(request.table)
    files = FactsFiles(here)

    def stream(held: Sequence[int]) -> None:
        """Run the stream in a Java process that also holds the lock of the table."""
        with spark_path(here.path) as link, _spark(request, on_step, held) as running:
            _stream(running, Landing(files, str(link), request, on_step))

    return _land(request, files, stream)


def _land(
    request: LandRequest, files: FactsFiles, stream: Callable[[Sequence[int]], None]
) -> LandResult:
    asked = _ask(request, files)
    check_not_made_again(asked, spans(_known(files)))
    files.create(request.about())
    with files.lock() as held:
        before = {commit.name for commit in files.commits()}
        stream(held)
        asked_again = _ask(request, files)
        commits = files.commits()
        mine = [commit for commit in commits if commit.name not in before]
        landed = spans(commits)
    away = [*_problems(asked), *_problems(asked_again), *_behind(asked, landed)]
    return LandResult(
        sum(commit.rows for commit in mine),
        sum(span.lost for span in spans(mine)),
        len(mine),
        tuple(dict.fromkeys(away)),
        tuple(landed),
    )


def _ask(request: LandRequest, files: FactsFiles) -> dict[Queue, Bounds | MqError]:
    """Ask brokers for the minimum and maximum offset of the queues of the request and the table.

    The value of a queue is an MqError if its broker did not answer.

    Raises:
        MqError: no name server answers, or a group or topic does not exist.
    """
    options = ReadOptions.parse(_batch_options(request))
    known = {landed.queue for commit in _known(files) for landed in commit.queues}
    with planning.connect(request.name_server) as admin:
        try:
            queues = set(planning.queues_of(admin, options))
        except MqError:
            if not known:
                raise
            queues = set()
        return planning.bounds_of_queues(admin, sorted(known | queues))


def check_not_made_again(answers: Mapping[Queue, Bounds | MqError], landed: Sequence[Span]) -> None:
    """Raise ReportError if a queue ends before the last offset that the table has of it.

    Such a queue was deleted and created again. Its new messages would have the same offsets as
    earlier messages in the table, and readers would not see them.
    """
    for span in landed:
        bounds = answers.get(span.queue)
        if isinstance(bounds, Bounds) and bounds.max_offset < span.end:
            raise ReportError(
                f"{span.queue} ends at queue offset {bounds.max_offset}, but the table has it up "
                f"to {span.end}: the topic was deleted and created again, or purged; use a new "
                "--table",
                str(span.queue),
            )


def _problems(answers: Mapping[Queue, Bounds | MqError]) -> list[str]:
    return [answer.message for answer in answers.values() if isinstance(answer, MqError)]


def _behind(answers: Mapping[Queue, Bounds | MqError], landed: Sequence[Span]) -> list[str]:
    """Return a sentence for each queue that was not written up to its end at the start of the run.

    The broker of such a queue was unavailable for a while, but may be available again.
    """
    ends = {span.queue: span.end for span in landed}
    return [
        f"{queue}: written up to queue offset {ends.get(queue, 0)} of {bounds.max_offset}: its "
        "broker was unavailable for a while; run the command again"
        for queue, bounds in answers.items()
        if not isinstance(bounds, MqError)
        and ends.get(queue, bounds.min_offset) < bounds.max_offset
    ]


def _batch_options(request: LandRequest) -> dict[str, str]:
    return {
        name: value for name, value in request.options().items() if name != "maxOffsetsPerTrigger"
    }


def _known(files: FactsFiles) -> list[Commit]:
    try:
        files.about()
    except ReportError:
        return []
    return files.commits()


# ---- inside Spark ----


@dataclass(frozen=True, slots=True)
class _Running:
    spark: SparkSession
    log: Path


@contextmanager
def _spark(
    request: LandRequest, on_step: OnStep, inherited: Sequence[int] = ()
) -> Iterator[_Running]:
    """Start Spark for the block. `inherited` are open files that Java also keeps open."""
    from aerobee_spark.jvm.session import session

    with tempfile.TemporaryDirectory(prefix="aerobee-facts-") as folder, ExitStack() as stack:
        log, scratch = Path(folder) / "spark.log", Path(folder) / "spark"
        scratch.mkdir()
        on_step("starting Spark")
        with with_log_tail(log):
            running = session(scratch, log, brief=not request.every_ms, inherited=inherited)
            spark = stack.enter_context(running)
        yield _Running(spark, log)


def _stream(running: _Running, landing: Landing) -> None:
    """Run the stream until it ends. Raise SystemExit if a signal ended it."""
    with with_log_tail(running.log), spark_failures_converted(), _signals() as noted:
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
    rows = spark.readStream.format(FORMAT).options(**request.options()).load()
    return (
        rows.writeStream.foreachBatch(landing.batch)
        .option("checkpointLocation", f"{landing.link}/{CHECKPOINT}")
        .trigger(**trigger)
        .start()
    )


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Record SIGINT and SIGTERM during the block, and yield the list of recorded signal numbers.

    The signal handler does not raise, because an exception during a call into Java would make the
    connection unusable.
    """
    noted: list[int] = []

    def note(number: int, frame: object) -> None:
        noted.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
