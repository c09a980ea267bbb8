"""Define `aerobee quota`: limit how much users, clients and addresses do a second."""

from __future__ import annotations

from typing import Annotated

from aerobee_cli import changes, output
from aerobee_cli.command_line import Argument, CommandGroup, Option
from aerobee_cli.options import BadOption, ClusterOptions, ListingOptions, Yes, confirm
from aerobee_cli.table import Column, number

app = CommandGroup("quota", help="Quotas of users, clients and addresses.")

COLUMNS = (
    Column("subject", "subject"),
    number("calls/s", "calls"),
    number("messages in/s", "messages_in"),
    number("bytes in/s", "bytes_in"),
    number("messages out/s", "messages_out"),
    number("bytes out/s", "bytes_out"),
)

Subject = Annotated[
    str,
    Argument(
        metavar="SUBJECT",
        help="User:NAME, Client:ID or Address:HOST; the name * is the default of its kind.",
    ),
]


@app.add("set", epilog="Example: aerobee quota set User:billing --messages-in 1000")
def set_quota(
    *,
    subject: Subject,
    calls: Annotated[int, Option(metavar="N", help="Calls a second; 0: no limit.")] = 0,
    messages_in: Annotated[int, Option(metavar="N", help="Messages sent a second.")] = 0,
    bytes_in: Annotated[int, Option(metavar="N", help="Bytes of bodies sent a second.")] = 0,
    messages_out: Annotated[int, Option(metavar="N", help="Messages received a second.")] = 0,
    bytes_out: Annotated[int, Option(metavar="N", help="Bytes received a second.")] = 0,
    options: ClusterOptions,
) -> None:
    """Set the quota of a subject, at each process that serves it. It replaces the former one.

    Only proxies count all calls of a client. Brokers count its pulls and pops, but not its sends,
    which do not contain its id.

    Exit code 3: a process does not have the quota yet.
    """
    if not any((calls, messages_in, bytes_in, messages_out, bytes_out)):
        raise BadOption("nothing to limit: give a rate, such as --messages-in 1000")
    with options.admin() as admin:
        change = admin.set_quota(
            subject,
            calls=calls,
            messages_in=messages_in,
            bytes_in=bytes_in,
            messages_out=messages_out,
            bytes_out=bytes_out,
        )
    if subject.startswith("Client:"):
        output.note(
            "proxies count all calls of a client; brokers count its pulls and pops, but not its "
            "sends: to limit these, set a quota of its user or address"
        )
    changes.show_access(f"set the quota of {subject}", change, {}, as_json=options.json)


@app.add("list", epilog="Example: aerobee quota list --json")
def list_quotas(*, options: ListingOptions) -> None:
    """List all quotas."""
    table = options.listing(COLUMNS)
    with options.admin() as admin:
        found = output.items_of(admin.list_quotas())
    table.show(found, as_json=options.json, empty="no quotas")


@app.add(epilog="Example: aerobee quota delete User:billing --yes")
def delete(*, subject: Subject, yes: Yes = False, options: ClusterOptions) -> None:
    """Delete the quota of a subject.

    Exit code 3: a process does not have the change yet.
    """
    confirm(f"Delete the quota of {subject}?", yes)
    with options.admin() as admin:
        change = admin.delete_quota(subject)
    changes.show_access(f"deleted the quota of {subject}", change, {}, as_json=options.json)
