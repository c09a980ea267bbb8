"""Decode the records of a pull response into received messages. Pure."""

from __future__ import annotations

from aerobee_client.message import ReceivedMessage
from aerobee_wire import properties
from aerobee_wire.record import CorruptRecord, iter_records
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import is_retry

_TAGS = f"{properties.TAGS}\x01".encode()


def received(
    records: bytes,
    broker_name: str,
    *,
    tags: frozenset[bytes] = frozenset(),
    origin_topics: bool = False,
) -> list[ReceivedMessage]:
    """Return the messages of concatenated records, only those with `tags` if any are given.

    With `origin_topics`, messages of a retry topic show their origin topic. Raises
    MESSAGE_CORRUPTED if a record fails its check.
    """
    messages = []
    try:
        for record in iter_records(records):
            if tags and properties.get(record.raw_properties, _TAGS) not in tags:
                continue  # the broker compares only the hash codes of tags
            message = ReceivedMessage(record, broker_name)
            if origin_topics and is_retry(record.topic):
                message.show_origin_topic()
            messages.append(message)
    except CorruptRecord as error:
        raise MqError(
            Code.MESSAGE_CORRUPTED,
            f"broker {broker_name} answered with a record that fails its check: {error.reason}",
        ) from None
    return messages
