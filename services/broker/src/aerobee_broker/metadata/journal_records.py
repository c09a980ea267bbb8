"""The records of the metadata journal, which replicate topics, groups and consumer offsets.

The functions convert changes of a table into records, and records into changes. They have no state.

The records are messages of the system topic rmq_sys_METADATA_LOG. Their order is therefore the
order of the changes, and they share log, replication and recovery with all other messages:

    queue 0   changes of a table. A record has the changed rows, not the operation, so a change may
              be applied twice
    queue 1   changes that also act on the store, at their position in the log. If a topic is
              deleted, its earlier messages are deleted, and later ones belong to a new topic. If a
              parent of lite topics is created, its later consume queue units have other codes

The body is a JSON object. Its member "kind" is the kind of the record. Rows have the format of the
file of their table.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metadata.subscription_groups import SubscriptionGroups
from aerobee_broker.metadata.table import DataVersion, JournalledTable
from aerobee_broker.metadata.topics import Topics
from aerobee_broker.store.messages import NewMessage
from aerobee_wire import topics as names

MAX_BODY = 256 * 1024  # bytes of a record; a single row may be larger
_DELETION = "deleteTopic"
_PARENT = "createParent"
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode


class TableChange(NamedTuple):
    """A change of the table that is the field `table` of JournalledTables.

    `version` is the version of the table after the change. `put` has the added and changed rows by
    name. If `anew` is True, the change first removes all rows.
    """

    table: str
    version: DataVersion
    put: Mapping[str, Any]
    removed: Sequence[str] = ()
    anew: bool = False


class TopicDeletion(NamedTuple):
    """The deletion of a topic.

    Messages of the topic before the physical offset `below` are deleted. Later messages belong to
    a topic that was created again. The topic has no messages between `below` and this record.
    """

    topic: str
    below: int


class ParentCreation(NamedTuple):
    """The creation of a topic of the type LITE.

    This record precedes the first message of the topic and the change of the table.
    """

    topic: str


MetadataRecord = TableChange | TopicDeletion | ParentCreation


class JournalledTables(NamedTuple):
    """The tables that a replicated broker journals. Field names are the names of the tables."""

    topics: Topics
    groups: SubscriptionGroups
    offsets: ConsumerOffsets

    def by_name(self) -> dict[str, JournalledTable]:
        return dict(zip(self._fields, self, strict=True))


# ---- format ----


def messages(record: MetadataRecord, now_ms: int) -> list[NewMessage]:
    """Encode a record as messages to append. A large change becomes several messages."""
    topic = names.METADATA_LOG_TOPIC
    if not isinstance(record, TableChange):
        kind = _DELETION if isinstance(record, TopicDeletion) else _PARENT
        body = _encode({"kind": kind, **record._asdict()}).encode()
        queue_id = names.METADATA_DELETION_QUEUE
        return [NewMessage(topic, queue_id, body, born_timestamp_ms=now_ms)]
    queue_id = names.METADATA_CHANGE_QUEUE
    return [NewMessage(topic, queue_id, body, born_timestamp_ms=now_ms) for body in _bodies(record)]


def _bodies(change: TableChange) -> Iterator[bytes]:
    version = _encode(change.version.to_json())
    head = f'{{"kind":{_encode(change.table)},"version":{version}'
    if change.anew:
        head += ',"anew":true'
    rows: list[str] = []
    size = 0
    for name, row in change.put.items():
        text = f"{_encode(name)}:{_encode(row)}"
        if rows and size + len(text) > MAX_BODY:
            yield f'{head},"put":{{{",".join(rows)}}},"removed":[]}}'.encode()
            head = head.removesuffix(',"anew":true')
            rows, size = [], 0
        rows.append(text)
        size += len(text)
    yield f'{head},"put":{{{",".join(rows)}}},"removed":{_encode(list(change.removed))}}}'.encode()


def decode(body: bytes) -> MetadataRecord:
    """Decode a record. Raises KeyError, TypeError or ValueError if it is invalid."""
    found = json.loads(body)
    kind = found["kind"]
    if kind == _DELETION:
        return TopicDeletion(_text(found["topic"]), int(found["below"]))
    if kind == _PARENT:
        return ParentCreation(_text(found["topic"]))
    if kind not in JournalledTables._fields:
        raise ValueError(f"a record of the unknown kind {kind!r}")
    return TableChange(
        kind,
        DataVersion.from_json(found["version"]),
        dict(found["put"]),
        [_text(name) for name in found["removed"]],
        bool(found.get("anew", False)),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"invalid name {value!r}")
    return value


# ---- apply ----


def apply(record: MetadataRecord, tables: JournalledTables, stale: Collection[str] = ()) -> None:
    """Apply a record to the tables. The caller must apply it to the store.

    `stale` has the names of tables that are newer than the record. They are not changed. Raises
    AttributeError, KeyError, TypeError or ValueError for invalid rows, before changing a table.
    """
    if isinstance(record, TopicDeletion):
        if "topics" not in stale:
            tables.topics.remove_row(record.topic)
        if "offsets" not in stale:
            tables.offsets.remove_topic(record.topic)
    elif isinstance(record, TableChange) and record.table not in stale:
        tables.by_name()[record.table].take_rows(
            record.put, record.removed, record.version, anew=record.anew
        )
