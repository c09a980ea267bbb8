"""`aerobee dlq`: list, peek, redrive, export, purge. Looking at dead letters consumes none."""

from __future__ import annotations

import asyncio
import json as json_format
import os
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aerobee_cli import messages, output
from aerobee_cli.errors import CommandError
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
from aerobee_client.admin.redrive_target import Target
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_client import ReceivedMessage
    from aerobee_client.admin.dead_letters import DeadLetters

app = typer.Typer(
    help="Dead letters of a consumer group. Looking at them consumes nothing.", no_args_is_help=True
)

Ids = Annotated[
    list[str] | None,
    typer.Option(
        "--id", metavar="ID", help="Only this message id (either kind). May be given again."
    ),
]
Tag = Annotated[str, typer.Option(help="Only with this tag.")]
Reason = Annotated[str, typer.Option(help="Only with this reason, e.g. the class of an exception.")]
STDOUT = Path("-")
# Exit code: done, but some dead letters could not be read.
INCOMPLETE = 3


@dataclass(frozen=True, slots=True)
class Choice:
    """Which dead letters. What is not given does not matter."""

    ids: frozenset[str] = frozenset()
    tag: str = ""
    reason: str = ""

    def takes(self, letter: ReceivedMessage) -> bool:
        return (
            (not self.ids or bool(self.ids & {letter.message_id, letter.offset_message_id}))
            and (not self.tag or letter.tag == self.tag)
            and (not self.reason or letter.failure_reason == self.reason)
        )


@dataclass(frozen=True, slots=True)
class Query:
    """Dead letters of one group. `namesrv`: where to ask."""

    namesrv: str
    group: str
    choice: Choice


@app.command("list", epilog="Example: aerobee dlq list billing --json")
def list_letters(
    context: typer.Context,
    *,
    group: Group,
    tag: Tag = "",
    reason: Reason = "",
    limit: Annotated[
        int, typer.Option(min=0, metavar="N", help="At most so many, oldest first; 0: all.")
    ] = 0,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """List dead letters: which they are, where they come from, why they failed, where they lie."""
    query = Query(namesrv_of(context, namesrv), group, Choice(tag=tag, reason=reason))
    items, complete = _collect(query, limit, messages.head)
    output.show_list(items, messages.DEAD_LETTER_COLUMNS, as_json=json)
    _tell_empty(items, group, json)
    _end(complete)


@app.command(epilog="Example: aerobee dlq peek billing -n 3")
def peek(
    context: typer.Context,
    *,
    group: Group,
    ids: Ids = None,
    count: Annotated[
        int, typer.Option("-n", min=1, metavar="N", help="So many, oldest first.")
    ] = 1,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Show dead letters with their properties and bodies."""
    choice = Choice(ids=frozenset(ids or ()))
    limit = max(count, len(choice.ids))
    query = Query(namesrv_of(context, namesrv), group, choice)
    items, complete = _collect(query, limit, messages.whole)
    output.show_each(items, as_json=json)
    _tell_empty(items, group, json)
    _end(complete)


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
    query = Query(namesrv_of(context, namesrv), group, Choice(tag=tag, reason=reason))
    if out == STDOUT:
        _, complete = _export(query, sys.stdout.write)
        _end(complete)
        return
    try:
        count, complete = _export_to(query, out)
    except OSError as error:
        raise CommandError(f"cannot write {out}: {error.strerror}") from None
    output.note(f"wrote {count:,} dead letters to {out}")
    _end(complete)


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
        typer.Option(min=0.001, metavar="N", help="At most so many a second. Default: no limit."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Send nothing.")] = False,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Send dead letters again, with a fresh count of attempts.

    Body, tag, keys, message id and user properties are kept. A message that died twice is sent
    once. The dead letters stay in the dead-letter topic until they expire: doing this twice sends
    them twice.
    """
    if bool(ids) == everything:
        raise BadOption("give --all, or --id ID for each dead letter to send again")
    choice = Choice(frozenset(ids or ()), tag, reason)
    query = Query(namesrv_of(context, namesrv), group, choice)
    outcomes: list[dict[str, Any]] = []
    try:
        complete = asyncio.run(_redrive(query, to, rate, outcomes, dry_run=dry_run))
    except (MqError, KeyboardInterrupt):
        if outcomes:
            _show_outcomes(outcomes, outcomes, json)
            _tell_redriven(outcomes, group, dry_run)
            output.note("broken off here: the next redrive of all sends these again")
        raise
    failed = [outcome for outcome in outcomes if outcome["status"] == "failed"]
    notable = [outcome for outcome in outcomes if outcome["status"] in ("failed", "skipped")]
    _show_outcomes(outcomes, outcomes if dry_run else notable, json)
    _tell_redriven(outcomes, group, dry_run)
    missing = choice.ids - {outcome[key] for outcome in outcomes for key in ID_KEYS}
    for message_id in sorted(missing):
        output.note(f"error: {group} has no dead letter {message_id}")
    if failed or missing:
        raise typer.Exit(1)
    _end(complete)


@app.command(epilog="Example: aerobee dlq purge billing --dry-run")
def purge(
    context: typer.Context,
    *,
    group: Group,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing.")] = False,
    yes: Yes = False,
    namesrv: Namesrv = None,
) -> None:
    """Delete all dead letters of a group, on every broker. They cannot be had back.

    `aerobee dlq export` keeps them in a file. One that arrives while they are deleted goes too; the
    next one makes the dead-letter topic anew.
    """
    address = namesrv_of(context, namesrv)
    count = asyncio.run(_count(address, group))
    if dry_run or not count:
        output.note(f"would delete {count:,} dead letters of {group}" if count else _none_of(group))
        return
    confirm(f"Delete {count:,} dead letters of {group}?", yes)
    deleted = asyncio.run(_purge(address, group))
    output.note(f"deleted {count:,} dead letters of {group}" if deleted else _none_of(group))


async def _count(namesrv: str, group: str) -> int:
    from aerobee_client import AsyncAdminClient
    from aerobee_client.admin.dead_letters import DeadLetters

    async with AsyncAdminClient(namesrv) as admin:
        queues = await DeadLetters(admin, group).queues()
    return sum(queue.max_offset - queue.min_offset for queue in queues)


async def _purge(namesrv: str, group: str) -> bool:
    """False: somebody else was quicker."""
    from aerobee_client import AsyncAdminClient
    from aerobee_client.admin.dead_letters import DeadLetters

    async with AsyncAdminClient(namesrv) as admin:
        return await admin.delete_topic(DeadLetters(admin, group).topic)


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


def _tell_redriven(outcomes: list[dict[str, Any]], group: str, dry_run: bool) -> None:
    verb = "would send" if dry_run else "sent"
    done = sum(outcome["status"] == verb for outcome in outcomes)
    topics = ", ".join(sorted({outcome["topic"] for outcome in outcomes} - {""}))
    where = f" to {topics}" if topics else ""
    output.note(f"{verb} {done:,} of {len(outcomes):,} dead letters of {group}{where}")


async def _redrive(
    query: Query, to: Target, rate: float | None, outcomes: list[dict[str, Any]], *, dry_run: bool
) -> bool:
    """Whether every dead letter could be read. `outcomes` gets what became of each, also when this
    raises in the end."""
    from contextlib import AsyncExitStack

    from aerobee_client import AsyncAdminClient, AsyncProducer
    from aerobee_client.admin.dead_letters import DeadLetters
    from aerobee_client.admin.redrive import reads_retries
    from aerobee_client.admin.redrive import redrive as send_again

    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(AsyncAdminClient(query.namesrv))
        if to is Target.RETRY and not reads_retries(
            await admin.list_clients(query.group), query.group
        ):
            raise CommandError(
                f"the consumers of {query.group} do not read its retry topic, as those of the "
                "official SDKs never do: send with --to origin"
            )
        producer = None
        if not dry_run:
            opened = AsyncProducer(PRODUCER_GROUP, namesrv=query.namesrv)
            producer = await stack.enter_async_context(opened)
        letters = DeadLetters(admin, query.group)
        chosen = _chosen(letters, query.choice)
        async for outcome in send_again(chosen, producer, query.group, to, rate):
            outcomes.append(asdict(outcome))
        return _is_complete(letters)


def _collect(
    query: Query, limit: int, item_of: Callable[[ReceivedMessage], dict[str, Any]]
) -> tuple[list[dict[str, Any]], bool]:
    """At most `limit` items (0: all), and whether every dead letter could be read."""
    items: list[dict[str, Any]] = []

    def take(letter: ReceivedMessage) -> bool:
        items.append(item_of(letter))
        return len(items) != limit

    complete = asyncio.run(_each(query, take))
    return items, complete


def _export_to(query: Query, out: Path) -> tuple[int, bool]:
    """As `_export`. A file that is there is replaced once all is written and on the disk: after a
    purge it may be the only copy. Raises OSError."""
    target = out.resolve()
    if out.exists() and not (out.is_file() and target.exists() and target.samefile(out)):
        with out.open("w", encoding="utf-8") as file:  # a pipe, a device
            return _export(query, file.write)
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with part.open("w", encoding="utf-8") as file:
            result = _export(query, file.write)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return result


def _export(query: Query, write: Callable[[str], Any]) -> tuple[int, bool]:
    """How many, and whether that is all."""
    count = 0

    def take(letter: ReceivedMessage) -> bool:
        nonlocal count
        count += 1
        write(json_format.dumps(messages.whole(letter), ensure_ascii=False) + "\n")
        return True

    complete = asyncio.run(_each(query, take))
    return count, complete


async def _each(query: Query, take: Callable[[ReceivedMessage], bool]) -> bool:
    """Calls `take` with every dead letter that was chosen, until it returns False. False itself
    when some could not be read."""
    from aerobee_client import AsyncAdminClient
    from aerobee_client.admin.dead_letters import DeadLetters

    async with AsyncAdminClient(query.namesrv) as admin:
        letters = DeadLetters(admin, query.group)
        async for letter in _chosen(letters, query.choice):
            if not take(letter):
                break
        return _is_complete(letters)


async def _chosen(letters: DeadLetters, choice: Choice) -> AsyncIterator[ReceivedMessage]:
    async for letter in letters.read():
        if choice.takes(letter):
            yield letter


def _is_complete(letters: DeadLetters) -> bool:
    """Whether all could be read so far; says why not."""
    if letters.corrupted:
        output.note(
            f"warning: {letters.corrupted} records of {letters.topic} are corrupt and left out: "
            "the broker's log names their file and physical offset"
        )
    if letters.expired:
        output.note(
            f"warning: {letters.expired} records of {letters.topic} expired before they were read"
        )
    return not letters.corrupted and not letters.expired


def _end(complete: bool) -> None:
    if not complete:
        raise typer.Exit(INCOMPLETE)


def _tell_empty(items: list[dict[str, Any]], group: str, json: bool) -> None:
    if not items and not json:
        output.note(_none_of(group))


def _none_of(group: str) -> str:
    return f"no dead letters of {group}"
