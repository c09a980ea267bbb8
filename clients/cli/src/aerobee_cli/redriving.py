"""Start a job over dead letters for the command, and follow it to its end.

The brokers run the job. If the command ends before, the job continues.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerobee_cli import output
from aerobee_cli.errors import FAILED, INCOMPLETE, CommandError
from aerobee_cli.options import BadOption
from aerobee_cli.progress import Progress
from aerobee_cli.table import Column, Table, number
from aerobee_cli.times import Moment
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_client import AsyncAdminClient
    from aerobee_client.admin.letters import LetterFailure, LetterJobDescription, LetterJobSpec
    from aerobee_client.admin.redriving.letter_job import GroupLetterJob, Listed
    from aerobee_client.admin.redriving.listed import Missing

MAX_FAILURES_SHOWN = 1_000  # rows of a table; --json has all
MAX_ABSENT_SHOWN = 20  # ids with the same problem, which a user can still read; --json has all
_COUNTS = ("sent", "failed", "already", "duplicates", "unreadable")
FAILURE_COLUMNS = (
    Column("broker", "broker_name"),
    number("queue id", "queue_id"),
    number("queue offset", "queue_offset"),
    Column("error", "error", text=True),
)
MISSING_COLUMNS = (Column("message id", "message_id"), Column("problem", "problem", text=True))
PREVIEW_COLUMNS = (
    Column("by", "kind"),
    Column("value", "name", text=True),
    number("dead letters", "letters"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The arguments of the command line. The times are added to `spec` by the brokers' clock.

    `listed` is the file that lists letters. `spec` with an empty target dismisses letters.
    """

    namesrv: str
    job_id: str
    spec: LetterJobSpec
    since: Moment | None = None
    until: Moment | None = None
    listed: Path | None = None
    dry_run: bool = False
    json: bool = False
    detach: bool = False


def requester() -> str:
    """Return the user and host of this process, as the default of a job's requester."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for its user
        user = str(os.getuid()) if hasattr(os, "getuid") else ""
    return f"{user}@{socket.gethostname()}"


def run(request: Request) -> int:
    """Run a job, and return the exit code.

    0: all selected letters were sent. 1: some were not sent, or do not exist. 3: some could not be
    read, or a broker left the cluster before the end of its job was known. Ctrl-C ends the command,
    but not the job.
    """
    run_of = _Run(request)
    try:
        with _stopped_like_ctrl_c():
            return asyncio.run(run_of.run())
    except KeyboardInterrupt:
        if run_of.is_started:
            output.note(
                f"the job {request.job_id} continues on the brokers: see aerobee dlq jobs show "
                f"{request.job_id}, or end it with aerobee dlq jobs cancel {request.job_id}"
            )
        raise


class _Run:
    def __init__(self, request: Request) -> None:
        self._request = request
        self.is_started = False
        self._missing: list[Missing] = []
        self._unknown: list[str] = []  # parts of the result that no broker reported

    async def run(self) -> int:
        from aerobee_client import AsyncAdminClient
        from aerobee_client.admin.redriving.letter_job import GroupLetterJob

        output.silence_client()
        request = self._request
        async with AsyncAdminClient(request.namesrv) as admin:
            await self._check_target(admin)
            spec = await self._with_bounds(admin)
            listed = await self._listed(admin)
            job = GroupLetterJob(admin, request.job_id, spec, listed)
            await job.preview()
            if request.dry_run:
                return self._show_preview(job)
            self.is_started = True
            await job.start()
            if request.detach:
                return self._show_started(job)
            jobs = await self._follow(job)
            failures = await self._failures(admin, jobs)
        return self._show(job, jobs, failures)

    async def _check_target(self, admin: AsyncAdminClient) -> None:
        from aerobee_client.admin.redriving.letter_job import reads_retries

        group = self._request.spec.consumer_group
        if self._request.spec.target != "retry":
            return
        if not reads_retries(await admin.list_clients(group), group):
            raise CommandError(
                f"the connected consumers of {group} do not read its retry topic: send with --to "
                "origin"
            )

    async def _with_bounds(self, admin: AsyncAdminClient) -> LetterJobSpec:
        """Return the specification with the bounds of the store time.

        Ages count back from the earliest broker clock, because brokers set the store times.
        """
        request = self._request
        moments = [each for each in (request.since, request.until) if each is not None]
        now_ms = 0
        if any(each.is_age for each in moments):
            now_ms = min((await admin.broker_times_ms()).values())
        check_bounds(request.since, request.until, now_ms)
        return replace(
            request.spec,
            since_ms=request.since.at(now_ms) if request.since else 0,
            until_ms=max(1, request.until.at(now_ms)) if request.until else 0,
        )

    async def _listed(self, admin: AsyncAdminClient) -> Listed | None:
        """Return the places of the listed letters, after a check that they are still there."""
        from aerobee_client.admin.dead_letters import Selection
        from aerobee_client.admin.redriving.listed import ListedDeadLetters

        request = self._request
        if request.listed is None:
            return None
        group = request.spec.consumer_group
        reader = ListedDeadLetters(admin, group, request.listed, Selection())
        found, self._missing = await reader.places()
        return found

    async def _follow(self, job: GroupLetterJob) -> list[LetterJobDescription]:
        progress = Progress(sys.stderr)
        jobs: list[LetterJobDescription] = []
        waited = ""
        try:
            async with aclosing(job.follow()) as states:
                async for jobs in states:
                    progress.update(
                        looked_at=sum(each.examined for each in jobs),
                        total=sum(each.total for each in jobs),
                        sent=sum(each.sent for each in jobs),
                    )
                    waits = next((each for each in jobs if each.waits_for), None)
                    if waits is not None and waits.waits_for != waited:
                        waited = waits.waits_for
                        output.note(f"broker {waits.broker_name} waits: {waited}")
        finally:
            progress.close()
        return jobs

    async def _failures(
        self, admin: AsyncAdminClient, jobs: Sequence[LetterJobDescription]
    ) -> list[LetterFailure]:
        """Return the letters that could not be sent, of each broker that still answers."""
        failures: list[LetterFailure] = []
        for name in (each.broker_name for each in jobs if each.failed):
            try:
                failures += await admin.letter_failures(name, self._request.job_id)
            except MqError as error:
                self._unknown.append(f"the failures on broker {name} are not listed: {error}")
        return failures

    def _absent(self, job: GroupLetterJob) -> list[dict[str, str]]:
        """Return the letters that the user named and that do not exist."""
        absent = [{"message_id": each.message_id, "problem": each.why} for each in self._missing]
        ids = frozenset(job.spec.ids)
        for found in job.previews.values():
            ids &= found.missing_ids
        group = job.spec.consumer_group
        absent += [
            {"message_id": each, "problem": f"{group} has no dead letter with this id"}
            for each in sorted(ids)
        ]
        return absent

    # ---- results ----

    def _show_preview(self, job: GroupLetterJob) -> int:
        previews, spec = job.previews.values(), job.spec
        counts = {
            name: sum(getattr(each, name) for each in previews)
            for name in (
                "stored",
                "selected",
                "would_send",
                "body_bytes",
                "already_sent",
                "already_dismissed",
                "duplicates",
                "unreadable",
            )
        }
        if spec.limit:
            counts["would_send"] = min(counts["would_send"], spec.limit)
        maps = {
            name: _summed(getattr(each, name) for each in previews)
            for name in ("reasons", "topics", "failures")
        }
        absent = self._absent(job)
        if self._request.json:
            item = {"group": spec.consumer_group, "target": spec.target, **counts, **maps}
            output.show_one({**item, "missing": absent}, as_json=True)
        else:
            rows = [
                {"kind": kind, "name": name or "(none)", "letters": count}
                for kind, key in (("reason", "reasons"), ("topic", "topics"), ("error", "failures"))
                for name, count in maps[key].items()
            ]
            Table(PREVIEW_COLUMNS).show(rows)
            _show_absent(absent)
            verb = "send" if spec.target else "dismiss"
            text = (
                f"would {verb} {counts['would_send']:,} of {counts['stored']:,} dead letters of "
                f"{spec.consumer_group}, {counts['body_bytes']:,} bytes"
            )
            output.note(text + _notes(counts, again=spec.again))
        if maps["failures"] or absent:
            _note_away(job)
            return FAILED
        return INCOMPLETE if _note_away(job) or counts["unreadable"] else 0

    def _show_started(self, job: GroupLetterJob) -> int:
        """Print the job that the command does not follow, and the letters that do not exist."""
        absent = self._absent(job)
        if self._request.json:
            item = {
                "job_id": self._request.job_id,
                "group": job.spec.consumer_group,
                "target": job.spec.target,
                "brokers": sorted(job.started),
                "missing": absent,
            }
            output.show_one(item, as_json=True)
        else:
            _show_absent(absent)
            output.note(f"started the job {self._request.job_id}")
        is_incomplete = _note_away(job)
        return FAILED if absent else INCOMPLETE if is_incomplete else 0

    def _show(
        self,
        job: GroupLetterJob,
        jobs: Sequence[LetterJobDescription],
        failures: Sequence[LetterFailure],
    ) -> int:
        spec, absent = job.spec, self._absent(job)
        counts = {name: sum(getattr(each, name) for each in jobs) for name in _COUNTS}
        topics = sorted({topic for each in jobs for topic in each.topics})
        is_cancelled = any(each.state == "cancelled" for each in jobs)
        items = [asdict(each) for each in failures]
        if self._request.json:
            item = {
                "job_id": self._request.job_id,
                "group": spec.consumer_group,
                "target": spec.target,
                "topics": topics,
                **counts,
                "cancelled": is_cancelled,
                "failures": items,
                "missing": absent,
                "lost_brokers": job.lost,
            }
            output.show_one(item, as_json=True)
        else:
            Table(FAILURE_COLUMNS).show(items[:MAX_FAILURES_SHOWN])
            if len(items) > MAX_FAILURES_SHOWN:
                output.note(f"{len(items) - MAX_FAILURES_SHOWN:,} more: --json lists all")
            _show_absent(absent)
            verb = "sent" if spec.target else "dismissed"
            text = f"{verb} {counts['sent']:,} dead letters of {spec.consumer_group}"
            if topics:
                text += f" to {', '.join(topics)}"
            if is_cancelled:
                text += "; the job was cancelled"
            output.note(text + _notes(counts, again=spec.again))
        self._unknown += [
            f"broker {name} left the cluster before the end of its job was known: when it is back, "
            f"see aerobee dlq jobs show {self._request.job_id}"
            for name in job.lost
        ]
        for text in self._unknown:
            output.note(f"warning: {text}")
        is_incomplete = _note_away(job) or counts["unreadable"] or self._unknown
        if counts["failed"] or absent or is_cancelled:
            return FAILED
        return INCOMPLETE if is_incomplete else 0


def _show_absent(absent: Sequence[Mapping[str, str]]) -> None:
    """Print the letters that do not exist. Many with the same problem are one row.

    The letters of an older report expire together, so that a list may lack all of them.
    """
    by_problem: dict[str, list[str]] = {}
    for each in absent:
        by_problem.setdefault(each["problem"], []).append(each["message_id"])
    rows = []
    for problem, ids in by_problem.items():
        listed = ids
        if len(ids) > MAX_ABSENT_SHOWN:
            listed = [f"{ids[0]} and {len(ids) - 1:,} more (--json lists all)"]
        rows += [{"message_id": each, "problem": problem} for each in listed]
    Table(MISSING_COLUMNS).show(rows)


def _note_away(job: GroupLetterJob) -> bool:
    """Warn of brokers whose letters the job leaves out. Return whether there are any."""
    for name in job.away:
        output.note(
            f"warning: dead letters of broker {name} are left out: it is not registered any more; "
            "start it again, and repeat the command"
        )
    return bool(job.away)


def _notes(counts: Mapping[str, int], *, again: bool) -> str:
    """Return the end of a result with the letters that were left out."""
    parts = []
    already = counts.get("already", 0) + counts.get("already_sent", 0)
    already += counts.get("already_dismissed", 0)
    if already and not again:
        parts.append(f"{already:,} were sent or dismissed before (--again sends them again)")
    if counts["duplicates"]:
        parts.append(
            f"{counts['duplicates']:,} have the message of another one, which is sent once"
        )
    if counts.get("failed"):
        parts.append(f"{counts['failed']:,} could not be sent")
    if counts["unreadable"]:
        parts.append(f"{counts['unreadable']:,} could not be read")
    return "".join(f"; {part}" for part in parts)


def _summed(maps: Iterator[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in maps:
        total.update(each)
    return dict(total.most_common())


def check_bounds(since: Moment | None, until: Moment | None, now_ms: int) -> None:
    """Raise BadOption if `since` is later than `until`."""
    if since is not None and until is not None and since.at(now_ms) > until.at(now_ms):
        raise BadOption("--since is later than --until: no dead letter was stored then")


@contextmanager
def _stopped_like_ctrl_c() -> Iterator[None]:
    """Handle SIGTERM like SIGINT: say that the job continues.

    A shell lets background commands of a script ignore SIGINT, but here SIGINT is handled again.
    """

    def interrupt(*_: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    handlers = {signal.SIGTERM: interrupt, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def warn_unless_complete(topic: str, corrupted: int, expired: int) -> None:
    """Warn on stderr about records of `topic` that could not be read."""
    if corrupted:
        output.note(
            f"warning: {corrupted} records of {topic} are corrupt and left out: the broker's log "
            "names their file and physical offset"
        )
    if expired:
        output.note(f"warning: {expired} records of {topic} expired before they were read")
