"""Jobs over dead letters and the states of the letters, as the records of the journal say.

This module does no I/O.

`LetterTable.apply` applies one record, at a start and when a record of a running job is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from aerobee_broker.delivery.letters.journal_records import (
    Action,
    JobEnded,
    JobSpec,
    JobStarted,
    JobState,
    LetterRecord,
    Progress,
    Torn,
)
from aerobee_broker.delivery.letters.selection import Run, offsets_of, runs_of
from aerobee_broker.delivery.letters.states import LetterState, LetterStates, Mark

# The first valid queue offset of a group's dead-letter queue.
MinOffset = Callable[[str, int], int]


@dataclass(slots=True, eq=False)
class LetterJob:
    """A job and its progress.

    `physical_offset` is that of its first record. `next_offsets` and `bounds` have an entry for
    each queue. `waits_for` is the reason why the job cannot continue now; "" if it can.
    """

    job_id: str
    spec: JobSpec
    bounds: Mapping[int, Run]
    started_ms: int
    physical_offset: int
    next_offsets: dict[int, int] = field(default_factory=dict)
    state: JobState = JobState.RUNNING
    ended_ms: int = 0
    sent: int = 0
    failed: int = 0
    already: int = 0
    duplicates: int = 0
    unreadable: int = 0
    topics: set[str] = field(default_factory=set)
    waits_for: str = ""
    is_stopping: bool = False  # its cancellation is not durable yet

    @property
    def total(self) -> int:
        return sum(end - start for start, end in self.bounds.values())

    @property
    def examined(self) -> int:
        return sum(self.next_offsets[queue_id] - low for queue_id, (low, _) in self.bounds.items())

    @property
    def is_running(self) -> bool:
        return self.state is JobState.RUNNING

    def continues(self) -> bool:
        """Return whether the job runs and is not being cancelled."""
        return self.is_running and not self.is_stopping


class LetterTable:
    """The jobs, oldest first, and the states of letters. `min_offset` bounds the states."""

    def __init__(self, min_offset: MinOffset) -> None:
        self.jobs: dict[str, LetterJob] = {}
        self.states = LetterStates()
        self._min_offset = min_offset

    def running(self, consumer_group: str) -> LetterJob | None:
        return next(
            (
                job
                for job in self.jobs.values()
                if job.is_running and job.spec.consumer_group == consumer_group
            ),
            None,
        )

    def apply(self, record: LetterRecord, at_ms: int, physical_offset: int) -> None:
        """Apply a record that was logged at this time and place.

        Records of an unknown job are ignored: retention has deleted its first record, and so the
        letters that it sent.
        """
        if isinstance(record, JobStarted):
            job = LetterJob(record.job_id, record.spec, record.bounds, at_ms, physical_offset)
            job.next_offsets = {queue_id: low for queue_id, (low, _) in record.bounds.items()}
            self.jobs[record.job_id] = job
            return
        found = self.jobs.get(record.job_id)
        if found is None:
            return
        if isinstance(record, Progress):
            self._advance(found, record, at_ms)
        elif isinstance(record, JobEnded) and found.is_running:
            found.state, found.ended_ms, found.waits_for = record.state, at_ms, ""

    def _advance(self, job: LetterJob, record: Progress, at_ms: int) -> None:
        job.next_offsets[record.queue_id] = record.next_offset
        group, queue_id = job.spec.consumer_group, record.queue_id
        low = self._min_offset(group, queue_id)
        state = LetterState.DISMISSED if job.spec.action is Action.DISMISS else LetterState.REDRIVEN
        for runs in (record.done, record.duplicates):
            self.states.put(group, queue_id, runs, Mark(state, job.job_id), at_ms, low)
        for error, runs in record.failed:
            mark = Mark(LetterState.OPEN, job.job_id, error)
            self.states.put(group, queue_id, runs, mark, at_ms, low)
            job.failed += _count(runs)
        job.sent += _count(record.done)
        job.duplicates += _count(record.duplicates)
        job.already += record.already
        job.unreadable += record.unreadable
        job.topics.update(topic for topic, _ in record.places)

    def forget_group(self, consumer_group: str, now_ms: int) -> None:
        """Remove the states of a deleted dead-letter topic, and end its job."""
        self.states.forget_group(consumer_group)
        job = self.running(consumer_group)
        if job is not None:
            job.state, job.ended_ms, job.waits_for = JobState.CANCELLED, now_ms, ""

    def collect(self, min_physical_offset: int) -> None:
        """Forget what retention has deleted: states of letters, and jobs that have ended."""
        for group, queue_id in self.states.queues():
            self.states.trim(group, queue_id, self._min_offset(group, queue_id))
        gone = [
            job.job_id
            for job in self.jobs.values()
            if not job.is_running and job.physical_offset < min_physical_offset
        ]
        for job_id in gone:
            del self.jobs[job_id]
            # Its letters come before its first record in the log, so they are deleted too.
            self.states.forget_job(job_id)


def torn(record: Progress, stored: int) -> Progress:
    """Return the progress of which only the first `stored` messages exist.

    The job continues at the first letter whose message is missing.
    """
    if stored >= record.announced:
        return record
    offsets = list(offsets_of(record.done))
    behind = offsets[stored]

    def before(runs: list[Run]) -> list[Run]:
        return [(start, min(end, behind)) for start, end in runs if start < behind]

    failed = [(error, before(list(runs))) for error, runs in record.failed]
    return record._replace(
        next_offset=behind,
        done=runs_of(offsets[:stored]),
        duplicates=before(list(record.duplicates)),
        failed=[(error, runs) for error, runs in failed if runs],
        already=0,  # unknown; the job counts those behind again
        unreadable=0,
    )


class JournalReader:
    """Applies the records of the journal in order. A record may correct the one before it."""

    def __init__(self, table: LetterTable) -> None:
        self._table = table
        # The last progress with its time and place: the next record may correct it.
        self.held: tuple[Progress, int, int] | None = None

    def read(self, record: LetterRecord, at_ms: int, physical_offset: int) -> None:
        if isinstance(record, Torn):
            self.correct(record.stored)
            return
        self.flush()
        if isinstance(record, Progress):
            self.held = record, at_ms, physical_offset
        else:
            self._table.apply(record, at_ms, physical_offset)

    def correct(self, stored: int) -> None:
        """Apply the held record with the messages that exist."""
        if self.held is not None:
            record, at_ms, physical_offset = self.held
            self.held = None
            self._table.apply(torn(record, stored), at_ms, physical_offset)

    def flush(self) -> None:
        """Apply the held record as it is."""
        if self.held is not None:
            self.correct(self.held[0].announced)


def _count(runs: Iterable[Run]) -> int:
    return sum(end - start for start, end in runs)
