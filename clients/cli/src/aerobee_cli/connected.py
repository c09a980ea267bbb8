"""Connected clients and their conflicts, as several commands show them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from aerobee_cli import output
from aerobee_cli.output import Column, Item, items_of

if TYPE_CHECKING:
    from aerobee_client.admin.descriptions import ClientDescription, SubscriptionConflict

COLUMNS = (
    Column("client", "client_id"),
    Column("consumes as", "consumer_groups"),
    Column("subscribes to", "subscriptions"),
    Column("publishes to", "publishes"),
    Column("language", "software"),
    Column("address", "address"),
    Column("proxy", "proxy"),
    Column("since", "since_timestamp_ms"),
    Column("last seen", "last_update_timestamp_ms"),
)


def show_clients(clients: Iterable[ClientDescription], *, as_json: bool) -> None:
    items: list[Item] = list(items_of(clients))
    if not as_json:
        items = [
            {
                **item,
                "software": f"{item['language']} {item['version']}".strip(),
                "publishes": item["published_topics"]
                or tuple(f"group {group}" for group in item["producer_groups"]),
            }
            for item in items
        ]
    output.show_list(items, COLUMNS, as_json=as_json)


def note_conflicts(clients: Iterable[ClientDescription], group: str) -> None:
    """One remark for each topic to which members of `group` subscribe differently."""
    from aerobee_client.admin.descriptions import subscription_conflicts

    for conflict in subscription_conflicts(clients, group):
        output.note(f"warning: {conflict_text(conflict, group)}")


def conflict_text(conflict: SubscriptionConflict, group: str) -> str:
    parts = [
        f"{_some(clients)} {f'to {expression}' if expression else 'not at all'}"
        for expression, clients in conflict.expressions.items()
    ]
    return (
        f"members of {group} subscribe differently to {conflict.topic} ({'; '.join(parts)}): "
        "messages are lost that reach a member whose filter drops them"
    )


def _some(names: Sequence[str], limit: int = 3) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
