"""Messages as items to print. Pure."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from aerobee_cli.output import Column, joined, moment, number
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_client import ReceivedMessage


def head(message: ReceivedMessage) -> dict[str, Any]:
    """Everything about a message but its body and properties.

    "message_id" stays with a message from its producer to the dead-letter topic;
    "origin_message_id" is what `message get` finds its first record by. "reason" and "description"
    are "" for a message that has not failed.
    """
    return {
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "topic": message.stored_topic,
        "origin_topic": message.origin_topic,
        "origin_message_id": message.origin_message_id,
        "tag": message.tag,
        "keys": list(message.keys),
        "reconsume_times": message.reconsume_times,
        "born_timestamp_ms": message.born_timestamp_ms,
        "store_timestamp_ms": message.store_timestamp_ms,
        "reason": message.failure_reason,
        "description": message.failure_description,
        "broker_name": message.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "body_size": len(message.stored_body),
    }


def whole(message: ReceivedMessage) -> dict[str, Any]:
    """With properties, and the body as text under "body" or, when it is not UTF-8, in base64 under
    "body_base64". A body that cannot be decompressed is given as it is stored, and "body_problem"
    says so."""
    item = head(message) | {"properties": dict(message.properties)}
    try:
        body = message.body
    except MqError as error:  # as it is stored, then: the other messages are to be seen too
        item["body_problem"] = str(error)
        body = message.stored_body
    try:
        return item | {"body": body.decode()}
    except UnicodeDecodeError:
        return item | {"body_base64": base64.b64encode(body).decode()}


DEAD_LETTER_COLUMNS = (
    Column("message id", "message_id"),
    Column("origin topic", "origin_topic"),
    Column("origin message id", "origin_message_id"),
    Column("tag", "tag"),
    joined("keys", "keys"),
    number("reconsume times", "reconsume_times"),
    moment("born", "born_timestamp_ms"),
    moment("stored", "store_timestamp_ms"),
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
    joined("keys", "keys"),
    number("reconsume times", "reconsume_times"),
    moment("born", "born_timestamp_ms"),
    moment("stored", "store_timestamp_ms"),
    Column("broker", "broker_name"),
    number("queue id", "queue_id"),
    number("queue offset", "queue_offset"),
    number("bytes", "body_size"),
)
