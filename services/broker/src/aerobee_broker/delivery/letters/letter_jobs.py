"""Run the jobs over dead letters: redrives and dismissals.

A job reads a group's dead-letter queues up to the offsets that they had when the job began. It
appends messages and its progress at once, so each message goes out once whatever is killed. A job
that was interrupted continues when this broker starts again, or when another replica becomes
master.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import structlog

from aerobee_broker.commit.durable_log import DurableLog
from aerobee_broker.delivery.letters import journal_records
from aerobee_broker.delivery.letters.jobs import JournalReader, LetterJob, LetterTable
from aerobee_broker.delivery.letters.journal_records import (
    QUEUE_ID,
    Action,
    JobEnded,
    JobSpec,
    JobStarted,
    JobState,
    LetterRecord,
    Progress,
    Torn,
)
from aerobee_broker.delivery.letters.outcomes import Outcomes
from aerobee_broker.delivery.letters.redriven import RedrivenMessages
from aerobee_broker.delivery.letters.selection import OpenedLetter, Run, offsets_of, runs_of
from aerobee_broker.delivery.letters.states import LetterEntry, LetterState
from aerobee_broker.errors import (
    InvalidParameter,
    LetterJobNotExist,
    LetterJobRefused,
    TransientReadError,
)
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.registry.broker_permission import BrokerPermission
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.messages import NewMessage, ReadResult, ReadStatus
from aerobee_chassis.clock import Clock
from aerobee_chassis.lifecycle import Component
from aerobee_wire import properties as props
from aerobee_wire import topics as names
from aerobee_wire.record import Record, iter_records
from aerobee_wire.redrive import Target
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_broker.traces import BrokerTraces

CHUNK_LETTERS = 1_024  # read at once, and sent by one append
CHUNK_BYTES = 4 * 1024 * 1024
SKIPPED_LETTERS = 65_536  # letters that were handled before: about 2 ms of the event loop
SPREAD = 32  # runs for one queue in each chunk, so that all queues get messages; see `_maker`
SLICE_LETTERS = 128  # processed at once: about 2 ms of the event loop
CHUNK_S = 0.25  # with a rate, one append sends the letters of this many seconds
WAIT_S = 1.0  # before a job that cannot continue retries
REPLAY_SLICE = 256
READ_SLICE = 64  # messages that a start reads one by one: about 2 ms
MAX_ERRORS = 100  # different texts of failures that one job records
MAX_ERROR_CHARACTERS = 300
MAX_COUNTS = 100  # reasons, topics and failures of a preview
MAX_STATES = 4_096  # of one call
RESOLVE_SLICE = 16  # outcomes looked up at once: about 5 ms of the event loop
_JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_OTHER_ERRORS = "another reason: too many different ones"


@dataclass(slots=True)
class Preview:
    """The counts of a preview; see PreviewLetterJobResponse."""

    stored: int = 0
    selected: int = 0
    would_send: int = 0
    body_bytes: int = 0
    already_sent: int = 0
    already_dismissed: int = 0
    duplicates: int = 0
    unreadable: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    topics: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    missing_ids: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Chunk:
    """Examined letters of one queue, up to `next_offset`, and the messages to send for them."""

    queue_id: int
    next_offset: int
    done: list[int] = field(default_factory=list)
    messages: list[NewMessage] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    duplicates: list[int] = field(default_factory=list)
    failed: dict[str, list[int]] = field(default_factory=dict)
    already: int = 0
    unreadable: int = 0


@dataclass(slots=True)
class _Ahead:
    """The progress of a job, including the chunk that it sends now, which may not be durable.

    `seen` has the hashes of the message ids of all its messages. `sending` stores `chunk`.
    """

    next_offsets: dict[int, int]
    sent: int
    seen: set[int]
    chunk: _Chunk | None = None
    sending: asyncio.Task[None] | None = None

    def begin(self, chunk: _Chunk, sending: asyncio.Task[None]) -> None:
        self.chunk, self.sending = chunk, sending
        self.next_offsets[chunk.queue_id] = chunk.next_offset
        self.sent += len(chunk.done)
        self.seen.update(chunk.hashes)

    async def sent_durably(self, job: LetterJob) -> None:
        """Wait until the chunk is durable. Raises like `LetterJobs._send`."""
        if self.sending is not None:
            await self.sending
            self.chunk = self.sending = None
            job.waits_for = ""

    async def go_back(self, job: LetterJob) -> None:
        """Go back to the progress of the job if the chunk is not durable."""
        if self.chunk is not None and self.sending is not None:
            (error,) = await asyncio.gather(self.sending, return_exceptions=True)
            if error is not None:
                self.seen.difference_update(self.chunk.hashes)
                self.next_offsets, self.sent = dict(job.next_offsets), job.sent
        self.chunk = self.sending = None


class LetterJobs(Component):
    """Owns the jobs over dead letters of this broker, and runs them."""

    def __init__(
        self,
        *,
        log: DurableLog,
        topics: TopicRegistry,
        groups: GroupRegistry,
        permission: BrokerPermission,
        outcomes: Outcomes,
        metrics: BrokerMetrics,
        clock: Clock,
        traces: BrokerTraces | None = None,
    ) -> None:
        self._log = log
        self._store = log.store
        self._topics = topics
        self._groups = groups
        self._permission = permission
        self._outcomes = outcomes
        self._metrics = metrics
        self._clock = clock
        self._traces = traces
        self.table = LetterTable(self._min_offset)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_stopped = False
        # The waits for starts that are not durable yet, by job id.
        self._starting: dict[str, asyncio.Future[None]] = {}
        # A correction that the log does not have yet: logged before any other record.
        self._unlogged: list[NewMessage] = []

    def _min_offset(self, consumer_group: str, queue_id: int) -> int:
        return self._store.min_offset(names.dead_letter_topic(consumer_group), queue_id)

    # ---- startup and shutdown ----

    def restore_slices(self) -> Iterator[None]:
        """Restore jobs and states from the journal, yielding between slices of the work.

        If a crash left the last append incomplete, log which of its messages exist. Raises
        StoreReadError.
        """
        reader = JournalReader(self.table)
        for number, record in enumerate(self._journal(), 1):
            if number % REPLAY_SLICE == 0:
                yield
            self._read(reader, record)
        if reader.held is None:
            return
        progress, _, physical_offset = reader.held
        if progress.announced and not self._is_deleted(progress.job_id, physical_offset):
            stored = yield from self._stored(progress)
            if stored < progress.announced:
                structlog.get_logger().warning(
                    "letter_job_torn", job=progress.job_id, missing=progress.announced - stored
                )
                correction = Torn(progress.job_id, stored)
                self._unlogged = [journal_records.encode(correction, self._clock.now_ms())]
                reader.correct(stored)
        reader.flush()

    def _read(self, reader: JournalReader, record: Record) -> None:
        try:
            found = journal_records.decode(record.body)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            structlog.get_logger().error(
                "letter_record_unreadable", queue_offset=record.queue_offset, reason=repr(error)
            )
            return
        at_ms, place = record.store_timestamp_ms, record.physical_offset
        if isinstance(found, Progress) and self._is_deleted(found.job_id, place):
            reader.flush()
            return
        reader.read(found, at_ms, place)
        if isinstance(found, JobStarted) and self._is_deleted(found.job_id, place):
            self.table.forget_group(found.spec.consumer_group, at_ms)

    def _is_deleted(self, job_id: str, physical_offset: int) -> bool:
        """Return whether the dead-letter topic was deleted after a record of the job."""
        job = self.table.jobs.get(job_id)
        if job is None:
            return True
        topic = names.dead_letter_topic(job.spec.consumer_group)
        return physical_offset < self._store.deleted_below(topic)

    def _journal(self) -> Iterator[Record]:
        topic, store = names.LETTER_JOURNAL_TOPIC, self._store
        offset = store.min_offset(topic, QUEUE_ID)
        while offset < store.max_offset(topic, QUEUE_ID):
            found = store.read(
                topic, QUEUE_ID, offset, max_messages=CHUNK_LETTERS, max_bytes=CHUNK_BYTES
            )
            yield from iter_records(found.records, check_crc=False)
            if found.next_begin_offset <= offset:
                return
            offset = found.next_begin_offset

    def _stored(self, progress: Progress) -> Generator[None, None, int]:
        """Return how many messages of the last append of a job exist. Yield between slices of work.

        An incomplete append lacks its end. So these are the messages of the first letters. Another
        message may be at the place of a missing one, because a producer sent it after the crash.
        """
        job = self.table.jobs[progress.job_id]
        topic = names.dead_letter_topic(job.spec.consumer_group)
        ids = set()
        done = self._records(topic, progress.queue_id, offsets_of(progress.done))
        for number, letter in enumerate(done, 1):
            ids.add(OpenedLetter(letter).message_id)
            if number % READ_SLICE == 0:
                yield
        stored = 0
        for (to_topic, queue_id), (first, count) in progress.places.items():
            messages = self._records(to_topic, queue_id, range(first, first + count))
            for number, message in enumerate(messages, 1):
                if number % READ_SLICE == 0:
                    yield
                properties = message.properties
                stored += props.REDRIVE_TIMES in properties and message.unique_message_id in ids
        return stored

    def _records(self, topic: str, queue_id: int, offsets: Iterable[int]) -> Iterator[Record]:
        for offset in offsets:
            found = self._store.read(topic, queue_id, offset, max_messages=1)
            yield from iter_records(found.records, check_crc=False)

    async def start(self) -> None:
        if self._unlogged:
            try:
                self._append()
            except MqError as error:  # the next record of the journal brings it along
                structlog.get_logger().error("letter_job_torn_not_logged", reason=error.message)
        for job in self.table.jobs.values():
            if job.is_running:
                structlog.get_logger().info("letter_job_resumed", job=job.job_id)
                self._run_later(job)

    async def stop(self) -> None:
        self._is_stopped = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- requests ----

    async def start_job(self, job_id: str, spec: JobSpec) -> tuple[LetterJob, bool]:
        """Start a job, and return it. Return False with an existing job that has this id.

        The start is durable on return. After FlushTimeout, the job runs as soon as its start is
        durable. Raises InvalidParameter, GroupNotExist, LetterJobRefused, and the errors of the
        store.
        """
        self._check(spec)
        if not _JOB_ID.fullmatch(job_id):
            raise InvalidParameter(
                f"invalid job id {job_id[:80]!r}: give 1 to 64 letters, digits, _ and -", "job_id"
            )
        is_new = self._is_new(job_id, spec.consumer_group)
        if is_new:
            await self._make_target(spec)
            is_new = self._is_new(job_id, spec.consumer_group)  # another call may have started one
        if is_new:
            record = JobStarted(job_id, spec, self._bounds(spec.consumer_group))
            now_ms, place = self._clock.now_ms(), self._append(record)
            # Before the wait, so that a second call finds the job.
            self.table.apply(record, now_ms, place)
            started = partial(self._started, self.table.jobs[job_id])
            self._starting[job_id] = self._log.when_flushed(started)
        job = self.table.jobs[job_id]
        if job_id in self._starting:
            await asyncio.shield(self._starting[job_id])
        return job, is_new

    def _is_new(self, job_id: str, consumer_group: str) -> bool:
        """Return True if a job with this id may start now, and False if the job exists.

        Raises LetterJobRefused if another group has the id, or if another job of the group runs.
        """
        found = self.table.jobs.get(job_id)
        if found is not None:
            if found.spec.consumer_group == consumer_group:
                return False
            raise LetterJobRefused(
                f"job {job_id} belongs to group {found.spec.consumer_group}: give another job id"
            )
        other = self.table.running(consumer_group)
        if other is not None:
            raise LetterJobRefused(
                f"job {other.job_id} of group {consumer_group} still runs: wait for its end, or "
                f"cancel it (aerobee dlq jobs cancel {other.job_id})"
            )
        return True

    def _started(self, job: LetterJob, error: BaseException | None) -> None:
        """Run a job whose start is durable, or remove a job whose start was rolled back."""
        del self._starting[job.job_id]
        if error is None:
            structlog.get_logger().info(
                "letter_job_started",
                job=job.job_id,
                group=job.spec.consumer_group,
                action=job.spec.action.value,
                target=job.spec.target,
                by=job.spec.requested_by,
            )
            self._run_later(job)
        elif self._store.end_offset <= job.physical_offset:  # it was rolled back
            self.table.jobs.pop(job.job_id, None)
        else:  # another broker decides whether the start remains
            job.waits_for = f"it is unknown whether its start is durable: {error}"

    def _check(self, spec: JobSpec) -> None:
        self._groups.get(spec.consumer_group)
        if spec.action is Action.REDRIVE:
            Target.parse(spec.target)
        if spec.limit < 0:
            raise InvalidParameter(f"limit {spec.limit} is below 0", "limit")
        if not 0 <= spec.rate <= 1e9:
            raise InvalidParameter(f"rate {spec.rate} is invalid: give 0 to 1,000,000,000", "rate")

    async def _make_target(self, spec: JobSpec) -> None:
        """Create the target of a redrive to one topic, as a send does. Raises TopicNotExist."""
        target = Target.parse(spec.target) if spec.action is Action.REDRIVE else None
        if target is not None and target.topic:
            await self._topics.for_send(target.topic, 0)

    def _bounds(self, consumer_group: str) -> dict[int, Run]:
        topic, store = names.dead_letter_topic(consumer_group), self._store
        return {
            queue_id: (store.min_offset(topic, queue_id), store.max_offset(topic, queue_id))
            for queue_id in sorted(store.queues(topic))
        }

    def get(self, job_id: str) -> LetterJob:
        """Return a job. Raises LetterJobNotExist."""
        job = self.table.jobs.get(job_id)
        if job is None:
            raise LetterJobNotExist(job_id)
        return job

    def jobs(self, consumer_group: str = "") -> list[LetterJob]:
        """Return the jobs of a group, or of all groups, the newest first."""
        return [
            job
            for job in reversed(self.table.jobs.values())
            if consumer_group in ("", job.spec.consumer_group)
        ]

    async def cancel(self, job_id: str) -> tuple[LetterJob, bool]:
        """Cancel a job, and return whether it still ran. The end is durable on return.

        After FlushTimeout, the job sends no more, and ends as soon as its end is durable. Raises
        LetterJobNotExist, and the errors of the store.
        """
        job = self.get(job_id)
        if not job.continues():
            return job, False
        ending = self._end(job, JobState.CANCELLED)
        job.is_stopping = True
        await asyncio.shield(ending)
        return job, True

    def check_cancel_retries(self, consumer_group: str) -> None:
        """Check that the log accepts the record of `cancel_retries`. Raises MqError if not."""
        if self._redrive_to_retry(consumer_group) is not None:
            self._store.check_open_to_appends(reserve=True)

    def cancel_retries(self, consumer_group: str) -> asyncio.Future[None] | None:
        """Cancel the redrive to the retry topic of a group that is deleted now.

        Returns a future of its durable end, or None without such a job. Raises the errors of the
        store.
        """
        job = self._redrive_to_retry(consumer_group)
        if job is None:
            return None
        ending = self._end(job, JobState.CANCELLED)
        job.is_stopping = True
        return ending

    def _redrive_to_retry(self, consumer_group: str) -> LetterJob | None:
        job = self.table.running(consumer_group)
        if job is None or not job.continues() or job.spec.action is not Action.REDRIVE:
            return None
        return job if Target.parse(job.spec.target).is_retry else None

    async def preview(self, spec: JobSpec) -> Preview:
        """Count what a job would do. Raises InvalidParameter, GroupNotExist, StoreReadError."""
        self._check(spec)
        preview = Preview(missing_ids=set(spec.selection.ids))
        topic = names.dead_letter_topic(spec.consumer_group)
        seen: set[int] = set()
        maker = self._maker(spec, creates=True)
        for queue_id, (low, end) in self._bounds(spec.consumer_group).items():
            preview.stored += end - low
            offset: int | None = low
            while (offset := spec.selection.next_offset(queue_id, offset or 0)) is not None:
                if offset >= end:
                    break
                found = await self._read_letters(topic, queue_id, offset, CHUNK_LETTERS)
                preview.unreadable += found.corrupted_count
                for number, record in enumerate(iter_records(found.records, check_crc=False), 1):
                    if record.queue_offset < end:
                        self._count(preview, spec, maker, record, seen)
                    if number % SLICE_LETTERS == 0:
                        await asyncio.sleep(0)
                if found.next_begin_offset <= offset:
                    break
                offset = found.next_begin_offset
        if preview.selected and maker is not None:
            self._check_target(preview, maker)
        return preview

    @staticmethod
    def _check_target(preview: Preview, maker: RedrivenMessages) -> None:
        """Add the error of a target that does not exist, also if no letter would go there.

        The start of the job fails then, for example if all its letters were sent before.
        """
        try:
            maker.check_target()
        except MqError as error:
            preview.failures.setdefault(error.message[:MAX_ERROR_CHARACTERS], 0)

    def _count(
        self,
        preview: Preview,
        spec: JobSpec,
        maker: RedrivenMessages | None,
        record: Record,
        seen: set[int],
    ) -> None:
        selection = spec.selection
        if selection.next_offset(record.queue_id, record.queue_offset) != record.queue_offset:
            return
        letter = OpenedLetter(record)
        if not selection.selects(letter):
            return
        preview.selected += 1
        preview.missing_ids -= {letter.message_id, record.offset_message_id}
        mark = self.table.states.mark(spec.consumer_group, record.queue_id, record.queue_offset)
        if mark is not None and mark.state is not LetterState.OPEN and not spec.again:
            if mark.state is LetterState.DISMISSED:
                preview.already_dismissed += 1
            else:
                preview.already_sent += 1
            return
        if maker is not None:
            key = hash(letter.message_id)
            if key in seen:
                preview.duplicates += 1
                return
            seen.add(key)
            try:
                message = maker.message(letter)
            except MqError as error:
                preview.failures[error.message[:MAX_ERROR_CHARACTERS]] += 1
                return
            preview.topics[message.topic] += 1
        preview.would_send += 1
        preview.body_bytes += len(record.body)
        preview.reasons[letter.handled.get(props.DLQ_REASON, "")] += 1

    async def states(
        self, consumer_group: str, queue_id: int, begin: int, end: int
    ) -> list[LetterEntry]:
        """Return the states of letters that are not open, or that a job failed to send.

        Raises GroupNotExist, InvalidParameter, StoreReadError.
        """
        self._groups.get(consumer_group)
        if end - begin > MAX_STATES:
            raise InvalidParameter(f"{end - begin} letters: ask for at most {MAX_STATES} at once")
        topic = names.dead_letter_topic(consumer_group)
        begin = max(begin, self._store.min_offset(topic, queue_id))
        found: list[LetterEntry] = []
        looked_up = 0
        for page in self.table.states.pages(consumer_group, queue_id, begin, end):
            for at, entry in enumerate(page):
                if entry.state is LetterState.REDRIVEN:
                    page[at] = self._resolved(consumer_group, queue_id, entry)
                    looked_up += 1
                    if looked_up % RESOLVE_SLICE == 0:
                        await asyncio.sleep(0)
            found += page
            await asyncio.sleep(0)
        return found

    def _resolved(self, consumer_group: str, queue_id: int, entry: LetterEntry) -> LetterEntry:
        job = self.table.jobs.get(entry.mark.job_id)
        topic = names.dead_letter_topic(consumer_group)
        if job is None:
            return entry
        for letter in self._records(topic, queue_id, (entry.queue_offset,)):
            target = Target.parse(job.spec.target)
            state = self._outcomes.of(consumer_group, letter, target, job.started_ms)
            if state is LetterState.DEAD_AGAIN:
                self.table.states.settle(consumer_group, queue_id, entry, state)
            return entry._replace(state=state)
        return entry

    async def failures(
        self, job_id: str, queue_id: int, behind_offset: int, most: int
    ) -> tuple[list[tuple[int, LetterEntry]], bool]:
        """Return letters that a job failed to send, with their queue ids, and if there are more.

        Raises LetterJobNotExist.
        """
        job = self.get(job_id)
        found: list[tuple[int, LetterEntry]] = []
        for each in sorted(job.bounds):
            if each < queue_id:
                continue
            begin = behind_offset + 1 if each == queue_id else 0
            for page in self.table.states.pages(job.spec.consumer_group, each, begin):
                found += [
                    (each, entry)
                    for entry in page
                    if entry.mark.job_id == job_id and entry.mark.state is LetterState.OPEN
                ]
                if len(found) > most:
                    return found[:most], True
                await asyncio.sleep(0)
        return found, False

    def forget_group(self, consumer_group: str) -> None:
        """Forget the letters of a group whose dead-letter topic is deleted now."""
        self.table.forget_group(consumer_group, self._clock.now_ms())

    async def maintain(self) -> None:
        """Forget what retention has deleted. Called every minute."""
        self.table.collect(self._store.min_physical_offset)

    # ---- a job ----

    def _run_later(self, job: LetterJob) -> None:
        """Run a job in a task, unless it has one, is about to end, or has no durable start."""
        job_id = job.job_id
        is_known = self.table.jobs.get(job_id) is job and job_id not in self._starting
        is_running = self._is_stopped or job_id in self._tasks
        if is_running or not is_known or not job.continues():
            return
        task = asyncio.create_task(self._run_to_end(job), name=f"letter job {job_id}")
        self._tasks[job_id] = task

    async def _run_to_end(self, job: LetterJob) -> None:
        try:
            await self._run(job)
        finally:  # not in a callback, before which a failed cancellation would not run it again
            del self._tasks[job.job_id]

    async def _run(self, job: LetterJob) -> None:
        ahead: _Ahead | None = None
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        try:
            while job.continues():
                try:
                    if ahead is None:
                        ahead = _Ahead(dict(job.next_offsets), job.sent, await self._seen(job))
                    await asyncio.sleep(max(0.0, next_s - loop.time()))
                    await self._check_open(job)
                    chunk = await self._chunk(job, ahead)
                    await ahead.sent_durably(job)
                    if not job.continues():
                        return
                    if chunk is None:
                        await asyncio.shield(self._end(job, JobState.DONE))
                        return
                    # The disk writes these messages while the job examines the next letters.
                    ahead.begin(chunk, asyncio.create_task(self._send(job, chunk)))
                    if job.spec.rate:
                        await ahead.sent_durably(job)
                        next_s = max(next_s, loop.time() - CHUNK_S)
                        next_s += len(chunk.done) / job.spec.rate
                    continue
                except MqError as error:
                    if job.continues():
                        if not job.waits_for:
                            structlog.get_logger().warning(
                                "letter_job_waits", job=job.job_id, reason=error.message
                            )
                        job.waits_for = error.message
                except Exception:
                    structlog.get_logger().exception("letter_job_failed", job=job.job_id)
                    job.waits_for = "an unexpected error, which the log of the broker has"
                if ahead is not None:
                    await ahead.go_back(job)
                await asyncio.sleep(WAIT_S)
        finally:
            if ahead is not None and ahead.sending is not None:  # this task was cancelled
                ahead.sending.cancel()

    async def _check_open(self, job: LetterJob) -> None:
        """Check that the broker accepts the messages of a job now. Raises MqError if not."""
        if job.spec.action is Action.DISMISS:
            self._store.check_open_to_appends(reserve=True)
            return
        self._store.check_open_to_appends(reserve=False)
        self._log.check_sends()
        if Target.parse(job.spec.target).is_retry:
            self._permission.check_send_back()
            await self._groups.ensure_retry_topic(self._groups.get(job.spec.consumer_group))
        else:
            self._permission.check_send()

    def _maker(
        self, spec: JobSpec, *, letters: int = 1, creates: bool = False
    ) -> RedrivenMessages | None:
        """Return what makes the messages of a redrive, or None for a dismissal.

        `letters` are the letters that it will convert at most. With `creates`, a target that the
        start of the job would create counts as a topic.
        """
        if spec.action is Action.DISMISS:
            return None
        target = Target.parse(spec.target)

        def find(topic: str) -> TopicConfig | None:
            found = self._topics.table.get(topic)
            if found is None and creates and topic == target.topic:
                return self._topics.to_create(topic)
            return found

        now_ms, in_a_row = self._clock.now_ms(), max(1, letters // SPREAD)
        return RedrivenMessages(find, spec.consumer_group, target, now_ms, in_a_row)

    async def _seen(self, job: LetterJob) -> set[int]:
        """Return the hashes of the message ids that an interrupted job has sent."""
        seen: set[int] = set()
        if job.spec.action is Action.DISMISS:
            return seen
        topic, group = names.dead_letter_topic(job.spec.consumer_group), job.spec.consumer_group
        for queue_id, (low, _) in job.bounds.items():
            end = job.next_offsets[queue_id]
            for page in self.table.states.pages(group, queue_id, low, end):
                await asyncio.sleep(0)
                sent = runs_of(
                    entry.queue_offset
                    for entry in page
                    if entry.mark.job_id == job.job_id and entry.mark.state is LetterState.REDRIVEN
                )
                for start, run_end in sent:
                    seen |= await self._sent_in(topic, queue_id, start, run_end)
        return seen

    async def _sent_in(self, topic: str, queue_id: int, start: int, end: int) -> set[int]:
        """Return the hashes of the message ids of the letters in a run."""
        hashes: set[int] = set()
        offset = start
        while offset < end:
            found = await self._read_letters(topic, queue_id, offset, end - offset)
            for record in iter_records(found.records, check_crc=False):
                hashes.add(hash(OpenedLetter(record).message_id))
            await asyncio.sleep(0)
            if found.next_begin_offset <= offset:
                break
            offset = found.next_begin_offset
        return hashes

    async def _read_letters(self, topic: str, queue_id: int, offset: int, most: int) -> ReadResult:
        """Read letters. Wait while they cannot be read for now. Raises StoreReadError."""
        while True:
            try:
                return self._store.read(
                    topic, queue_id, offset, max_messages=most, max_bytes=CHUNK_BYTES
                )
            except TransientReadError:
                await asyncio.sleep(WAIT_S)

    async def _chunk(self, job: LetterJob, ahead: _Ahead) -> _Chunk | None:
        """Examine the next letters of a job. Return None at its end."""
        spec = job.spec
        most = CHUNK_LETTERS
        if spec.rate:
            most = max(1, min(most, int(spec.rate * CHUNK_S)))
        if spec.limit:
            most = min(most, spec.limit - ahead.sent)
        if most <= 0:
            return None
        for queue_id, (_, end) in job.bounds.items():
            begin = ahead.next_offsets[queue_id]
            readable = max(begin, self._min_offset(spec.consumer_group, queue_id))
            start = spec.selection.next_offset(queue_id, readable)
            if begin >= end:
                continue
            if start is None or start >= end:
                return _Chunk(queue_id, end)
            if not spec.again and spec.selection.is_everything:
                behind = self.table.states.handled_end(
                    spec.consumer_group, queue_id, start, min(end, start + SKIPPED_LETTERS)
                )
                if behind > start:
                    return _Chunk(queue_id, behind, already=behind - start)
            return await self._examine(job, _Chunk(queue_id, start), end, most, ahead.seen)
        return None

    async def _examine(
        self, job: LetterJob, chunk: _Chunk, end: int, most: int, seen: set[int]
    ) -> _Chunk:
        """Examine letters from the chunk's `next_offset` on, and add them to the chunk."""
        spec, queue_id, start = job.spec, chunk.queue_id, chunk.next_offset
        selection, group = spec.selection, spec.consumer_group
        topic = names.dead_letter_topic(group)
        count = min(CHUNK_LETTERS, end - start, max(64, 4 * most))
        found = await self._read_letters(topic, queue_id, start, count)
        if found.status is ReadStatus.OFFSET_TOO_SMALL:
            chunk.next_offset = min(found.min_offset, end)  # these have expired
            return chunk
        maker = self._maker(spec, letters=min(count, most))
        behind = min(found.next_begin_offset, end)
        handled = set() if spec.again else self.table.states.handled(group, queue_id, start, behind)
        in_chunk: set[int] = set()
        for number, record in enumerate(iter_records(found.records, check_crc=False), 1):
            offset = record.queue_offset
            if offset >= end or len(chunk.done) >= most:
                break
            chunk.unreadable += offset - chunk.next_offset
            chunk.next_offset = offset + 1
            if number % SLICE_LETTERS == 0:
                await asyncio.sleep(0)
            if selection.listed and selection.next_offset(queue_id, offset) != offset:
                continue
            letter = OpenedLetter(record)
            if not selection.selects(letter):
                continue
            if offset in handled:
                chunk.already += 1
                continue
            if maker is None:
                chunk.done.append(offset)
                continue
            key = hash(letter.message_id)
            if key in seen or key in in_chunk:
                chunk.duplicates.append(offset)
                continue
            try:
                message = maker.message(letter)
            except MqError as error:
                self._add_failure(chunk, offset, error)
                continue
            in_chunk.add(key)
            chunk.messages.append(message)
            chunk.done.append(offset)
            chunk.hashes.append(key)
        else:
            behind = max(behind, chunk.next_offset)
            chunk.unreadable += behind - chunk.next_offset
            chunk.next_offset = behind
        return chunk

    @staticmethod
    def _add_failure(chunk: _Chunk, offset: int, error: MqError) -> None:
        text = error.message[:MAX_ERROR_CHARACTERS]
        if text not in chunk.failed and len(chunk.failed) >= MAX_ERRORS:
            text = _OTHER_ERRORS
        chunk.failed.setdefault(text, []).append(offset)

    async def _send(self, job: LetterJob, chunk: _Chunk) -> None:
        """Append the messages of a chunk and the progress, and apply them when they are durable.

        Raises MqError if the log does not have them.
        """
        if not job.continues():  # a cancellation came between the decision to send and this call
            raise LetterJobRefused("the job was cancelled before this append")
        sizes: dict[tuple[str, int], int] = {}
        counts: dict[tuple[str, int], int] = {}
        for message in chunk.messages:
            queue = message.topic, message.queue_id
            counts[queue] = counts.get(queue, 0) + 1
            sizes[queue] = sizes.get(queue, 0) + len(message.body)
        places = {
            queue: (self._store.next_offset(*queue), count) for queue, count in counts.items()
        }
        record = Progress(
            job.job_id,
            chunk.queue_id,
            chunk.next_offset,
            runs_of(chunk.done),
            places,
            runs_of(chunk.duplicates),
            [(error, runs_of(offsets)) for error, offsets in chunk.failed.items()],
            chunk.already,
            chunk.unreadable,
        )
        if any(topic not in self._topics.table for topic, _ in places):
            raise LetterJobRefused("a topic was deleted while its messages were prepared")
        now_ms = self._clock.now_ms()
        unlogged, self._unlogged = self._unlogged, []
        entry = journal_records.encode(record, now_ms)
        begin_ns = self._traces.now_ns() if self._traces is not None else 0
        try:
            appended = await self._log.put_accepted([*unlogged, entry, *chunk.messages])
        except MqError:
            self._unlogged = unlogged or self._unlogged
            raise
        place = appended[len(unlogged)].physical_offset
        if place < self._store.deleted_below(names.dead_letter_topic(job.spec.consumer_group)):
            return  # the letters were deleted meanwhile
        self.table.apply(record, now_ms, place)
        if self._traces is not None:
            group = job.spec.consumer_group
            for message in chunk.messages:
                self._traces.stored_again(
                    "redrive", message.topic, group, message.properties, begin_ns
                )
        for queue, (_, count) in places.items():
            self._metrics.stored(queue[0], count, sizes[queue])

    def _end(self, job: LetterJob, state: JobState) -> asyncio.Future[None]:
        """Log the end of a job, and apply it when it is durable. Raises the errors of the store.

        Return a future of the wait, which may end with FlushTimeout.
        """
        record = JobEnded(job.job_id, state)
        place = self._append(record)
        return self._log.when_flushed(partial(self._ended, job, record, place))

    def _ended(
        self, job: LetterJob, record: JobEnded, place: int, error: BaseException | None
    ) -> None:
        job.is_stopping = False
        if error is not None:
            self._run_later(job)
            return
        self.table.apply(record, self._clock.now_ms(), place)
        structlog.get_logger().info(
            "letter_job_ended",
            job=job.job_id,
            state=job.state.value,
            sent=job.sent,
            failed=job.failed,
            already=job.already,
        )

    def _append(self, *records: LetterRecord) -> int:
        """Append records to the journal, and return the physical offset of the last one."""
        now_ms = self._clock.now_ms()
        entries = [journal_records.encode(record, now_ms) for record in records]
        unlogged = self._unlogged
        appended = self._store.append([*unlogged, *entries], reserve=True)
        if unlogged:
            self._unlogged = []
            place = appended[0].physical_offset

            def restore(error: BaseException | None) -> None:
                if error is not None and self._store.end_offset <= place:  # it was rolled back
                    self._unlogged = unlogged

            self._log.when_flushed(restore)
        return appended[-1].physical_offset
