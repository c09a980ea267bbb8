"""Write messages in batches into a facts table, without Spark and Java.

The next batch starts at the offsets up to which the commits of the table cover its queues. So this
engine needs no checkpoint, and continues where Spark ended too. A batch that was not committed
leaves a folder, which the next batch replaces.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from aerobee_spark.errors import MqError, ReportError
from aerobee_spark.landing.request import LandRequest, OnStep
from aerobee_spark.landing.signals import noted_signals
from aerobee_spark.reading import planning
from aerobee_spark.reading.chunks import AWAY, read_ranges
from aerobee_spark.reading.offsets import Bounds, OffsetRange, Queue
from aerobee_spark.reading.options import ReadOptions
from aerobee_spark.report.engines import local_facts
from aerobee_spark.stream.admission import Seen, advance, limited
from aerobee_spark.stream.positions import Positions
from aerobee_spark.table.commits import Commit, Landed, spans
from aerobee_spark.table.files import FactsFiles
from aerobee_spark.table.rows import landed_at

if TYPE_CHECKING:
    from aerobee_client import AdminClient

RUN = "local"
# With an interval, states of dead letters are looked up for at most 1/20 of the time.
STATES_PAUSE = 20
POLL_S = 0.2  # a signal ends the wait for the next round after this time

# The bounds of each queue, or the error of its broker.
Answers = Mapping[Queue, Bounds | MqError]


@dataclass(slots=True)
class LocalLanding:
    """Writes the messages of a request into a facts table.

    `ask` returns the bounds of the queues of the request and the table. It raises ReportError if a
    queue was deleted and created again. `refresh` replaces the states of dead letters.
    """

    files: FactsFiles
    request: LandRequest
    ask: Callable[[], Answers]
    refresh: Callable[[Answers], None]
    on_step: OnStep
    # The offset after the last message that the table has of each queue.
    _ends: dict[Queue, int] = field(default_factory=dict)

    def run(self, answers: Answers) -> None:
        """Write the messages up to the bounds in `answers`, and later ones if they are requested.

        Raises:
            SystemExit: a signal ended the job.
            MqError: the messages cannot be read.
            ReportError: a record cannot be decoded.
        """
        self._ends = {span.queue: span.end for span in spans(self.files.commits())}
        with planning.connect(self.request.name_server) as admin:
            if not self.request.every_ms:
                self._round(admin, answers)
                return
            with noted_signals() as noted:
                due_s = states_due_s = time.monotonic()
                while not noted:
                    self._round(admin, answers)
                    start_s = time.monotonic()
                    if start_s >= states_due_s:
                        self.refresh(answers)
                        took_s = time.monotonic() - start_s
                        states_due_s = start_s + STATES_PAUSE * took_s
                    due_s = max(due_s + self.request.every_ms / 1000, time.monotonic())
                    while not noted and time.monotonic() < due_s:
                        time.sleep(POLL_S)
                    answers = {} if noted else self._asked_again()
        raise SystemExit(128 + noted[0])

    def _asked_again(self) -> Answers:
        """Return the bounds of the queues now; empty if no name server answers.

        Raise ReportError if a queue was made again.
        """
        try:
            return self.ask()
        except ReportError:
            raise
        except MqError as error:
            self.on_step(f"retrying in the next round: {error.message}")
            return {}

    def _round(self, admin: AdminClient, answers: Answers) -> None:
        """Write the messages up to the bounds in `answers`.

        If a broker does not answer, its queues keep their offsets until the next round.
        """
        # Another job may have written later messages after these bounds were requested.
        bounds = {
            queue: found
            for queue, found in answers.items()
            if not isinstance(found, MqError) and found.max_offset >= self._ends.get(queue, 0)
        }
        while planned := self._planned(bounds):
            stopped_at = self._batch(admin, planned, bounds)
            if stopped_at is not None:
                name = stopped_at.broker_name
                bounds = {queue: at for queue, at in bounds.items() if queue.broker_name != name}

    def _planned(self, bounds: Mapping[Queue, Bounds]) -> dict[Queue, int]:
        """Return the ends of the next batch; empty if the table has all messages."""
        starts = {queue: self._ends.get(queue, at.min_offset) for queue, at in bounds.items()}
        ends = limited(advance(Positions(starts), Seen(bounds)), self.request.batch_size)
        changed = any(ends[queue] != start for queue, start in starts.items())
        return ends if changed or starts.keys() - self._ends.keys() else {}

    def _batch(
        self, admin: AdminClient, planned: Mapping[Queue, int], bounds: Mapping[Queue, Bounds]
    ) -> Queue | None:
        """Write and commit one batch.

        Return the queue at which an unavailable broker ended the batch, or None.
        """
        number = self.files.next_seq()
        folder = f"run={RUN}/batch={number}"
        starts = {queue: self._ends.get(queue, at.min_offset) for queue, at in bounds.items()}
        ranges = [
            OffsetRange(queue, first, end)
            for queue, end in sorted(planned.items())
            if (first := max(starts[queue], bounds[queue].min_offset)) < end
        ]
        reading = _Reading(admin, self.request, ranges)
        self.files.storage.delete(folder)  # an attempt that was not committed may have left files
        if ranges:
            with self.files.storage.writing(folder) as path:
                local_facts.write_batches(reading.batches(), path)
        found = landed_at(self.files, self.files.parquet(folder))
        ends = {queue: reading.ends.get(queue, end) for queue, end in planned.items()}
        if reading.stopped_at is not None:
            # Ranges after the one at which the reading ended were not read.
            read = {wanted.queue for wanted in ranges if wanted.queue in reading.ends}
            unread = {wanted.queue for wanted in ranges} - read
            ends |= {queue: starts[queue] for queue in unread}
        commit = Commit(
            RUN,
            number,
            number,
            folder if ranges else "",
            round(time.time() * 1000),
            tuple(
                _landed(queue, starts[queue], end, found.get(queue))
                for queue, end in sorted(ends.items())
            ),
        )
        self.files.commit(commit)
        self._ends |= ends
        self.on_step(f"batch {number}: {commit.rows:,} rows")
        return reading.stopped_at


@dataclass(slots=True)
class _Reading:
    """Reads the ranges of a batch.

    `ends` has the offset after the last message that was read of each queue. `stopped_at` is the
    queue whose broker did not answer; None if all ranges were read.
    """

    admin: AdminClient
    request: LandRequest
    ranges: list[OffsetRange]
    ends: dict[Queue, int] = field(default_factory=dict)
    stopped_at: Queue | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the ranges, until a broker does not answer."""
        options = ReadOptions.parse(self.request.options())
        try:
            for wanted, chunk in read_ranges(self.admin, self.ranges, options):
                batch = local_facts.decoded(wanted, chunk, include_body=self.request.include_bodies)
                yield local_facts.with_history(batch, self.request.consumer_group)
                self.ends[wanted.queue] = min(chunk.next_offset, wanted.end)
        except MqError as error:
            if not error.retryable and error.code not in AWAY:
                raise
            left = (each for each in self.ranges if self.ends.get(each.queue, -1) < each.end)
            self.stopped_at = next(left).queue


def _landed(queue: Queue, start: int, end: int, found: Landed | None) -> Landed:
    rows = found or Landed(*queue, None, end, 0)
    return replace(rows, start=start, end=end, lost=end - start - rows.rows)
