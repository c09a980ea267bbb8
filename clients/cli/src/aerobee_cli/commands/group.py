"""`aerobee group`: create, list, progress, reset-offset, delete."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, TypedDict

import typer

from aerobee_cli import output
from aerobee_cli.durations import format_ms
from aerobee_cli.options import (
    BadOption,
    Group,
    Json,
    Namesrv,
    Topic,
    Yes,
    admin_client,
    confirm,
    retry_delays,
)
from aerobee_cli.output import Column, items_of, number

app = typer.Typer(help="Consumer groups.", no_args_is_help=True)

END = -1  # as a store time: the end of the queue
MAX_OFFSET = (1 << 63) - 1


@app.command(
    epilog="Example: aerobee group create billing --max-attempts 5 --retry-delays 1s,5s,30s"
)
def create(
    context: typer.Context,
    *,
    group: Group,
    max_attempts: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Deliveries before a message is dead-lettered. Default: 17."
        ),
    ] = None,
    delays: Annotated[
        str | None,
        typer.Option(
            "--retry-delays",
            metavar="1s,5s,…",
            help="Wait before each retry; the last one repeats. Default: 10s,30s,1m … 2h.",
        ),
    ] = None,
    fifo: Annotated[
        bool, typer.Option("--fifo", help="It consumes each message queue in order.")
    ] = False,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Create a consumer group on every broker, or change it."""
    waits = retry_delays(delays)
    with admin_client(context, namesrv) as admin:
        made = admin.create_group(group, max_attempts=max_attempts, retry_delays=waits, fifo=fifo)
    columns = (
        Column("broker", "broker_name"),
        Column("address", "address"),
        Column("group", "created", lambda created: "created" if created else "was there"),
    )
    output.show_list(items_of(made), columns, as_json=json)


@app.command("list", epilog="Example: aerobee group list --json")
def list_groups(
    context: typer.Context,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Groups of the system too.")] = False,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """List consumer groups."""
    with admin_client(context, namesrv) as admin:
        groups = admin.list_groups(include_system=everything)
    columns = (
        Column("group", "consumer_group"),
        number("max attempts", "max_attempts"),
        Column(
            "retry delays",
            "retry_delays_ms",
            lambda delays: ", ".join(map(format_ms, delays)) or "delay levels from 3 on",
        ),
        Column("fifo", "fifo", lambda fifo: "yes" if fifo else ""),
        Column("brokers", "brokers"),
    )
    output.show_list(items_of(groups), columns, as_json=json)


@app.command(epilog="Example: aerobee group progress billing --topic orders")
def progress(
    context: typer.Context,
    *,
    group: Group,
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="Only this topic.")] = "",
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Show how far a group is in every message queue, its retry topic included."""
    with admin_client(context, namesrv) as admin:
        queues = admin.consume_progress(group, topic)
    columns = (
        Column("topic", "topic"),
        Column("broker", "broker_name"),
        number("queue id", "queue_id"),
        number("consumer offset", "consumer_offset"),
        number("max offset", "max_offset"),
        number("lag", "lag"),
        Column("last consumed", "last_timestamp_ms"),
        Column("client", "client_id"),
    )
    output.show_list(items_of(queues), columns, as_json=json)


@app.command(epilog="Example: aerobee group reset-offset billing orders --to 2025-06-01T00:00:00Z")
def reset_offset(
    context: typer.Context,
    *,
    group: Group,
    topic: Topic,
    to: Annotated[
        str,
        typer.Option(
            metavar="earliest|latest|TIME|OFFSET",
            help="TIME: ISO 8601, UTC by default. OFFSET: the same in each queue.",
        ),
    ],
    yes: Yes = False,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Move a group to another place in a topic: consume again, or skip."""
    target = reset_target(to)
    confirm(f"Move group {group} in {topic} to {to}?", yes)
    with admin_client(context, namesrv) as admin:
        moved = admin.reset_offsets(group, topic, **target)
    columns = (
        Column("topic", "topic"),
        Column("broker", "broker_name"),
        number("queue id", "queue_id"),
        number("queue offset", "queue_offset"),
    )
    output.show_list(items_of(moved), columns, as_json=json)


@app.command(epilog="Example: aerobee group delete billing --yes")
def delete(context: typer.Context, group: Group, yes: Yes = False, namesrv: Namesrv = None) -> None:
    """Delete a group and its offsets from every broker; its dead letters stay."""
    confirm(f"Delete group {group} and its offsets?", yes)
    with admin_client(context, namesrv) as admin:
        deleted = admin.delete_group(group)
    output.note(f"deleted {group}" if deleted else f"there was no group {group}")
    if not deleted:
        raise typer.Exit(1)


class ResetTarget(TypedDict, total=False):
    """Keyword arguments of `AdminClient.reset_offsets`."""

    timestamp_ms: int
    queue_offset: int


def reset_target(text: str) -> ResetTarget:
    """The target that `--to` means. Raises BadOption."""
    if text == "earliest":
        return {"timestamp_ms": 0}
    if text == "latest":
        return {"timestamp_ms": END}
    if text.isascii() and text.isdigit() and int(text) <= MAX_OFFSET:
        return {"queue_offset": int(text)}
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(
            f"--to {text!r}: give earliest, latest, a time like 2025-06-01T00:00:00Z, or a queue "
            "offset"
        ) from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return {"timestamp_ms": max(0, round(at.timestamp() * 1000))}
