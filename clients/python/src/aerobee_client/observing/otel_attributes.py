"""Make the attributes of spans and metrics.

Attributes that many have in common are made once and never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from aerobee_client.message import Message, ReceivedMessage
from aerobee_client.observing import otel_names as names

Attributes = dict[str, str | int | Sequence[str]]


@lru_cache(maxsize=1024)
def of_send(topic: str, error_type: str | None = None) -> Attributes:
    """Return the attributes of all sends to a topic, or of those that failed with this error."""
    found: Attributes = {
        names.SYSTEM: names.ROCKETMQ,
        names.OPERATION_NAME: names.SEND,
        names.OPERATION_TYPE: names.SEND,
        names.TOPIC: topic,
    }
    if error_type is not None:
        found[names.ERROR_TYPE] = error_type
    return found


def of_sent(message: Message) -> Attributes:
    """Return the additional span attributes of one send."""
    found: Attributes = {names.BODY_SIZE: len(message.body)}
    if message.tag:
        found[names.TAG] = message.tag
    if message.keys:
        found[names.KEYS] = message.keys
    if message.delay_level:
        found[names.DELAY_LEVEL] = message.delay_level
    if message.deliver_at is not None:
        found[names.DELIVERY_TIMESTAMP] = int(message.deliver_at.timestamp() * 1_000)
    return found


@lru_cache(maxsize=1024)
def of_operation(
    operation: str, kind: str, topic: str, consumer_group: str, error_type: str | None = None
) -> Attributes:
    """Return the attributes of all operations of a group with a topic, or of those that failed."""
    found: Attributes = {
        names.SYSTEM: names.ROCKETMQ,
        names.OPERATION_NAME: operation,
        names.OPERATION_TYPE: kind,
        names.TOPIC: topic,
    }
    if consumer_group:
        found[names.CONSUMER_GROUP] = consumer_group
    if error_type is not None:
        found[names.ERROR_TYPE] = error_type
    return found


def of_messages(messages: Sequence[ReceivedMessage]) -> Attributes:
    """Return the additional span attributes for messages."""
    first = messages[0]
    if len(messages) > 1:
        return {names.BATCH_MESSAGE_COUNT: len(messages)}
    found: Attributes = {
        names.QUEUE_ID: str(first.queue_id),
        names.MESSAGE_ID: first.message_id,
        names.BODY_SIZE: len(first.stored_body),
    }
    if first.tag:
        found[names.TAG] = first.tag
    if first.keys:
        found[names.KEYS] = first.keys
    return found


def error_type(error: BaseException | None) -> str | None:
    """Return the code of an MqError, otherwise the class."""
    if error is None:
        return None
    code = getattr(error, "code", None)
    return getattr(code, "name", None) or type(error).__name__
