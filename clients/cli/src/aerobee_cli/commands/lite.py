"""Define `aerobee lite`: show the lite topics of a parent topic, and their subscribers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from aerobee_cli import output
from aerobee_cli.command_line import Argument, CommandGroup, Option
from aerobee_cli.options import ListingOptions, end
from aerobee_cli.table import Column, number
from aerobee_wire.printable import printable
from aerobee_wire.status import Code, MqError

if TYPE_CHECKING:
    from aerobee_client.admin.descriptions import LiteTopicDescription

app = CommandGroup("lite", help="Look at lite topics. Consumes nothing.")

Parent = Annotated[str, Argument(metavar="PARENT", help="A topic of the type LITE.")]
OfGroup = Annotated[
    str,
    Option("--group", metavar="GROUP", help="Whose lag is shown; it is bound to the parent."),
]

TOPIC_COLUMNS = (
    Column("lite topic", "lite_topic"),
    number("messages", "messages"),
    number("lag", "lag"),
    Column("oldest", "oldest_timestamp_ms"),
    number("subscribers", "subscribers"),
    Column("newest", "newest_timestamp_ms", extra=True),
    Column("broker", "broker_name", extra=True),
    number("queue", "queue_id", extra=True),
)
CLIENT_COLUMNS = (
    Column("client", "client_id"),
    Column("group", "consumer_group"),
    Column("lite topics", "subscribes", right=True),
    number("ready", "ready"),
    number("silent (s)", "silent_s", extra=True),
    Column("brokers", "brokers", extra=True, text=True),
)


@app.add("list", epilog="Example: aerobee lite list sessions --group agents --top 10")
def list_topics(
    *,
    parent: Parent,
    group: OfGroup = "",
    top: Annotated[int, Option(metavar="N", min=1, max=1_000, help="How many at most.")] = 100,
    options: ListingOptions,
) -> None:
    """List lite topics with messages: the most messages first, or with --group the largest lag.

    With --group, the lag counts messages that the group has not settled, and the oldest message is
    the oldest unsettled one. Exit code 3: a broker did not answer, and its lite topics are missing.
    """
    table = options.listing(_columns(group))
    with options.asking() as (admin, silent):
        found = admin.list_lite_topics(parent, group=group, limit=top, silent=silent)
    table.show(_items(found.topics, group), as_json=options.json)
    output.note(f"{len(found.topics):,} of {found.total:,} lite topics")
    _end(silent)


@app.add(epilog="Example: aerobee lite show sessions session-4711 --group agents --json")
def show(
    *,
    parent: Parent,
    name: Annotated[str, Argument(metavar="NAME", help="Of the lite topic.")],
    group: OfGroup = "",
    options: ListingOptions,
) -> None:
    """Show one lite topic: where its messages are stored, and the clients that get them.

    Exit code 3: a broker did not answer.
    """
    table = options.listing(_columns(group))
    with options.asking() as (admin, silent):
        found = admin.list_lite_topics(parent, group=group, lite_topic=name, silent=silent)
        clients = admin.list_lite_clients(parent, name, silent=[])
    if not found.topics and not clients and not silent:
        raise MqError(
            Code.TOPIC_NOT_EXIST, f"{parent} has no messages and no subscribers of {name!r}"
        )
    items = _items(found.topics, group)
    subscribers = [
        {"consumer_group": each.consumer_group, "client_id": each.client_id}
        for each in clients
        if group in {"", each.consumer_group}
    ]
    if options.json:
        places = [
            {key: value for key, value in item.items() if key != "lite_topic"} for item in items
        ]
        whole = {"parent": parent, "lite_topic": name, "queues": places, "clients": subscribers}
        output.show_one(whole, as_json=True)
    else:
        table.show(items, empty=f"no messages of {name}")
        for client in subscribers:
            print(f"subscribed: {printable(client['client_id'])} of {client['consumer_group']}")
    _end(silent)


@app.add(epilog="Example: aerobee lite clients sessions --json")
def clients(*, parent: Parent, options: ListingOptions) -> None:
    """List the clients that subscribe to lite topics of a parent topic.

    The column "ready" shows the number of lite topics with a message for the client. Exit code 3: a
    broker did not answer, and its clients may be missing.
    """
    table = options.listing(CLIENT_COLUMNS)
    with options.asking() as (admin, silent):
        items = output.items_of(admin.list_lite_clients(parent, silent=silent))
    if not options.json:
        items = [
            {
                **item,
                "subscribes": "all" if item["wildcard"] else f"{item['lite_topics']:,}",
                "silent_s": item["silent_ms"] // 1000,
            }
            for item in items
        ]
    table.show(items, as_json=options.json, empty=f"no clients of lite topics of {parent}")
    _end(silent)


def _columns(group: str) -> list[Column]:
    """Return the columns for lite topics. Include the lag only if `group` is given."""
    return [each for each in TOPIC_COLUMNS if group or each.key != "lag"]


def _items(topics: Sequence[LiteTopicDescription], group: str) -> list[dict[str, Any]]:
    """Return items for lite topics. Include the lag only if `group` is given."""
    items = output.items_of(topics)
    return [{key: item[key] for key in item if group or key != "lag"} for item in items]


def _end(silent: list[MqError]) -> None:
    end(f"the list is not complete: {error}" for error in silent)
