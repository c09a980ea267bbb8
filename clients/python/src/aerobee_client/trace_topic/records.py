"""Encode RocketMQ's trace records. Does no I/O.

The body of a trace message is a concatenation of records. The fields of a record are separated by
FIELD_SEPARATOR, and each record ends with RECORD_END. Fields are text in UTF-8; booleans are "true"
and "false". No field of a message can contain a separator, because properties use the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

FIELD_SEPARATOR = "\x01"
RECORD_END = "\x02"
# RocketMQ's default name of a region: Aerobee's brokers do not have regions.
REGION = "DefaultRegion"


class MessageType(IntEnum):
    """The number of the kind of a message in records of sends and transactions."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAYED = 3
    ORDERED = 4


class ContextCode(IntEnum):
    """The number of the result of a listener call."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


class TraceRecord(NamedTuple):
    """An encoded record, and the keys by which its trace message can be found."""

    text: str
    keys: Sequence[str]


def _record(message_id: str, keys: Sequence[str], *fields: object) -> TraceRecord:
    texts = ("true" if each is True else "false" if each is False else str(each) for each in fields)
    found = (message_id, *keys) if message_id else keys
    return TraceRecord(FIELD_SEPARATOR.join(texts) + RECORD_END, found)


def sent(
    *,
    timestamp_ms: int,
    group: str,
    topic: str,
    message_id: str,
    tag: str,
    keys: Sequence[str],
    store_host: str,
    body_size: int,
    cost_ms: int,
    kind: MessageType,
    offset_message_id: str,
    success: bool,
) -> TraceRecord:
    """Encode the end of a send: the record `Pub`. `timestamp_ms` is its begin."""
    return _record(
        message_id, keys, "Pub", timestamp_ms, REGION, group, topic, message_id, tag,
        " ".join(keys), store_host, body_size, cost_ms, int(kind), offset_message_id, success,
    )  # fmt: skip


def consuming(
    *,
    timestamp_ms: int,
    group: str,
    request_id: str,
    message_id: str,
    retries: int,
    keys: Sequence[str],
) -> TraceRecord:
    """Encode the begin of a listener call: the record `SubBefore`."""
    return _record(
        message_id, keys, "SubBefore", timestamp_ms, REGION, group, request_id, message_id,
        retries, " ".join(keys),
    )  # fmt: skip


def consumed(
    *,
    timestamp_ms: int,
    group: str,
    request_id: str,
    message_id: str,
    keys: Sequence[str],
    cost_ms: int,
    code: ContextCode,
) -> TraceRecord:
    """Encode the end of a listener call: the record `SubAfter`. `timestamp_ms` is its end."""
    return _record(
        message_id, keys, "SubAfter", request_id, message_id, cost_ms,
        code is ContextCode.SUCCESS, " ".join(keys), int(code), timestamp_ms, group,
    )  # fmt: skip


def transaction_ended(
    *,
    timestamp_ms: int,
    group: str,
    topic: str,
    message_id: str,
    tag: str,
    keys: Sequence[str],
    store_host: str,
    state: str,
    from_check: bool,
) -> TraceRecord:
    """Encode the end of a transaction: the record `EndTransaction`.

    The id of the half message is also the name of the transaction.
    """
    return _record(
        message_id, keys, "EndTransaction", timestamp_ms, REGION, group, topic, message_id, tag,
        " ".join(keys), store_host, int(MessageType.COMMIT), message_id, state, from_check,
    )  # fmt: skip


def recalled(*, timestamp_ms: int, group: str, topic: str, message_id: str) -> TraceRecord:
    """Encode the recall of a delayed message: the record `Recall`."""
    return _record(message_id, (), "Recall", timestamp_ms, REGION, group, topic, message_id, True)


class TraceBody(NamedTuple):
    """The body and the keys of a trace message, and the number of its records."""

    body: bytes
    keys: tuple[str, ...]
    records: int


def bodies(
    records: Iterable[TraceRecord], *, max_bytes: int, max_key_bytes: int
) -> list[TraceBody]:
    """Join records to bodies of at most `max_bytes`, with keys of at most `max_key_bytes`.

    A key counts one more byte, for the space behind it. A record that exceeds a limit by itself
    gets its own body.
    """
    made: list[TraceBody] = []
    parts: list[bytes] = []
    keys: dict[str, None] = {}
    size = key_size = 0
    for record in records:
        part = record.text.encode()
        new = [key for key in dict.fromkeys(record.keys) if key not in keys]
        new_size = sum(len(key.encode()) + 1 for key in new)
        if parts and (size + len(part) > max_bytes or key_size + new_size > max_key_bytes):
            made.append(TraceBody(b"".join(parts), tuple(keys), len(parts)))
            parts, keys, size, key_size = [], {}, 0, 0
            new = list(dict.fromkeys(record.keys))
            new_size = sum(len(key.encode()) + 1 for key in new)
        parts.append(part)
        keys.update(dict.fromkeys(new))
        size += len(part)
        key_size += new_size
    if parts:
        made.append(TraceBody(b"".join(parts), tuple(keys), len(parts)))
    return made
