"""Define `aerobee dlq`: list, peek, redrive, dismiss, export and purge dead letters.

These commands do not consume dead letters when they read them.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, TypeVar

import click

from aerobee_cli import output, redriving
from aerobee_cli.command_line import Argument, CommandGroup, Option
from aerobee_cli.errors import FAILED, INCOMPLETE, CommandError
from aerobee_cli.options import (
    BadOption,
    ClusterOptions,
    Group,
    ListingOptions,
    NamesrvOptions,
    Yes,
    confirm,
    end,
    moment_of,
)
from aerobee_cli.output import Item, unchanged
from aerobee_cli.redriving import FAILURE_COLUMNS
from aerobee_cli.table import Column, Table, number
from aerobee_cli.times import Moment
from aerobee_client.admin import export as json_lines
from aerobee_client.admin.dead_letters import DeadLetters, Selection
from aerobee_wire.redrive import Target
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_client import AsyncAdminClient, ReceivedMessage


T = TypeVar("T")

app = CommandGroup(
    "dlq", help="Dead letters of a consumer group. Looking at them consumes nothing."
)

Ids = Annotated[
    list[str] | None,
    Option("--id", metavar="ID", help="Only this message id (either kind). May be repeated."),
]
Tag = Annotated[str, Option(help="Only with this tag.")]
Reason = Annotated[str, Option(help="Only with this reason, e.g. the class of an exception.")]
NoTag = Annotated[bool, Option("--no-tag", help="Only without a tag.")]
NoReason = Annotated[bool, Option("--no-reason", help="Only without a reason.")]
STDOUT = Path("-")
EVER = 1 << 62  # a time so late that no age is clamped to 0
MAX_RATE = 1_000_000_000  # excludes infinity


DEAD_LETTER_COLUMNS = (
    Column("message id", "message_id"),
    Column("dead since", "store_timestamp_ms"),
    Column("origin", "origin_topic"),
    Column("state", "state"),
    number("attempts", "reconsume_times", extra=True),
    Column("reason", "why", text=True),
    Column("lite topic", "lite_topic", extra=True),
    Column("keys", "keys", extra=True, text=True),
    Column("tag", "tag", extra=True),
    Column("born", "born_timestamp_ms", extra=True),
    Column("origin message id", "origin_message_id", extra=True),
    Column("broker", "broker_name", extra=True),
    number("queue id", "queue_id", extra=True),
    number("queue offset", "queue_offset", extra=True),
    Column("state since", "state_timestamp_ms", extra=True),
    Column("job", "job_id", extra=True),
    Column("by", "requested_by", extra=True),
    Column("sent to", "target", extra=True),
    Column("error of job", "job_error", extra=True, text=True),
)
STATES = ("open", "redriven", "consumed", "dead again", "dismissed")


@dataclass(frozen=True, slots=True)
class Query:
    """A query of the dead letters of one group. `namesrv` are the name servers."""

    namesrv: str
    group: str
    selection: Selection = field(default_factory=Selection)
    with_states: bool = False

    def run(self, use: Callable[[AsyncAdminClient, DeadLetters], Awaitable[T]]) -> tuple[T, bool]:
        """Return the result of `use`, and whether all dead letters were read. Warn if not."""
        from aerobee_client import AsyncAdminClient

        async def connected() -> tuple[T, bool]:
            async with AsyncAdminClient(self.namesrv) as admin:
                dead_letters = DeadLetters(
                    admin, self.group, self.selection, with_states=self.with_states
                )
                result = await use(admin, dead_letters)
            redriving.warn_unless_complete(
                dead_letters.topic, dead_letters.corrupted, dead_letters.expired
            )
            for name in dead_letters.away:
                output.note(
                    f"warning: dead letters of broker {name} are left out: it is not "
                    "registered any more: start it again"
                )
            for error in dead_letters.silent:
                output.note(f"warning: dead letters of a broker are left out: {error}")
            if dead_letters.unknown_states:
                output.note(
                    f"warning: the states of {dead_letters.unknown_states:,} dead letters are "
                    f"unknown: {dead_letters.states_error}"
                )
            return result, dead_letters.complete and not dead_letters.unknown_states

        return asyncio.run(connected())


def _states(text: str) -> str:
    """Check a list of states, and return their names with commas. Raises BadOption."""
    if text == "all":
        return ",".join(STATES)
    chosen = [name.strip().replace("-", " ") for name in text.split(",") if name.strip()]
    for name in chosen:
        if name not in STATES:
            known = ", ".join(each.replace(" ", "-") for each in STATES)
            raise BadOption(f"--state {name!r}: use {known} or all")
    return ",".join(chosen)


def _filters(tag: str, reason: str, no_tag: bool, no_reason: bool) -> dict[str, Any]:
    """Return the filters by tag and reason. Raises BadOption if two exclude each other."""
    for name, value, none in (("tag", tag, no_tag), ("reason", reason, no_reason)):
        if value and none:
            raise BadOption(
                f"--{name} {value} and --no-{name} exclude each other: give one of them"
            )
    return {"tag": tag, "reason": reason, "no_tag": no_tag, "no_reason": no_reason}


@app.add("list", epilog="Example: aerobee dlq list billing --state open --json")
def list_dead_letters(
    *,
    group: Group,
    tag: Tag = "",
    reason: Reason = "",
    no_tag: NoTag = False,
    no_reason: NoReason = False,
    state: Annotated[
        str,
        Option(
            "--state",
            parser=_states,
            metavar="STATE,…",
            help="Only with one of these states: open, redriven, consumed, dead-again, dismissed; "
            "or all. Default: all but dismissed.",
        ),
    ] = "",
    limit: Annotated[int, Option(min=0, metavar="N", help="At most N, oldest first; 0: all.")] = 0,
    options: ListingOptions,
) -> None:
    """List dead letters: id, time, origin, attempts, state and the reason of the failure."""
    table = options.listing(DEAD_LETTER_COLUMNS)
    selection = Selection(**_filters(tag, reason, no_tag, no_reason))
    query = Query(options.address, group, selection, with_states=True)
    shown = frozenset(state.split(",")) if state else frozenset(STATES) - {"dismissed"}
    collect = partial(_collect, limit, json_lines.summary, states=shown)
    items, complete = query.run(collect)
    if not options.json:
        items = [{**item, "why": _why(item)} for item in items]
    table.show(items, as_json=options.json, empty=_none_of(group))
    _exit(complete)


@app.add(epilog="Example: aerobee dlq peek billing -n 3")
def peek(
    *,
    group: Group,
    ids: Ids = None,
    count: Annotated[int, Option("-n", min=1, metavar="N", help="How many, oldest first.")] = 1,
    options: ClusterOptions,
) -> None:
    """Show dead letters with their properties and bodies."""
    selection = Selection(ids=frozenset(ids or ()))
    query = Query(options.address, group, selection, with_states=True)
    missing = set(selection.ids)
    items, complete = query.run(partial(_collect, count, json_lines.full, missing=missing))
    output.show_each(items, as_json=options.json)
    for message_id in sorted(missing):
        output.note(f"error: {group} has no dead letter {message_id}")
    if missing:
        raise click.exceptions.Exit(FAILED)
    _note_if_empty(items, group, options.json)
    _exit(complete)


@app.add(epilog="Example: aerobee dlq export billing --out dead.jsonl")
def export(
    *,
    group: Group,
    out: Annotated[Path, Option(metavar="FILE", help="- is stdout.")] = STDOUT,
    tag: Tag = "",
    reason: Reason = "",
    no_tag: NoTag = False,
    no_reason: NoReason = False,
    options: NamesrvOptions,
) -> None:
    """Write dead letters as JSON lines, with their properties and bodies."""
    selection = Selection(**_filters(tag, reason, no_tag, no_reason))
    query = Query(options.address, group, selection, with_states=True)

    def lines_to(file: TextIO) -> tuple[int, bool]:
        return query.run(lambda _, dead_letters: json_lines.export(dead_letters, file.write))

    if out == STDOUT:
        _exit(lines_to(sys.stdout)[1])
        return
    try:
        with json_lines.replacing(out) as file:
            count, complete = lines_to(file)
    except OSError as error:
        raise CommandError(f"cannot write {out}: {error.strerror}") from None
    output.note(f"wrote {count:,} dead letters to {out}")
    _exit(complete)


def _target(text: str | Target) -> Target:
    try:
        return Target.parse(str(text))
    except MqError as error:
        raise BadOption(error.message) from None


Since = Annotated[
    Moment | None,
    Option(
        parser=moment_of,
        metavar="TIME",
        help="Only those stored at or after: ISO 8601, milliseconds since 1970, or 24h, by the "
        "broker's clock.",
    ),
]
Until = Annotated[
    Moment | None,
    Option(parser=moment_of, metavar="TIME", help="Only those stored before."),
]
To = Annotated[
    Target,
    Option(
        parser=_target,
        metavar="group|origin|topic:NAME",
        help="group (or retry): only this group gets them, by its retry topic. origin: every "
        "group of the topic does. topic:NAME: all go to this topic.",
    ),
]


All = Annotated[bool, Option("--all", help="All of them.")]
Listed = Annotated[
    Path | None,
    Option(
        "--list",
        metavar="FILE",
        help="Those of this file: the redrive.jsonl of a report, or what dlq export wrote.",
    ),
]
JobId = Annotated[
    str,
    Option(
        "--job",
        metavar="ID",
        help="Id of the job: repeating a command with it starts nothing again. Default: a new one.",
    ),
]
Note = Annotated[str, Option(metavar="TEXT", help="A note that the job keeps.")]
Detach = Annotated[bool, Option("--detach", help="Do not wait for the end of the job.")]


@dataclass(frozen=True, kw_only=True)
class WhichLetters:
    """The options that select the dead letters of a job."""

    ids: Ids = None
    everything: All = False
    listed: Listed = None
    tag: Tag = ""
    reason: Reason = ""
    no_tag: NoTag = False
    no_reason: NoReason = False
    since: Since = None
    until: Until = None


@app.add(epilog="Example: aerobee dlq redrive billing --all --rate 100")
def redrive(
    *,
    group: Group,
    which: WhichLetters,
    to: To = Target.RETRY,
    again: Annotated[
        bool, Option("--again", help="Also those that were sent or dismissed before.")
    ] = False,
    limit: Annotated[
        int, Option(min=0, metavar="N", help="Send at most N, oldest first; 0: all.")
    ] = 0,
    rate: Annotated[
        float | None,
        Option(min=0.001, max=MAX_RATE, metavar="N", help="At most N a second. Default: no limit."),
    ] = None,
    job: JobId = "",
    note: Note = "",
    detach: Detach = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Count; send nothing.")] = False,
    options: ClusterOptions,
) -> None:
    """Send dead letters again, each once. Their failed deliveries no longer count as attempts.

    The brokers that have the letters send them, as a job that this command follows. The job
    continues if this command ends or a broker restarts. Body, tag, keys, message id and user
    properties are kept; REDRIVE_TIMES counts the redrives. The dead letters stay in the dead-letter
    topic until they expire, with the state "redriven", and another redrive leaves them out.
    """
    _start(
        options,
        group,
        which,
        to=str(to),
        job=job,
        dry_run=dry_run,
        detach=detach,
        again=again,
        limit=limit,
        rate=rate or 0.0,
        note=note,
    )


@app.add(epilog="Example: aerobee dlq dismiss billing --reason Timeout --all")
def dismiss(
    *,
    group: Group,
    which: WhichLetters,
    job: JobId = "",
    note: Note = "",
    dry_run: Annotated[bool, Option("--dry-run", help="Count; dismiss nothing.")] = False,
    options: ClusterOptions,
) -> None:
    """Mark dead letters as dismissed, so that lists and redrives leave them out.

    They stay stored until they expire, and `dlq list --state dismissed` shows them. A redrive with
    --again sends them.
    """
    _start(options, group, which, to="", job=job, dry_run=dry_run, detach=False, note=note)


def _start(
    options: ClusterOptions,
    group: str,
    which: WhichLetters,
    *,
    to: str,
    job: str,
    dry_run: bool,
    detach: bool,
    **further: Any,
) -> None:
    """Start a job over dead letters with checked options, follow it, and exit with its code."""
    from aerobee_client.admin.letters import LetterJobSpec

    verb = "send again" if to else "dismiss"
    if bool(which.ids) + which.everything + (which.listed is not None) != 1:
        raise BadOption(f"give --all, --list FILE, or --id ID for each dead letter to {verb}")
    if which.ids and further.get("limit"):
        raise BadOption("--limit: not with --id, which names each dead letter to send")
    since, until = which.since, which.until
    if since is not None and until is not None and since.is_age == until.is_age:
        redriving.check_bounds(since, until, EVER)
    spec = LetterJobSpec(
        consumer_group=group,
        target=to,
        ids=frozenset(which.ids or ()),
        requested_by=redriving.requester(),
        **_filters(which.tag, which.reason, which.no_tag, which.no_reason),
        **further,
    )
    request = redriving.Request(
        namesrv=options.address,
        job_id=job or uuid.uuid4().hex[:12],
        spec=spec,
        since=since,
        until=until,
        listed=which.listed,
        dry_run=dry_run,
        json=options.json,
        detach=detach,
    )
    code = redriving.run(request)
    if code:
        raise click.exceptions.Exit(code)


@app.add(epilog="Example: aerobee dlq purge billing --dry-run")
def purge(
    *,
    group: Group,
    dry_run: Annotated[bool, Option("--dry-run", help="Delete nothing.")] = False,
    yes: Yes = False,
    options: ClusterOptions,
) -> None:
    """Delete all dead letters of a group, on every broker. This cannot be undone.

    `aerobee dlq dismiss` hides some of them and keeps them stored. `aerobee dlq export` keeps them
    in a file. A dead letter that arrives during the purge is deleted too. The next dead letter
    creates the dead-letter topic again.

    Exit code 3: a broker is not reached. Repeat the command when it answers.
    """
    query = Query(options.address, group)
    count, complete = query.run(lambda _, dead_letters: dead_letters.count())
    deleted = False
    silent: list[MqError] = []
    if count and not dry_run:
        confirm(f"Delete {count:,} dead letters of {group}?", yes)
        deleted, _ = query.run(lambda _, dead_letters: dead_letters.purge(silent=silent))
    text = _none_of(group)
    if deleted or (count and dry_run):
        verb = "deleted" if deleted else "would delete"
        text = f"{verb} {count:,} dead letters of {group}"
    item = {"group": group, "dead_letters": count, "deleted": deleted}
    output.show_done(text, item, as_json=options.json)
    end(unchanged(silent))
    _exit(complete)


def _why(item: Item) -> str:
    """Return the reason of a dead letter with its text."""
    return ": ".join(filter(None, (item["reason"], item["description"])))


async def _collect(
    limit: int,
    item_of: Callable[[ReceivedMessage], dict[str, Any]],
    _: AsyncAdminClient,
    dead_letters: DeadLetters,
    *,
    missing: set[str] | None = None,
    states: frozenset[str] = frozenset(),
) -> list[dict[str, Any]]:
    """Return at most `limit` items; 0 means all.

    With `states`, letters with another known state are left out. The search continues beyond the
    limit while ids in `missing` are not found. Found ids are removed from `missing`.
    """
    items: list[dict[str, Any]] = []
    async for message in dead_letters.read():
        status = dead_letters.status_of(message)
        if states and status is not None and status.state.value not in states:
            continue
        items.append(item_of(message) | json_lines.status_fields(status))
        if missing:
            missing -= {message.message_id, message.offset_message_id}
        if limit and len(items) >= limit and not missing:
            break
    return items


def _exit(complete: bool) -> None:
    if not complete:
        raise click.exceptions.Exit(INCOMPLETE)


def _note_if_empty(items: list[dict[str, Any]], group: str, json: bool) -> None:
    if not items and not json:
        output.note(_none_of(group))


def _none_of(group: str) -> str:
    return f"no dead letters of {group}"


# ---- jobs ----


job_commands = app.add_group("jobs", help="Jobs that send dead letters again or dismiss them.")

Job = Annotated[str, Argument(metavar="JOB", help="Id of the job.")]


def _most(value: float) -> str:
    """Format a limit or a rate; "" for 0, which means no limit."""
    return f"{value:,.3f}".rstrip("0").rstrip(".") if value else ""


JOB_COLUMNS = (
    Column("job", "job_id"),
    Column("group", "consumer_group"),
    Column("action", "action"),
    Column("state", "state"),
    Column("started", "started_timestamp_ms"),
    number("examined", "examined"),
    number("of", "total"),
    number("sent", "sent"),
    number("failed", "failed"),
    Column("by", "requested_by"),
    Column("to", "target", extra=True),
    Column("broker", "broker_name", extra=True),
    number("sent before", "already", extra=True),
    number("duplicates", "duplicates", extra=True),
    number("unreadable", "unreadable", extra=True),
    Column("filters", "filters", extra=True, text=True),
    Column("limit", "limit", _most, right=True, extra=True),
    Column("rate", "rate", _most, right=True, extra=True),
    Column("waits for", "waits_for", text=True),
    Column("ended", "ended_timestamp_ms", extra=True),
    Column("note", "note", extra=True, text=True),
)


def _item(job: Any) -> dict[str, Any]:
    item = asdict(job)
    for name in ("started", "ended"):
        item[f"{name}_timestamp_ms"] = item.pop(f"{name}_ms")
    return item


@job_commands.add("list", epilog="Example: aerobee dlq jobs list --group billing")
def list_jobs(
    *,
    group: Annotated[str, Option("--group", metavar="GROUP", help="Only of this group.")] = "",
    options: ListingOptions,
) -> None:
    """List the jobs that the brokers remember, the newest first, with a row for each broker."""
    table = options.listing(JOB_COLUMNS)
    with options.asking() as (admin, silent):
        jobs = admin.letter_jobs(group, silent=silent)
    table.show(map(_item, jobs), as_json=options.json, empty="no jobs")
    end(f"warning: not all jobs are listed: {error}" for error in silent)


@job_commands.add(epilog="Example: aerobee dlq jobs show 1f0c9a2b7d3e")
def show(*, job: Job, options: ClusterOptions) -> None:
    """Show a job with its progress at each broker, and the dead letters that it could not send."""
    with options.asking() as (admin, silent):
        jobs = admin.letter_jobs(job_id=job, silent=silent)
        failures = [
            asdict(failure)
            for each in jobs
            if each.failed
            for failure in admin.letter_failures(each.broker_name, job)
        ]
    if not jobs and not silent:
        raise CommandError(f"no broker has a job {job}: see aerobee dlq jobs list")
    if options.json:
        output.show_one(
            {"brokers": [_item(each) for each in jobs], "failures": failures}, as_json=True
        )
    else:
        items = [
            {**_item(each), "limit": _most(each.limit), "rate": _most(each.rate)} for each in jobs
        ]
        output.show_each(items, as_json=False)
        Table(FAILURE_COLUMNS).show(failures)
    end(f"warning: the job is not shown for each broker: {error}" for error in silent)


@job_commands.add(epilog="Example: aerobee dlq jobs cancel 1f0c9a2b7d3e")
def cancel(*, job: Job, options: ClusterOptions) -> None:
    """Cancel a job on each broker. What it has sent or dismissed stays so.

    Exit code 3: a broker is not reached. Repeat the command when it answers.
    """
    with options.asking() as (admin, silent):
        count = admin.cancel_letter_job(job, silent=silent)
    done = f"cancelled the job {job} on {output.counted(count, 'broker')}"
    where = " on each broker that answers" if silent else ""
    text = done if count else f"the job {job} had ended before{where}"
    output.show_done(text, {"job_id": job, "cancelled_on": count}, as_json=options.json)
    end(unchanged(silent))
