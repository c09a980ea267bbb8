"""Define `aerobee delayed`: list messages that wait for their delivery time."""

from __future__ import annotations

from typing import Annotated

from aerobee_cli import output
from aerobee_cli.command_line import CommandGroup, Option
from aerobee_cli.options import (
    ListingOptions,
    end,
)
from aerobee_cli.output import items_of
from aerobee_cli.table import Column, number
from aerobee_cli.unanswered import rows_note, unanswered_of
from aerobee_wire.topics import RETRY_PREFIX

app = CommandGroup("delayed", help="Messages that wait for their delivery time.")

DELAYED_COLUMNS = (
    Column("due", "due_timestamp_ms"),
    Column("topic", "topic"),
    Column("message", "message_id"),
    Column("delay", "delay"),
    number("bytes", "body_size"),
    Column("stored", "stored_timestamp_ms", extra=True),
    Column("broker", "broker_name", extra=True),
)


@app.add("list", epilog="Example: aerobee delayed list --topic orders --json")
def list_delayed(
    *,
    topic: Annotated[
        str,
        Option(
            metavar="TOPIC",
            help="Only messages for it, among the next 10,000 of each broker; for retries, "
            f"{RETRY_PREFIX}GROUP.",
        ),
    ] = "",
    top: Annotated[int, Option(metavar="N", min=1, max=1_000, help="How many at most.")] = 100,
    options: ListingOptions,
) -> None:
    """List delayed messages and retries, the next ones first.

    A value that cannot be read is empty. Exit code 3: a broker did not answer, and its messages are
    missing.
    """
    table = options.listing(DELAYED_COLUMNS)
    with options.admin() as admin:
        found = admin.list_delayed(topic=topic, limit=top)
    table.show(items_of(found.rows), as_json=options.json)
    output.note(rows_note(found, "delayed messages"))
    end(unanswered_of(found.unanswered))
