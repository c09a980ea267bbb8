"""Show connected clients, their conflicts, and missing proxies, for several commands."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from aerobee_cli import output
from aerobee_cli.output import Item, items_of
from aerobee_cli.table import Column, Table, number

if TYPE_CHECKING:
    from aerobee_client.admin.descriptions import (
        AwayProxy,
        ClientDescription,
        MemberConflict,
        SubscriptionConflict,
    )

CLIENT_COLUMNS = (
    Column("client", "client_id"),
    Column("consumes as", "consumer_groups", text=True),
    Column("subscribes to", "subscriptions", extra=True, text=True),
    Column("publishes to", "publishes", extra=True, text=True),
    Column("language", "software", extra=True),
    Column("last seen", "last_update_timestamp_ms", extra=True),
    Column("address", "address", extra=True),
    Column("proxy", "proxy", extra=True),
    Column("user", "user", extra=True),
    Column("since", "since_timestamp_ms", extra=True),
)


def show_clients(clients: Iterable[ClientDescription], table: Table, *, as_json: bool) -> None:
    items: list[Item] = list(items_of(clients))
    if not as_json:
        items = [
            {
                **item,
                "software": _software(item),
                "publishes": item["published_topics"]
                or tuple(f"group {group}" for group in item["producer_groups"]),
            }
            for item in items
        ]
    table.show(items, as_json=as_json, empty="no clients")


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


MEMBER_COLUMNS = (
    Column("client", "client_id"),
    number("lag", "lag"),
    Column("queues", "queues", text=True),
    Column("consumed/s", "consumed_per_second", _rate, right=True, extra=True),
    number("failed", "failed", extra=True),
    number("waiting", "waiting", extra=True),
    Column("consumes by", "way", extra=True),
    Column("locks", "locks", extra=True, text=True),
    Column("strategy", "strategy", extra=True),
    Column("language", "software", extra=True),
    Column("last seen", "last_update_timestamp_ms", extra=True),
    Column("address", "address", extra=True),
    Column("proxy", "proxy", extra=True),
    Column("since", "since_timestamp_ms", extra=True),
)


def show_members(
    clients: Iterable[ClientDescription], group: str, table: Table, *, as_json: bool
) -> None:
    """Show how the members of `group` consume, and their statistics."""
    items: list[Item] = list(items_of(clients))
    if not as_json:
        items = [_member(item, item["consumers"][group]) for item in items]
    table.show(items, as_json=as_json, empty=f"{group} has no members")


def _member(client: Item, consumer: Item) -> Item:
    counted = dict.fromkeys(("consumed_per_second", "failed", "waiting", "lag"))
    broadcasts = consumer["message_model"] == "broadcasting"
    return {
        **client,
        **counted,
        **consumer["statistics"],
        "software": _software(client),
        "way": f"{consumer['consume_type']}{', broadcasting' if broadcasts else ''}",
        "strategy": consumer["strategy"],
        "queues": queue_ranges(consumer["queues"]),
        "locks": queue_ranges(consumer["locks"]),
    }


def queue_ranges(queues: Iterable[str]) -> tuple[str, ...]:
    """Join the ids of queues of the same topic and broker, for example to "topic/broker/0-3"."""
    ids: dict[str, list[int]] = {}
    for queue in queues:
        where, _, queue_id = queue.rpartition("/")
        ids.setdefault(where, []).append(int(queue_id))
    return tuple(f"{where}/{_ranges(sorted(found))}" for where, found in sorted(ids.items()))


def _ranges(numbers: Sequence[int]) -> str:
    """Format sorted numbers as ranges, for example "0-2+5"."""
    parts: list[list[int]] = []
    for each in numbers:
        if parts and parts[-1][-1] == each - 1:
            parts[-1][1:] = [each]
        else:
            parts.append([each])
    return "+".join("-".join(map(str, part)) for part in parts)


def _software(client: Item) -> str:
    return f"{client['language']} {client['version']}".strip()


def conflict_texts(clients: Collection[ClientDescription], group: str) -> list[str]:
    """Return a text for each conflict between the members of `group`."""
    from aerobee_client.admin.descriptions import member_conflicts, subscription_conflicts

    return [
        *(conflict_text(each, group) for each in subscription_conflicts(clients, group)),
        *(member_conflict_text(each, group) for each in member_conflicts(clients, group)),
    ]


def note_conflicts(clients: Collection[ClientDescription], group: str) -> None:
    for text in conflict_texts(clients, group):
        output.note(f"warning: {text}")


_HARM = {
    "strategy": "some queues have two readers, and others none",
    "message model": "some messages reach every member, and others one of them",
    "way to consume": "messages reach a member that pulls and one that pops",
}


def member_conflict_text(conflict: MemberConflict, group: str) -> str:
    parts = "; ".join(f"{value}: {_some(names)}" for value, names in conflict.values.items())
    return (
        f"members of {group} differ in their {conflict.setting} ({parts}): "
        + (_HARM[conflict.setting])
    )


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


def proxies_away(away: Iterable[AwayProxy]) -> Iterator[str]:
    """Yield a problem for each proxy that is missing."""
    for each in away:
        since = output.iso_time(each.since_timestamp_ms, milliseconds=False)
        yield (
            f"the proxy {each.name} is missing since {since}: its clients are listed for two "
            "minutes after that, and then only if they use another proxy; start it again"
        )
