"""Define `aerobee delayed`, `lease` and `transaction`: messages that a broker holds for a while."""

from __future__ import annotations

from typing import Annotated

from aerobee_cli import output
from aerobee_cli.command_line import Argument, CommandGroup, Option
from aerobee_cli.options import BadOption, ClusterOptions, Group, ListingOptions, Yes, confirm, end
from aerobee_cli.output import items_of, rows_note, unanswered_of
from aerobee_cli.table import Column, number
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import RETRY_PREFIX

app = CommandGroup()

# ---- delayed ----


delayed_commands = app.add_group("delayed", help="Messages that wait for their delivery time.")

DELAYED_COLUMNS = (
    Column("due", "due_timestamp_ms"),
    Column("topic", "topic"),
    Column("message", "message_id"),
    Column("delay", "delay"),
    number("bytes", "body_size"),
    Column("stored", "stored_timestamp_ms", extra=True),
    Column("broker", "broker_name", extra=True),
)


@delayed_commands.add("list", epilog="Example: aerobee delayed list --topic orders --json")
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


# ---- lease ----


lease_commands = app.add_group(
    "lease", help="Messages that a consumer received and did not settle yet."
)

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


@lease_commands.add("list", epilog="Example: aerobee lease list billing --topic orders --json")
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


@lease_commands.add(epilog="Example: aerobee lease release billing 01AF…")
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


# ---- transaction ----


transaction_commands = app.add_group("transaction", help="Transactions that have not ended.")

TRANSACTION_COLUMNS = (
    Column("transaction", "transaction_id"),
    Column("topic", "topic"),
    Column("producer group", "producer_group"),
    Column("stored", "stored_timestamp_ms"),
    number("checks", "checks"),
    Column("broker", "broker_name", extra=True),
    number("offset", "queue_offset", extra=True),
)

TransactionId = Annotated[
    str, Argument(metavar="ID", help="Transaction id, as 'transaction list' shows it.")
]


@transaction_commands.add("list", epilog="Example: aerobee transaction list --topic orders --json")
def list_transactions(
    *,
    topic: Annotated[str, Option(metavar="TOPIC", help="Only those with a message for it.")] = "",
    group: Annotated[str, Option(metavar="GROUP", help="Only those of this producer group.")] = "",
    top: Annotated[int, Option(metavar="N", min=1, max=1_000, help="How many at most.")] = 100,
    options: ListingOptions,
) -> None:
    """List open transactions, the oldest first.

    A broker asks a producer of the group for the outcome, by default after 6 s and then each 30 s.
    After 15 checks it gives the transaction up. Exit code 3: a broker did not answer, and its
    transactions are missing.
    """
    table = options.listing(TRANSACTION_COLUMNS)
    with options.admin() as admin:
        found = admin.list_transactions(topic=topic, producer_group=group, limit=top)
    table.show(items_of(found.rows), as_json=options.json)
    output.note(rows_note(found, "transactions"))
    end(unanswered_of(found.unanswered))


@transaction_commands.add(epilog="Example: aerobee transaction commit 01AF… --yes")
def commit(*, transaction_id: TransactionId, yes: Yes = False, options: ClusterOptions) -> None:
    """Deliver the message of a transaction, in place of its producer."""
    _end_transaction(options, transaction_id, commit=True, yes=yes)


@transaction_commands.add(epilog="Example: aerobee transaction rollback 01AF… --yes")
def rollback(*, transaction_id: TransactionId, yes: Yes = False, options: ClusterOptions) -> None:
    """Discard the message of a transaction, in place of its producer."""
    _end_transaction(options, transaction_id, commit=False, yes=yes)


def _end_transaction(
    options: ClusterOptions, transaction_id: str, *, commit: bool, yes: bool
) -> None:
    with options.admin() as admin:
        found = admin.list_transactions(transaction_id=transaction_id)
        # An empty id does not filter, and must not end the only open transaction.
        named = [row for row in found.rows if row.transaction_id == transaction_id]
        if len(named) != 1:
            count = f"{len(named)} open transactions have" if named else "no open transaction has"
            missing = "; ".join(unanswered_of(found.unanswered))
            raise MqError(
                Code.INVALID_TRANSACTION_ID,
                f"{count} the id {transaction_id!r}: see aerobee transaction list"
                + (f" ({missing})" if missing else ""),
            )
        (transaction,) = named
        verb = "Commit" if commit else "Roll back"
        loss = "its message is delivered" if commit else "its message is discarded"
        confirm(
            f"{verb} transaction {transaction_id} of {transaction.topic}?",
            yes,
            lambda: [f"{loss}, whatever producer group {transaction.producer_group} decides"],
        )
        admin.end_transaction(transaction, commit=commit)
    done = "committed" if commit else "rolled back"
    (item,) = items_of([transaction])
    output.show_done(f"{done} {transaction_id}", {**item, "outcome": done}, as_json=options.json)
