"""Columns of tables of messages, and a warning about messages that could not be read.

The keys of the columns are those of `aerobee_client.admin.export.summary`.
"""

from __future__ import annotations

from collections.abc import Iterable

from aerobee_cli.output import Column, Item, note, number

_DEAD_LETTER_COLUMNS = (
    Column("message id", "message_id"),
    Column("origin topic", "origin_topic"),
    Column("origin message id", "origin_message_id"),
    Column("tag", "tag"),
    Column("keys", "keys"),
    number("reconsume times", "reconsume_times"),
    Column("born", "born_timestamp_ms"),
    Column("stored", "store_timestamp_ms"),
    Column("reason", "reason"),
    Column("broker", "broker_name"),
    number("queue id", "queue_id"),
    number("queue offset", "queue_offset"),
)

MESSAGE_COLUMNS = (
    Column("message id", "message_id"),
    Column("offset message id", "offset_message_id"),
    Column("topic", "topic"),
    Column("tag", "tag"),
    Column("keys", "keys"),
    number("reconsume times", "reconsume_times"),
    Column("born", "born_timestamp_ms"),
    Column("stored", "store_timestamp_ms"),
    Column("broker", "broker_name"),
    number("queue id", "queue_id"),
    number("queue offset", "queue_offset"),
    number("bytes", "body_size"),
)


def dead_letter_columns(items: Iterable[Item]) -> tuple[Column, ...]:
    """Return the columns for dead letters, with lite topics if one of them has a lite topic."""
    if not any(item["lite_topic"] for item in items):
        return _DEAD_LETTER_COLUMNS
    at = 1 + [column.key for column in _DEAD_LETTER_COLUMNS].index("origin_topic")
    lite_topic = Column("lite topic", "lite_topic")
    return (*_DEAD_LETTER_COLUMNS[:at], lite_topic, *_DEAD_LETTER_COLUMNS[at:])


def warn_unless_complete(topic: str, corrupted: int, expired: int) -> None:
    """Warn on stderr about records of `topic` that could not be read."""
    if corrupted:
        note(
            f"warning: {corrupted} records of {topic} are corrupt and left out: the broker's log "
            "names their file and physical offset"
        )
    if expired:
        note(f"warning: {expired} records of {topic} expired before they were read")
