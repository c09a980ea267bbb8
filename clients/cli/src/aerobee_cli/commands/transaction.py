"""Define `aerobee transaction`: list open transactions, and commit or roll them back."""

from __future__ import annotations

from typing import Annotated

from aerobee_cli import output
from aerobee_cli.command_line import Argument, CommandGroup, Option
from aerobee_cli.options import (
    ClusterOptions,
    ListingOptions,
    Yes,
    confirm,
    end,
)
from aerobee_cli.output import items_of
from aerobee_cli.table import Column, number
from aerobee_cli.unanswered import rows_note, unanswered_of
from aerobee_wire.status import Code, MqError

app = CommandGroup("transaction", help="Transactions that have not ended.")

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


@app.add("list", epilog="Example: aerobee transaction list --topic orders --json")
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


@app.add(epilog="Example: aerobee transaction commit 01AF… --yes")
def commit(*, transaction_id: TransactionId, yes: Yes = False, options: ClusterOptions) -> None:
    """Deliver the message of a transaction, in place of its producer."""
    _end_transaction(options, transaction_id, commit=True, yes=yes)


@app.add(epilog="Example: aerobee transaction rollback 01AF… --yes")
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
