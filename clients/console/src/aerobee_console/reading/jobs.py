"""The jobs over dead letters: redrives and dismissals, running and past."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aerobee_client.admin.letters import LetterFailure, LetterJobDescription
from aerobee_console.reading.source import Answer, Listing, Source, gathered, page_of
from aerobee_wire.status import Code, MqError

FAILURES = 200  # on a page


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job on all brokers that answered. Its counts are sums over `parts`."""

    job_id: str
    parts: tuple[LetterJobDescription, ...]

    @property
    def consumer_group(self) -> str:
        """The group of the letters."""
        return self.parts[0].consumer_group

    @property
    def state(self) -> str:
        """The state: "running" while it runs on a broker."""
        states = [part.state for part in self.parts]
        for state in ("running", "cancelled"):
            if state in states:
                return state
        return states[0]

    @property
    def started_ms(self) -> int:
        """The time of the first start on a broker, in milliseconds since the epoch."""
        return min(part.started_ms for part in self.parts)

    @property
    def ended_ms(self) -> int:
        """The time of the last end, in milliseconds since the epoch; 0 while a broker runs it."""
        ends = [part.ended_ms for part in self.parts]
        return max(ends) if all(ends) else 0

    @property
    def limit(self) -> int:
        """The maximum number of letters that the job sends or dismisses; 0 for no limit."""
        return sum(part.limit for part in self.parts)

    @property
    def rate(self) -> float:
        """The maximum number of letters a second; 0 for no limit."""
        # The shares of the brokers are fractions, so their sum needs rounding.
        return round(sum(part.rate for part in self.parts), 3)

    @property
    def total(self) -> int:
        """The number of letters between the bounds of the job."""
        return sum(part.total for part in self.parts)

    @property
    def examined(self) -> int:
        """The number of letters that the job has examined."""
        return sum(part.examined for part in self.parts)

    @property
    def sent(self) -> int:
        """The number of letters that the job has sent or dismissed."""
        return sum(part.sent for part in self.parts)

    @property
    def failed(self) -> int:
        """The number of letters that the job failed to send."""
        return sum(part.failed for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobList(Listing):
    """A page of jobs, the newest first. `total` is None if no broker answered."""

    rows: tuple[Job, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage(Answer):
    """One job. `job` is None if no broker that answered has it.

    `failures` are the first letters that it could not send, and `failures_omitted` counts the
    others.
    """

    job_id: str
    job: Job | None
    failures: tuple[LetterFailure, ...]
    failures_omitted: int


async def job_list(source: Source, *, group: str = "", state: str = "", page: int = 1) -> JobList:
    """Return the jobs that the brokers remember, with one call to each broker.

    Args:
        source: The cluster.
        group: Only jobs of this group.
        state: Only jobs in this state.
        page: The number of the page, from 1 on.
    """
    asking = await source.ask()
    found = await asking.of(lambda silent: source.admin.letter_jobs(group, silent=silent))
    rows = [job for job in _jobs(found or ()) if state in ("", job.state)]
    shown, page, pages = page_of(rows, page)
    return JobList(
        rows=tuple(shown),
        page=page,
        pages=pages,
        total=None if found is None else len(rows),
        silent=asking.silent,
        asked_at_ms=asking.at_ms,
    )


async def job_page(source: Source, job_id: str) -> JobPage:
    """Return one job: one call to each broker, and one to each broker with failures.

    Raises MqError with the code QUERY_NOT_FOUND if every broker answered and none has it.
    """
    asking, admin = await source.ask(), source.admin
    found = await asking.of(lambda silent: admin.letter_jobs(job_id=job_id, silent=silent))
    jobs = _jobs(found or ())
    if not jobs and not asking.silent:
        raise MqError(Code.QUERY_NOT_FOUND, f"no broker has a job {job_id}: see the list of jobs")
    job = jobs[0] if jobs else None

    async def failures(broker_name: str) -> list[LetterFailure]:
        return await admin.letter_failures(broker_name, job_id)

    parts = [part for part in (job.parts if job else ()) if part.failed]
    listed = [
        each
        for found in await gathered(*(failures(part.broker_name) for part in parts))
        for each in found
    ]
    return JobPage(
        job_id=job_id,
        job=job,
        failures=tuple(listed[:FAILURES]),
        failures_omitted=max(0, len(listed) - FAILURES),
        silent=asking.silent,
        asked_at_ms=asking.at_ms,
    )


def _jobs(found: Iterable[LetterJobDescription]) -> list[Job]:
    by_id: dict[str, list[LetterJobDescription]] = {}
    for part in found:
        by_id.setdefault(part.job_id, []).append(part)
    return [
        Job(job_id=job_id, parts=tuple(sorted(parts, key=lambda part: part.broker_name)))
        for job_id, parts in by_id.items()
    ]
