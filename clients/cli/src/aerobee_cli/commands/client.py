"""Define `aerobee client`: list connected clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from aerobee_cli import connected
from aerobee_cli.command_line import CommandGroup, Option
from aerobee_cli.options import ListingOptions, end
from aerobee_cli.output import unanswered_of

if TYPE_CHECKING:
    from aerobee_client import AdminClient


app = CommandGroup("client", help="Connected producers and consumers.")


@app.add("list", epilog="Example: aerobee client list --group billing --json")
def list_clients(
    *,
    text: Annotated[
        str,
        Option(
            "--match",
            metavar="TEXT",
            help="Only clients whose id, address, proxy, user or software contains this text.",
        ),
    ] = "",
    group: Annotated[
        str, Option(metavar="GROUP", help="Only producers and consumers of this group.")
    ] = "",
    topic: Annotated[
        str, Option(metavar="TOPIC", help="Only those that subscribe or publish to it.")
    ] = "",
    user: Annotated[str, Option(metavar="USER", help="Only those that sign as this user.")] = "",
    proxy: Annotated[
        str, Option(metavar="H:P", help="Only clients of this proxy, as the list shows it.")
    ] = "",
    top: Annotated[
        int | None, Option(metavar="N", min=1, help="How many at most. Default: all.")
    ] = None,
    options: ListingOptions,
) -> None:
    """List all clients: producers and consumers, connected to brokers or through a proxy.

    A closed client disappears at once, and a dead client after two minutes. Exit code 3: a broker
    or a proxy is missing, and its clients may be missing.
    """
    table = options.listing(connected.CLIENT_COLUMNS)
    with options.admin() as admin:
        found = admin.client_page(
            text=text, group=group, topic=topic, user=user, proxy=proxy, limit=top or 0
        )
        # Members that do not subscribe to the topic are a conflict too.
        everybody = admin.list_clients(group, silent=[]) if topic else found.rows
        away = admin.cluster().away_proxies
        if not found.rows and not found.unanswered:
            _check_names(admin, group, topic)
    connected.show_clients(found.rows, table, as_json=options.json)
    for name in sorted({name for client in found.rows for name in client.consumer_groups}):
        connected.note_conflicts(everybody, name)
    end([*unanswered_of(found.unanswered), *connected.proxies_away(away)])


def _check_names(admin: AdminClient, group: str, topic: str) -> None:
    """Raise MqError if the group or topic does not exist, instead of showing an empty list.

    A group of producers exists only while its producers are connected.
    """
    if group:
        admin.get_group(group)
    if topic:
        admin.topic_route(topic)
