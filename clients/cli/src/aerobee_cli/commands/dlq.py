"""`aerobee dlq`: list, peek, redrive, export, purge. Looking at dead letters consumes none."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aerobee_cli import messages, output
from aerobee_cli.errors import INCOMPLETE, CommandError
from aerobee_cli.options import (
    PRODUCER_GROUP,
    BadOption,
    Group,
    Json,
    Namesrv,
    Yes,
    confirm,
    namesrv_of,
)
from aerobee_cli.output import Column
from aerobee_client.admin import export as json_lines
from aerobee_client.admin.dead_letters import DeadLetters, Selection, Target
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_client import AsyncAdminClient, ReceivedMessage

app = typer.Typer(
    help="Dead letters of a consumer group. Looking at them consumes nothing.", no_args_is_help=True
)

Ids = Annotated[
    list[str] | None,
    typer.Option("--id", metavar="ID", help="Only this message id (either kind). May be repeated."),
]
Tag = Annotated[str, typer.Option(help="Only with this tag.")]
Reason = Annotated[str, typer.Option(help="Only with this reason, e.g. the class of an exception.")]
STDOUT = Path("-")


@dataclass(frozen=True, slots=True)
class Query:
    """Dead letters of one group. `namesrv`: the name servers to ask."""

    namesrv: str
    group: str
    selection: Selection = field(default_factory=Selection)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[AsyncAdminClient, DeadLetters]]:
        from aerobee_client import AsyncAdminClient

        async with AsyncAdminClient(self.namesrv) as admin:
            yield admin, DeadLetters(admin, self.group, self.selection)


@app.command("list", epilog="Example: aerobee dlq list billing --json")
def list_dead_letters(
    context: typer.Context,
    *,
    group: Group,
    tag: Tag = "",
    reason: Reason = "",
    limit: Annotated[
        int, typer.Option(min=0, metavar="N", help="At most N, oldest first; 0: all.")
    ] = 0,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """List dead letters: ids, origin, why they failed, and where they are stored."""
    query = Query(namesrv_of(context, namesrv), group, Selection(tag=tag, reason=reason))
    items, complete = asyncio.run(_collect(query, limit, json_lines.summary))
    output.show_list(items, messages.DEAD_LETTER_COLUMNS, as_json=json)
    _note_if_empty(items, group, json)
    _exit(complete)


@app.command(epilog="Example: aerobee dlq peek billing -n 3")
def peek(
    context: typer.Context,
    *,
    group: Group,
    ids: Ids = None,
    count: Annotated[
        int, typer.Option("-n", min=1, metavar="N", help="How many, oldest first.")
    ] = 1,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Show dead letters with their properties and bodies."""
    selection = Selection(ids=frozenset(ids or ()))
    limit = max(count, len(selection.ids))
    query = Query(namesrv_of(context, namesrv), group, selection)
    items, complete = asyncio.run(_collect(query, limit, json_lines.full))
    output.show_each(items, as_json=json)
    _note_if_empty(items, group, json)
    _exit(complete)


@app.command(epilog="Example: aerobee dlq export billing --out dead.jsonl")
def export(
    context: typer.Context,
    *,
    group: Group,
    out: Annotated[Path, typer.Option(metavar="FILE", help="- is stdout.")] = STDOUT,
    tag: Tag = "",
    reason: Reason = "",
    namesrv: Namesrv = None,
) -> None:
    """Write dead letters as JSON lines, with their properties and bodies."""
    query = Query(namesrv_of(context, namesrv), group, Selection(tag=tag, reason=reason))
    if out == STDOUT:
        _, complete = asyncio.run(_export(query, sys.stdout.write))
        _exit(complete)
        return
    try:
        with json_lines.replacing(out) as file:
            count, complete = asyncio.run(_export(query, file.write))
    except OSError as error:
        raise CommandError(f"cannot write {out}: {error.strerror}") from None
    output.note(f"wrote {count:,} dead letters to {out}")
    _exit(complete)


@app.command(epilog="Example: aerobee dlq redrive billing --all --rate 100 --dry-run")
def redrive(
    context: typer.Context,
    *,
    group: Group,
    ids: Ids = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    tag: Tag = "",
    reason: Reason = "",
    to: Annotated[
        Target,
        typer.Option(
            help="retry: only this group gets them, by its retry topic, which the official SDKs do "
            "not read. origin: every group of the topic does."
        ),
    ] = Target.RETRY,
    rate: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="N", help="At most N a second. Default: no limit."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Send nothing.")] = False,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Send dead letters again, with no attempts counted.

    Body, tag, keys, message id and user properties are kept. A message that was dead-lettered twice
    is sent once. The dead letters stay in the dead-letter topic until they expire: doing this twice
    sends them twice.
    """
    if bool(ids) == everything:
        raise BadOption("give --all, or --id ID for each dead letter to send again")
    selection = Selection(frozenset(ids or ()), tag, reason)
    query = Query(namesrv_of(context, namesrv), group, selection)
    outcomes: list[dict[str, Any]] = []
    try:
        complete = asyncio.run(_redrive(query, to, rate, outcomes, dry_run=dry_run))
    except (MqError, KeyboardInterrupt):
        if outcomes:
            _show_outcomes(outcomes, outcomes, json)
            _note_redriven(outcomes, group, dry_run)
            output.note("interrupted: the next redrive of all sends these again")
        raise
    failed = [outcome for outcome in outcomes if outcome["status"] == "failed"]
    notable = [outcome for outcome in outcomes if outcome["status"] in ("failed", "skipped")]
    _show_outcomes(outcomes, outcomes if dry_run else notable, json)
    _note_redriven(outcomes, group, dry_run)
    missing = selection.ids - {outcome[key] for outcome in outcomes for key in ID_KEYS}
    for message_id in sorted(missing):
        output.note(f"error: {group} has no dead letter {message_id}")
    if failed or missing:
        raise typer.Exit(1)
    _exit(complete)


@app.command(epilog="Example: aerobee dlq purge billing --dry-run")
def purge(
    context: typer.Context,
    *,
    group: Group,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing.")] = False,
    yes: Yes = False,
    namesrv: Namesrv = None,
) -> None:
    """Delete all dead letters of a group, on every broker. This cannot be undone.

    `aerobee dlq export` keeps them in a file. A dead letter that arrives meanwhile is deleted too;
    the next one creates the dead-letter topic again.
    """
    query = Query(namesrv_of(context, namesrv), group)
    count = asyncio.run(_count(query))
    if dry_run or not count:
        output.note(f"would delete {count:,} dead letters of {group}" if count else _none_of(group))
        return
    confirm(f"Delete {count:,} dead letters of {group}?", yes)
    deleted = asyncio.run(_purge(query))
    output.note(f"deleted {count:,} dead letters of {group}" if deleted else _none_of(group))


async def _count(query: Query) -> int:
    async with query.open() as (_, dead_letters):
        return await dead_letters.count()


async def _purge(query: Query) -> bool:
    """False: there were no dead letters any more."""
    async with query.open() as (_, dead_letters):
        return await dead_letters.purge()


OUTCOME_TITLES = ("message id", "offset message id", "tag", "topic", "status", "error")
ID_KEYS = ("message_id", "offset_message_id")


def _show_outcomes(
    outcomes: list[dict[str, Any]], for_people: list[dict[str, Any]], json: bool
) -> None:
    if json:
        output.show_list(outcomes, (), as_json=True)
    elif for_people:
        columns = [Column(title, title.replace(" ", "_")) for title in OUTCOME_TITLES]
        output.write_table(for_people, columns)


def _note_redriven(outcomes: list[dict[str, Any]], group: str, dry_run: bool) -> None:
    verb = "would send" if dry_run else "sent"
    done = sum(outcome["status"] == verb for outcome in outcomes)
    topics = ", ".join(sorted({outcome["topic"] for outcome in outcomes} - {""}))
    where = f" to {topics}" if topics else ""
    output.note(f"{verb} {done:,} of {len(outcomes):,} dead letters of {group}{where}")


async def _redrive(
    query: Query, to: Target, rate: float | None, outcomes: list[dict[str, Any]], *, dry_run: bool
) -> bool:
    """Whether every dead letter could be read. `outcomes` gets one item for each that was selected,
    also when this raises in the end."""
    from aerobee_client import AsyncProducer
    from aerobee_client.admin import redrive as redriving

    async with AsyncExitStack() as stack:
        admin, dead_letters = await stack.enter_async_context(query.open())
        clients = await admin.list_clients(query.group) if to is Target.RETRY else []
        if not redriving.reads_retries(clients, query.group):
            raise CommandError(
                f"the consumers of {query.group} do not read its retry topic, as those of the "
                "official SDKs never do: send with --to origin"
            )
        producer = None
        if not dry_run:
            opened = AsyncProducer(PRODUCER_GROUP, namesrv=query.namesrv)
            producer = await stack.enter_async_context(opened)
        selected = dead_letters.read()
        async for outcome in redriving.redrive(selected, producer, query.group, to, rate):
            outcomes.append(asdict(outcome))
    return _warn_unless_complete(dead_letters)


async def _collect(
    query: Query, limit: int, item_of: Callable[[ReceivedMessage], dict[str, Any]]
) -> tuple[list[dict[str, Any]], bool]:
    """At most `limit` items (0: all), and whether every dead letter could be read."""
    items: list[dict[str, Any]] = []
    async with query.open() as (_, dead_letters):
        async for message in dead_letters.read():
            items.append(item_of(message))
            if len(items) == limit:
                break
    return items, _warn_unless_complete(dead_letters)


async def _export(query: Query, write: Callable[[str], object]) -> tuple[int, bool]:
    """The number of lines, and whether every dead letter could be read."""
    async with query.open() as (_, dead_letters):
        count = await json_lines.export(dead_letters, write)
    return count, _warn_unless_complete(dead_letters)


def _warn_unless_complete(dead_letters: DeadLetters) -> bool:
    """Whether every dead letter could be read so far; prints a warning when not."""
    if dead_letters.corrupted:
        output.note(
            f"warning: {dead_letters.corrupted} records of {dead_letters.topic} are corrupt and "
            "left out: the broker's log names their file and physical offset"
        )
    if dead_letters.expired:
        output.note(
            f"warning: {dead_letters.expired} records of {dead_letters.topic} expired before they "
            "were read"
        )
    return dead_letters.complete


def _exit(complete: bool) -> None:
    if not complete:
        raise typer.Exit(INCOMPLETE)


def _note_if_empty(items: list[dict[str, Any]], group: str, json: bool) -> None:
    if not items and not json:
        output.note(_none_of(group))


def _none_of(group: str) -> str:
    return f"no dead letters of {group}"
