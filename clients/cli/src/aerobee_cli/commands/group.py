"""`aerobee group`: create, list, show, progress, blocked, reset-offset, delete."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
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
    retry_policy,
)
from aerobee_cli.output import Column, Item, items_of, number
from aerobee_wire.consume_order import ConsumeOrder


class Order(StrEnum):
    AUTO = "auto"
    ON = "on"
    OFF = "off"


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
    retry: Annotated[
        str | None,
        typer.Option(
            metavar="exponential:initial=5s,max=2h,multiplier=2",
            help="Waits that grow, in place of --retry-delays. What is left out is as shown here.",
        ),
    ] = None,
    order: Annotated[
        Order,
        typer.Option(
            help="Of consumers of the official SDKs. auto: topics of the type fifo are consumed in "
            "order, message group by message group; on: every topic; off: none."
        ),
    ] = Order.AUTO,
    from_min: Annotated[
        bool,
        typer.Option(
            "--consume-from-min/--no-consume-from-min",
            help="Whether consumers of the official SDKs begin with the first message of a new "
            "topic, or at its end.",
        ),
    ] = True,
    fifo: Annotated[bool, typer.Option("--fifo", hidden=True, help="As --order on.")] = False,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Create a consumer group on every broker, or change it."""
    waits, exponential = retry_delays(delays), retry_policy(retry)
    if waits and exponential:
        raise BadOption("--retry and --retry-delays exclude each other")
    with admin_client(context, namesrv) as admin:
        made = admin.create_group(
            group,
            max_attempts=max_attempts,
            retry_delays=waits,
            exponential_retry=exponential,
            consume_from_min_enable=from_min,
            order=ConsumeOrder.ON if fifo else ConsumeOrder[order.name],
        )
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
        Column("retry delays", "retry"),
        Column("order", "order"),
        Column("brokers", "brokers"),
    )
    items = items_of(groups)
    if not json:
        items = [{**item, "retry": _retry(item)} for item in items]
    output.show_list(items, columns, as_json=json)


@app.command(epilog="Example: aerobee group show billing --json")
def show(
    context: typer.Context, *, group: Group, namesrv: Namesrv = None, json: Json = False
) -> None:
    """Show the settings of a consumer group."""
    with admin_client(context, namesrv) as admin:
        [item] = items_of([admin.get_group(group)])
    if not json:
        item["order"] = _ORDER_TEXTS[item["order"]]
        item["retry_delays"] = _retry(item)
        del item["retry_delays_ms"], item["exponential_retry"]
    output.show_one(item, as_json=json)


_ORDER_TEXTS = {
    "auto": "auto: messages of topics of the type fifo in order",
    "on": "on: messages of every topic in order",
    "off": "off: messages in no order, also those of topics of the type fifo",
}


def _retry(group: Item) -> str:
    """The waits before the retries of a group, in words."""
    exponential = group["exponential_retry"]
    if exponential is not None:
        first, last = format_ms(exponential["initial_ms"]), format_ms(exponential["max_ms"])
        return f"{first} to {last}, each {exponential['multiplier']} times the one before"
    return ", ".join(map(format_ms, group["retry_delays_ms"])) or "delay levels from 3 on"


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


@app.command(
    epilog="Example: aerobee group blocked dispatch --skip 01AF… --reason 'no such address'"
)
def blocked(
    context: typer.Context,
    *,
    group: Group,
    skip: Annotated[
        str,
        typer.Option(metavar="ID", help="Dead-letter this message, so that its group goes on."),
    ] = "",
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why it is skipped; the dead letter says so.")
    ] = "Skipped",
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Show message groups that wait behind a message that the group failed to consume.

    Only consumers in order wait so. The failing message is one that was not consumed by its first
    lease; it is delivered again until its attempts are used up.
    """
    with admin_client(context, namesrv) as admin:
        if skip:
            found = [admin.skip_message(group, skip, reason=reason)]
            output.note(f"dead-lettered {skip}; {found[0].waiting:,} messages waited behind it")
        else:
            found = admin.blocked_message_groups(group)
    columns = (
        Column("message group", "message_group"),
        Column("topic", "topic"),
        Column("broker", "broker_name"),
        number("queue id", "queue_id"),
        Column("message id", "message_id"),
        number("attempts", "attempt"),
        number("waiting", "waiting"),
        Column("since", "since_timestamp_ms"),
        Column("next try", "next_try_timestamp_ms"),
        Column("client", "client_id"),
    )
    output.show_list(items_of(found), columns, as_json=json)


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
