"""Define `aerobee clients`: list connected clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import click

from aerobee_cli import connected
from aerobee_cli.command_line import CommandGroup, Option
from aerobee_cli.options import Columns, Json, Namesrv, Wide, admin_client, end, listing
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_client import AdminClient


app = CommandGroup()


@app.add(epilog="Example: aerobee clients --group billing --json")
def clients(
    context: click.Context,
    *,
    group: Annotated[
        str, Option(metavar="GROUP", help="Only producers and consumers of this group.")
    ] = "",
    topic: Annotated[
        str,
        Option(
            metavar="TOPIC",
            help="Only those that subscribe to it or, of the official SDKs, publish to it; other "
            "producers do not say where to.",
        ),
    ] = "",
    wide: Wide = False,
    columns: Columns = "",
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """List all clients: producers and consumers, connected to brokers or through a proxy.

    A closed client disappears at once, and a dead client after two minutes. Exit code 3: a broker
    did not answer, and its clients may be missing.
    """
    table = listing(connected.CLIENT_COLUMNS, wide=wide, chosen=columns)
    silent: list[MqError] = []
    with admin_client(context, namesrv) as admin:
        found = admin.list_clients(group, topic, silent=silent)
        # Members that do not subscribe to the topic are a conflict too.
        everybody = admin.list_clients(group, silent=[]) if topic else found
        if not found and not silent:
            _check_names(admin, group, topic)
    connected.show_clients(found, table, as_json=json)
    for name in sorted({name for client in found for name in client.consumer_groups}):
        connected.note_conflicts(everybody, name)
    end(f"the list may lack clients: {error}" for error in silent)


def _check_names(admin: AdminClient, group: str, topic: str) -> None:
    """Raise MqError if the group or topic does not exist, instead of showing an empty list.

    A group of producers exists only while its producers are connected.
    """
    if group:
        admin.get_group(group)
    if topic:
        admin.topic_route(topic)
