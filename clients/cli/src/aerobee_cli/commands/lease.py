"""Define `aerobee lease`: list the messages that consumers have on lease, and release them."""

from __future__ import annotations

from typing import Annotated

from aerobee_cli import output
from aerobee_cli.command_line import Argument, CommandGroup, Option
from aerobee_cli.options import (
    BadOption,
    ClusterOptions,
    Group,
    ListingOptions,
    end,
)
from aerobee_cli.output import items_of
from aerobee_cli.table import Column, number
from aerobee_cli.unanswered import rows_note, unanswered_of
from aerobee_wire.status import Code, MqError

app = CommandGroup("lease", help="Messages that a consumer received and did not settle yet.")

LEASE_COLUMNS = (
    Column("message", "message_id"),
    Column("topic", "topic"),
    number("attempt", "attempt"),
    Column("client", "client_id"),
    Column("since", "since_timestamp_ms", extra=True),
    Column("expires", "expires_timestamp_ms"),
    Column("message group", "message_group", extra=True),
    Column("broker", "broker_name", extra=True),
    number("queue", "queue_id", extra=True),
    number("offset", "queue_offset", extra=True),
)
MOST_LISTED = 1_000


@app.add("list", epilog="Example: aerobee lease list billing --topic orders --json")
def list_leases(
    *,
    group: Group,
    topic: Annotated[str, Option(metavar="TOPIC", help="Only messages of this topic.")] = "",
    client: Annotated[
        str, Option(metavar="ID", help="Only messages that this client received.")
    ] = "",
    top: Annotated[int, Option(metavar="N", min=1, max=1_000, help="How many at most.")] = 100,
    options: ListingOptions,
) -> None:
    """List messages on lease, the oldest lease first.

    Only groups that pop have leases, such as those of the official SDKs. Exit code 3: a broker did
    not answer, and its leases are missing.
    """
    table = options.listing(LEASE_COLUMNS)
    with options.admin() as admin:
        found = admin.list_leases(group, topic=topic, client_id=client, limit=top)
    table.show(items_of(found.rows), as_json=options.json)
    output.note(rows_note(found, "leases"))
    if found.lite_leases:
        output.note(f"{found.lite_leases:,} messages of lite topics are on lease, too")
    end(unanswered_of(found.unanswered))


@app.add(epilog="Example: aerobee lease release billing 01AF…")
def release(
    *,
    group: Group,
    message_id: Annotated[
        str, Argument(metavar="ID", help="Message id, as 'lease list' shows it.")
    ],
    options: ClusterOptions,
) -> None:
    """End the lease of a message now, so that the group gets it again at once.

    Use it if the client that received the message hangs. The next delivery has the same attempt
    number. If the client is still working on the message, the group may consume it twice.
    """
    with options.admin() as admin:
        if not message_id:
            raise BadOption("the message id is empty: see aerobee lease list")
        found = admin.list_leases(group, message_id=message_id, limit=MOST_LISTED)
        leases = found.rows
        if not leases:
            missing = "; ".join(unanswered_of(found.unanswered))
            raise MqError(
                Code.QUERY_NOT_FOUND,
                f"no lease of {group} is on a message {message_id!r}: see aerobee lease "
                f"list {group}" + (f" ({missing})" if missing else ""),
            )
        for lease in leases:
            admin.release_lease(group, lease)
    done = f"released {message_id}; {leases[0].client_id or 'an unknown client'} had it"
    output.show_done(done, {"group": group, "released": items_of(leases)}, as_json=options.json)
    end(unanswered_of(found.unanswered))
