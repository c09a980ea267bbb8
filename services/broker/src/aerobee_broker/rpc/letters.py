"""Implement DeadLetterService: states of dead letters, and the jobs that redrive or dismiss them.

Codes: SUBSCRIPTION_GROUP_NOT_EXIST, INVALID_PARAMETER, QUERY_NOT_FOUND (no such job),
ILLEGAL_OPERATION (another job of the group runs), TOPIC_NOT_EXIST (the target), and those of the
store. Apache's server has no such service.
"""

from __future__ import annotations

from collections import Counter

from aerobee.broker.v1 import dead_letter_pb2 as pb

from aerobee_broker.delivery.letters.jobs import LetterJob
from aerobee_broker.delivery.letters.journal_records import Action, JobSpec, JobState
from aerobee_broker.delivery.letters.letter_jobs import MAX_COUNTS, LetterJobs
from aerobee_broker.delivery.letters.selection import Selection, offsets_of, runs_of
from aerobee_broker.delivery.letters.states import LetterEntry, LetterState
from aerobee_broker.errors import InvalidParameter
from aerobee_chassis.rpc.call import Call

MAX_NOTE_BYTES, MAX_NAME_BYTES = 1_024, 256
DEFAULT_FAILURES = MAX_FAILURES = 1_024
_ACTIONS = {pb.LETTER_REDRIVE: Action.REDRIVE, pb.LETTER_DISMISS: Action.DISMISS}
_ACTION_NUMBERS = {action: number for number, action in _ACTIONS.items()}
_STATES = {
    LetterState.OPEN: pb.LETTER_OPEN,
    LetterState.REDRIVEN: pb.LETTER_REDRIVEN,
    LetterState.CONSUMED: pb.LETTER_CONSUMED,
    LetterState.DEAD_AGAIN: pb.LETTER_DEAD_AGAIN,
    LetterState.DISMISSED: pb.LETTER_DISMISSED,
}
_JOB_STATES = {
    JobState.RUNNING: pb.LETTER_JOB_RUNNING,
    JobState.DONE: pb.LETTER_JOB_DONE,
    JobState.CANCELLED: pb.LETTER_JOB_CANCELLED,
}


class LetterRpcs:
    def __init__(self, letters: LetterJobs) -> None:
        self._letters = letters

    async def preview_letter_job(
        self, request: pb.PreviewLetterJobRequest, call: Call
    ) -> pb.PreviewLetterJobResponse:
        found = await self._letters.preview(_spec(request.spec))
        return pb.PreviewLetterJobResponse(
            stored=found.stored,
            selected=found.selected,
            would_send=found.would_send,
            body_bytes=found.body_bytes,
            already_sent=found.already_sent,
            already_dismissed=found.already_dismissed,
            duplicates=found.duplicates,
            unreadable=found.unreadable,
            reasons=_counts(found.reasons),
            topics=_counts(found.topics),
            failures=_counts(found.failures),
            missing_ids=sorted(found.missing_ids),
        )

    async def start_letter_job(
        self, request: pb.StartLetterJobRequest, call: Call
    ) -> pb.StartLetterJobResponse:
        job, started = await self._letters.start_job(request.job_id, _spec(request.spec))
        return pb.StartLetterJobResponse(job=_job(job), started=started)

    async def cancel_letter_job(
        self, request: pb.CancelLetterJobRequest, call: Call
    ) -> pb.CancelLetterJobResponse:
        job, cancelled = await self._letters.cancel(request.job_id)
        return pb.CancelLetterJobResponse(job=_job(job), cancelled=cancelled)

    async def list_letter_jobs(
        self, request: pb.ListLetterJobsRequest, call: Call
    ) -> pb.ListLetterJobsResponse:
        jobs = self._letters.jobs(request.consumer_group)
        return pb.ListLetterJobsResponse(
            jobs=[_job(job) for job in jobs if request.job_id in ("", job.job_id)]
        )

    async def list_letter_failures(
        self, request: pb.ListLetterFailuresRequest, call: Call
    ) -> pb.ListLetterFailuresResponse:
        most = min(request.max_letters or DEFAULT_FAILURES, MAX_FAILURES)
        job = self._letters.get(request.job_id)
        found, more = await self._letters.failures(
            request.job_id, request.queue_id, request.behind_offset, max(1, most)
        )
        letters = [_entry(entry, job, queue_id) for queue_id, entry in found]
        return pb.ListLetterFailuresResponse(letters=letters, more=more)

    async def list_letter_states(
        self, request: pb.ListLetterStatesRequest, call: Call
    ) -> pb.ListLetterStatesResponse:
        entries = await self._letters.states(
            request.consumer_group, request.queue_id, request.begin, request.end
        )
        jobs = self._letters.table.jobs
        return pb.ListLetterStatesResponse(
            letters=[
                _entry(entry, jobs.get(entry.mark.job_id), request.queue_id) for entry in entries
            ]
        )


def _spec(given: pb.LetterJobSpec) -> JobSpec:
    """Convert a specification. Raises InvalidParameter."""
    action = _ACTIONS.get(given.action)
    if action is None:
        raise InvalidParameter(f"action {given.action} is unknown: use a LetterAction", "action")
    if action is Action.DISMISS and given.target:
        raise InvalidParameter("a dismissal sends nothing: leave the target empty", "target")
    for name, text, limit in (
        ("note", given.note, MAX_NOTE_BYTES),
        ("requested_by", given.requested_by, MAX_NAME_BYTES),
    ):
        if len(text.encode()) > limit:
            raise InvalidParameter(f"{name} has more than {limit} bytes: shorten it", name)
    wanted = given.selection
    return JobSpec(
        consumer_group=given.consumer_group,
        action=action,
        target=given.target,
        selection=Selection(
            frozenset(wanted.ids),
            wanted.tag,
            wanted.reason,
            wanted.since_ms,
            wanted.until_ms,
            {each.queue_id: runs_of(sorted(set(each.queue_offsets))) for each in wanted.listed},
        ),
        again=given.again,
        limit=given.limit,
        rate=given.rate,
        note=given.note,
        requested_by=given.requested_by,
    )


def _job(job: LetterJob) -> pb.LetterJob:
    spec, selection = job.spec, job.spec.selection
    return pb.LetterJob(
        job_id=job.job_id,
        spec=pb.LetterJobSpec(
            consumer_group=spec.consumer_group,
            action=_ACTION_NUMBERS[spec.action],
            target=spec.target,
            selection=pb.LetterSelection(
                ids=sorted(selection.ids),
                tag=selection.tag,
                reason=selection.reason,
                since_ms=selection.since_ms,
                until_ms=selection.until_ms,
                listed=[
                    pb.LetterOffsets(queue_id=queue_id, queue_offsets=offsets_of(runs))
                    for queue_id, runs in selection.listed.items()
                ],
            ),
            again=spec.again,
            limit=spec.limit,
            rate=spec.rate,
            note=spec.note,
            requested_by=spec.requested_by,
        ),
        state=_JOB_STATES[job.state],
        started_ms=job.started_ms,
        ended_ms=job.ended_ms,
        total=job.total,
        examined=job.examined,
        sent=job.sent,
        failed=job.failed,
        already=job.already,
        duplicates=job.duplicates,
        unreadable=job.unreadable,
        topics=sorted(job.topics),
        waits_for=job.waits_for,
    )


def _entry(entry: LetterEntry, job: LetterJob | None, queue_id: int) -> pb.LetterStateEntry:
    return pb.LetterStateEntry(
        queue_offset=entry.queue_offset,
        state=_STATES[entry.state],
        at_ms=entry.at_ms,
        job_id=entry.mark.job_id,
        requested_by=job.spec.requested_by if job else "",
        target=job.spec.target if job else "",
        error=entry.mark.error,
        queue_id=queue_id,
    )


def _counts(counter: Counter[str]) -> list[pb.LetterCount]:
    return [
        pb.LetterCount(name=name, letters=count) for name, count in counter.most_common(MAX_COUNTS)
    ]
