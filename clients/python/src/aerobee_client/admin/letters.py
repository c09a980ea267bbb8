"""States of dead letters and the jobs over them: part of AsyncAdminClient.

A job runs on the broker that has the letters. `redriving` starts one job on all brokers that have
letters of a group.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from aerobee.broker.v1 import dead_letter_pb2 as pb

from aerobee_client.admin.brokers import BrokerAdmin, numbers_fit
from aerobee_client.runtime.kinds import checked_class
from aerobee_wire import rpcs
from aerobee_wire.redrive import WITHOUT
from aerobee_wire.status import Code, MqError, invalid_parameter

PREVIEW_S = 600.0  # a preview reads all letters of the group
MAX_STATES = 4_096  # letters of one request


class LetterState(StrEnum):
    """The state of a dead letter.

    OPEN: no job has sent or dismissed it. REDRIVEN: it was sent again, and the group has not
    consumed it yet. CONSUMED: it was sent again, and the group has consumed it. DEAD_AGAIN: it was
    sent again, and its message is in a later dead letter. DISMISSED: a job has dismissed it.
    """

    OPEN = "open"
    REDRIVEN = "redriven"
    CONSUMED = "consumed"
    DEAD_AGAIN = "dead again"
    DISMISSED = "dismissed"


_STATES = {
    pb.LETTER_OPEN: LetterState.OPEN,
    pb.LETTER_REDRIVEN: LetterState.REDRIVEN,
    pb.LETTER_CONSUMED: LetterState.CONSUMED,
    pb.LETTER_DEAD_AGAIN: LetterState.DEAD_AGAIN,
    pb.LETTER_DISMISSED: LetterState.DISMISSED,
}
_JOB_STATES = {
    pb.LETTER_JOB_RUNNING: "running",
    pb.LETTER_JOB_DONE: "done",
    pb.LETTER_JOB_CANCELLED: "cancelled",
}


@dataclass(frozen=True, slots=True)
class LetterStatus:
    """The state of a dead letter, and the job that sent or dismissed it or failed to.

    Attributes:
        state: The state of the letter.
        at_ms: When the job handled it, in milliseconds since the epoch; 0 without a job.
        job_id: The job; "" without one.
        requested_by: The person who started the job.
        target: Where the job sent it: "retry", "origin" or "topic:NAME".
        error: Why the job could not send it; "" if it could.
    """

    state: LetterState = LetterState.OPEN
    at_ms: int = 0
    job_id: str = ""
    requested_by: str = ""
    target: str = ""
    error: str = ""

    @classmethod
    def of(cls, entry: pb.LetterStateEntry) -> Self:
        return cls(
            _STATES[entry.state],
            entry.at_ms,
            entry.job_id,
            entry.requested_by,
            entry.target,
            entry.error,
        )


OPEN = LetterStatus()


@dataclass(frozen=True, slots=True)
class LetterFailure:
    """A dead letter that a job could not send."""

    broker_name: str
    queue_id: int
    queue_offset: int
    error: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterJobSpec:
    """A description of a job over dead letters.

    Args:
        consumer_group: The group whose letters it handles.
        target: Where a redrive sends: "retry", "origin" or "topic:NAME". "" to dismiss letters.
        ids: Only letters with these message ids or offset message ids.
        tag: Only letters with this tag.
        reason: Only letters with this reason.
        no_tag: Only letters without a tag. Exclusive with `tag`.
        no_reason: Only letters without a reason. Exclusive with `reason`.
        since_ms: Only letters stored at or after, in milliseconds since the epoch; 0: no limit.
        until_ms: Only letters stored before, in milliseconds since the epoch; 0: no limit.
        listed: Only letters at these queue offsets, by queue id.
        again: Also letters that were sent again or dismissed before.
        limit: The maximum number of letters to send or dismiss; 0 for all.
        rate: The maximum number per second; 0 for no limit.
        note: Any text, which the job keeps.
        requested_by: The person who starts the job.
    """

    consumer_group: str
    target: str = ""
    ids: Collection[str] = ()
    tag: str = ""
    reason: str = ""
    no_tag: bool = False
    no_reason: bool = False
    since_ms: int = 0
    until_ms: int = 0
    listed: Mapping[int, Sequence[int]] | None = None
    again: bool = False
    limit: int = 0
    rate: float = 0.0
    note: str = ""
    requested_by: str = ""

    def message(self) -> pb.LetterJobSpec:
        """Return the protobuf message. Raises MqError with the code INVALID_PARAMETER."""
        with numbers_fit():
            listed = self.listed or {}
            return pb.LetterJobSpec(
                consumer_group=self.consumer_group,
                action=pb.LETTER_REDRIVE if self.target else pb.LETTER_DISMISS,
                target=self.target,
                selection=pb.LetterSelection(
                    ids=sorted(self.ids),
                    tag=_wanted("tag", self.tag, none=self.no_tag),
                    reason=_wanted("reason", self.reason, none=self.no_reason),
                    since_ms=self.since_ms,
                    until_ms=self.until_ms,
                    listed=[
                        pb.LetterOffsets(queue_id=queue_id, queue_offsets=sorted(offsets))
                        for queue_id, offsets in listed.items()
                    ],
                ),
                again=self.again,
                limit=self.limit,
                rate=self.rate,
                note=self.note,
                requested_by=self.requested_by,
            )


def _wanted(name: str, value: str, *, none: bool) -> str:
    """Return a tag or reason of a selection. Raises MqError with the code INVALID_PARAMETER."""
    if none and value:
        raise invalid_parameter(
            f"no_{name} and the {name} {value!r} exclude each other", about=name
        )
    return WITHOUT if none else value


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterPreview:
    """The counts of a job that was not started, at one broker.

    Attributes:
        stored: The stored letters of the group.
        selected: The letters that the job selects. The other counts are of these.
        would_send: The letters that it would send or dismiss, without regard to the limit.
        body_bytes: The bytes of their bodies.
        already_sent: Letters that an earlier job has sent.
        already_dismissed: Letters that an earlier job has dismissed.
        duplicates: Letters whose message the job sends for an earlier letter.
        unreadable: Records that cannot be read.
        reasons: Letters to send by the reason of their failure, the most frequent first.
        topics: Letters to send by the topic to which they go.
        failures: Letters that cannot be sent by the error. With 0 letters, the target does not
            exist, so the job cannot start.
        missing_ids: Ids that no letter has.
    """

    stored: int
    selected: int
    would_send: int
    body_bytes: int
    already_sent: int
    already_dismissed: int
    duplicates: int
    unreadable: int
    reasons: Mapping[str, int]
    topics: Mapping[str, int]
    failures: Mapping[str, int]
    missing_ids: frozenset[str]

    @classmethod
    def of(cls, found: pb.PreviewLetterJobResponse) -> Self:
        return cls(
            stored=found.stored,
            selected=found.selected,
            would_send=found.would_send,
            body_bytes=found.body_bytes,
            already_sent=found.already_sent,
            already_dismissed=found.already_dismissed,
            duplicates=found.duplicates,
            unreadable=found.unreadable,
            reasons={each.name: each.letters for each in found.reasons},
            topics={each.name: each.letters for each in found.topics},
            failures={each.name: each.letters for each in found.failures},
            missing_ids=frozenset(found.missing_ids),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterJobDescription:
    """A job over dead letters at one broker. Times are milliseconds since the epoch.

    Attributes:
        job_id: The id that its starter gave.
        broker_name: The broker.
        consumer_group: The group of the letters.
        action: "redrive" or "dismiss".
        target: Where it sends; "" if it dismisses.
        filters: The conditions of the selection that are set.
        limit: The most letters that it sends or dismisses at this broker; 0 for all.
        rate: The most letters a second at this broker; 0 for no limit.
        state: "running", "done" or "cancelled".
        started_ms: The start.
        ended_ms: The end; 0 while it runs.
        total: The letters between its bounds.
        examined: The letters that it has examined.
        sent: The letters that it has sent or dismissed.
        failed: The letters that it could not send.
        already: The letters that an earlier job had sent or dismissed.
        duplicates: The letters whose message it has sent for an earlier letter.
        unreadable: Records that cannot be read.
        topics: The topics to which it has sent.
        waits_for: The reason why it cannot continue now; "" if it can.
        requested_by: The person who started it.
        note: The note of its starter.
    """

    job_id: str
    broker_name: str
    consumer_group: str
    action: str
    target: str
    filters: Mapping[str, str | int]
    limit: int
    rate: float
    state: str
    started_ms: int
    ended_ms: int
    total: int
    examined: int
    sent: int
    failed: int
    already: int
    duplicates: int
    unreadable: int
    topics: tuple[str, ...]
    waits_for: str
    requested_by: str
    note: str

    @classmethod
    def of(cls, broker_name: str, job: pb.LetterJob) -> Self:
        spec, selection = job.spec, job.spec.selection
        filters: dict[str, str | int] = {
            "ids": len(selection.ids),
            "tag": selection.tag.replace(WITHOUT, ""),
            "reason": selection.reason.replace(WITHOUT, ""),
            "no_tag": int(selection.tag == WITHOUT),
            "no_reason": int(selection.reason == WITHOUT),
            "since_ms": selection.since_ms,
            "until_ms": selection.until_ms,
            "listed": sum(len(each.queue_offsets) for each in selection.listed),
            "again": int(spec.again),
        }
        return cls(
            job_id=job.job_id,
            broker_name=broker_name,
            consumer_group=spec.consumer_group,
            action="dismiss" if spec.action == pb.LETTER_DISMISS else "redrive",
            target=spec.target,
            filters={name: value for name, value in filters.items() if value},
            limit=spec.limit,
            rate=spec.rate,
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
            topics=tuple(job.topics),
            waits_for=job.waits_for,
            requested_by=spec.requested_by,
            note=spec.note,
        )


@checked_class
class LetterAdmin(BrokerAdmin):
    async def preview_letter_job(self, broker: str, spec: LetterJobSpec) -> LetterPreview:
        """Count what a job over dead letters would do at one broker.

        Args:
            broker: The name of the broker.
            spec: What the job does.

        Returns:
            The counts.

        Raises:
            MqError: SUBSCRIPTION_GROUP_NOT_EXIST or INVALID_PARAMETER.
        """
        address = await self._master(broker)
        request = pb.PreviewLetterJobRequest(spec=spec.message())
        return LetterPreview.of(
            await self._brokers.ask(
                broker, address, rpcs.PREVIEW_LETTER_JOB, request, timeout_s=PREVIEW_S
            )
        )

    async def start_letter_job(
        self, broker: str, job_id: str, spec: LetterJobSpec
    ) -> LetterJobDescription:
        """Start a job over dead letters at one broker. A second call with its id does nothing.

        Args:
            broker: The name of the broker.
            job_id: The id of the job: 1 to 64 letters, digits, "_" and "-".
            spec: What the job does.

        Returns:
            The job, which has just begun or existed before.

        Raises:
            MqError: ILLEGAL_OPERATION if another job of the group runs or the id belongs to another
                group, TOPIC_NOT_EXIST, SUBSCRIPTION_GROUP_NOT_EXIST or INVALID_PARAMETER.
        """
        request = pb.StartLetterJobRequest(job_id=job_id, spec=spec.message())
        answer = await self._brokers.ask_named(broker, rpcs.START_LETTER_JOB, request)
        return LetterJobDescription.of(broker, answer.job)

    async def letter_jobs(
        self, consumer_group: str = "", *, job_id: str = "", silent: list[MqError] | None = None
    ) -> list[LetterJobDescription]:
        """Return the jobs over dead letters that the brokers remember, the newest first.

        Args:
            consumer_group: Only jobs of this group.
            job_id: Only the job with this id, which may run on several brokers.
            silent: See `list_topics`.

        Returns:
            The jobs, one for each broker.
        """
        request = pb.ListLetterJobsRequest(consumer_group=consumer_group, job_id=job_id)
        masters = await self._brokers.masters_to_ask(silent)
        answers = await self._brokers.ask_each(
            masters, rpcs.LIST_LETTER_JOBS, request, silent=silent
        )
        jobs = [
            LetterJobDescription.of(name, job)
            for name, answer in answers.items()
            for job in answer.jobs
        ]
        return sorted(jobs, key=lambda job: (-job.started_ms, job.job_id, job.broker_name))

    async def cancel_letter_job(self, job_id: str, *, silent: list[MqError] | None = None) -> int:
        """Cancel a job over dead letters on all brokers. Sent messages stay sent.

        Args:
            job_id: The id of the job.
            silent: See `create_topic`.

        Returns:
            The number of brokers on which it still ran.

        Raises:
            MqError: QUERY_NOT_FOUND if no broker has such a job.
        """
        request = pb.CancelLetterJobRequest(job_id=job_id)
        answers = await self._brokers.ask_masters(
            rpcs.CANCEL_LETTER_JOB, request, absent=(Code.QUERY_NOT_FOUND,), silent=silent
        )
        return sum(answer.cancelled for answer in answers.values())

    async def letter_failures(self, broker: str, job_id: str) -> list[LetterFailure]:
        """Return the dead letters that a job could not send at one broker.

        A letter that a later job has sent is left out.

        Args:
            broker: The name of the broker.
            job_id: The id of the job.

        Returns:
            The letters, by queue and offset.

        Raises:
            MqError: QUERY_NOT_FOUND if the broker has no such job.
        """
        found: list[LetterFailure] = []
        request = pb.ListLetterFailuresRequest(job_id=job_id, behind_offset=-1)
        while True:
            answer = await self._brokers.ask_named(broker, rpcs.LIST_LETTER_FAILURES, request)
            found += [
                LetterFailure(broker, each.queue_id, each.queue_offset, each.error, each.at_ms)
                for each in answer.letters
            ]
            if not answer.more:
                return found
            request.queue_id = found[-1].queue_id
            request.behind_offset = found[-1].queue_offset

    async def letter_states(
        self, consumer_group: str, broker: str, queue_id: int, begin: int, end: int
    ) -> dict[int, LetterStatus]:
        """Return the states of the dead letters that a job has handled.

        Args:
            consumer_group: The group.
            broker: The name of the broker that has the letters.
            queue_id: The queue of the dead-letter topic.
            begin: The first queue offset.
            end: The queue offset behind the last one, at most 4,096 behind `begin`.

        Returns:
            The states by queue offset. A letter that is missing is open.

        Raises:
            MqError: SUBSCRIPTION_GROUP_NOT_EXIST or INVALID_PARAMETER.
        """
        with numbers_fit():
            request = pb.ListLetterStatesRequest(
                consumer_group=consumer_group, queue_id=queue_id, begin=begin, end=end
            )
        address = await self._master(broker)
        answer = await self._brokers.ask(
            broker, address, rpcs.LIST_LETTER_STATES, request, timeout_s=PREVIEW_S
        )
        return {each.queue_offset: LetterStatus.of(each) for each in answer.letters}

    async def _master(self, broker: str) -> str:
        """Return the address of the master of a broker. Raises BROKER_NOT_EXIST."""
        masters = await self._brokers.masters()
        if broker not in masters:
            raise MqError(
                Code.BROKER_NOT_EXIST,
                f"broker {broker} has no master at the moment: wait for an election, or promote a "
                "replica",
                retryable=True,
            )
        return masters[broker]
