"""Convert topics and groups, as listings print them in JSON, to entries of a file for `--from`.

`aerobee export` writes such entries, and `aerobee apply` reads them. A listing that was saved by
`topic list --json` or `group list --json` can be used in place of a file. This module does not read
files and does not call brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from aerobee_cli.errors import CommandError
from aerobee_cli.output import Item
from aerobee_cli.times import format_ms
from aerobee_wire.route import READ, READ_WRITE, WRITE

PERMISSIONS = {"rw": READ_WRITE, "r": READ, "w": WRITE}
_PERMISSION_NAMES = {bits: name for name, bits in PERMISSIONS.items()}
# The attribute that the setting `type` sets, and the type of a topic that no message has used.
_TYPE_ATTRIBUTE, _NO_TYPE = "message.type", "UNSPECIFIED"

# The settings of one topic or group, with the names that they have in a file for --from.
Entry: TypeAlias = dict[str, Any]


def topic_entry(item: Item) -> Entry:
    """Return the entry of a topic, with the settings that it has on its first broker.

    Raises CommandError if a permission cannot be written.
    """
    first, *_ = item["brokers"]
    read, write = first["read_queue_count"], first["write_queue_count"]
    counts = {"queues": read} if read == write else {"read_queues": read, "write_queues": write}
    permission = _PERMISSION_NAMES.get(first["permission"])
    if permission is None:
        raise CommandError(
            f"topic {item['topic']} has the permission {first['permission']}, which is not r, w or "
            "rw: update it first"
        )
    entry = {"topic": item["topic"], **counts, "permission": permission}
    if item["message_type"] != _NO_TYPE:
        entry["type"] = item["message_type"].lower()
    attributes = _attributes(first)
    attributes.pop(_TYPE_ATTRIBUTE, None)
    return entry | ({"attributes": attributes} if attributes else {})


def group_entry(item: Item) -> Entry:
    """Return the entry of a group."""
    retry = item["exponential_retry"]
    if retry is None:
        delays = {"retry_delays": ",".join(map(format_ms, item["retry_delays_ms"]))}
    else:
        first, last = format_ms(retry["initial_ms"]), format_ms(retry["max_ms"])
        policy = f"exponential:initial={first},max={last},multiplier={retry['multiplier']}"
        delays = {"retry": policy}
    entry = {
        "group": item["consumer_group"],
        "max_attempts": item["max_attempts"],
        **delays,
        "order": item["order"],
        "consume": item["consume_enable"],
        "consume_from_min": item["consume_from_min_enable"],
    }
    attributes = _attributes(item)
    return entry | ({"attributes": attributes} if attributes else {})


_NAMES = {"topic": "topic", "group": "consumer_group"}
_ENTRIES: Mapping[str, Callable[[Item], Entry]] = {"topic": topic_entry, "group": group_entry}


def entries_of_listing(kind: str, items: Sequence[Any]) -> list[Entry]:
    """Return the entries of a listing in JSON. `kind` is "topic" or "group".

    Raises ValueError if it is not such a listing.
    """
    name = _NAMES[kind]
    for item in items:
        if not isinstance(item, Mapping) or name not in item:
            raise ValueError(f"an object without {name}: it is not the output of {kind} list")
    try:
        return [_ENTRIES[kind](dict(item)) for item in items]
    except KeyError as error:
        raise ValueError(f"an object without {error.args[0]}") from None


def groups_of(brokers: Mapping[str, Sequence[Item]]) -> tuple[list[Item], list[str]]:
    """Return each group once, sorted by name, and the names of those that differ.

    Args:
        brokers: The groups of each broker, by broker name.

    Returns:
        The groups with the settings of their first broker, and the names of groups whose settings
        differ between their brokers.
    """
    found: dict[str, list[Item]] = {}
    for groups in brokers.values():
        for group in groups:
            found.setdefault(group["consumer_group"], []).append(group)
    first = [found[name][0] for name in sorted(found)]
    entries = {name: [group_entry(each) for each in found[name]] for name in sorted(found)}
    return first, [name for name, (head, *rest) in entries.items() if any(e != head for e in rest)]


def differing_topics(topics: Sequence[Item]) -> list[str]:
    """Return the names of topics whose settings differ between their brokers."""
    return [topic["topic"] for topic in topics if len(set(map(_settings, topic["brokers"]))) > 1]


def _settings(broker: Item) -> tuple[Any, ...]:
    counts = (broker["read_queue_count"], broker["write_queue_count"], broker["permission"])
    return (*counts, tuple(sorted(_attributes(broker).items())))


def _attributes(item: Item) -> dict[str, str]:
    return dict(sorted(item["attributes"].items()))
