"""Make the attributes of spans and metrics, by OpenTelemetry's semantic conventions.

The conventions are not stable, so only this module imports them. Attributes that many spans share
are made once and never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from aerobee_client.message import Message, ReceivedMessage

try:
    from opentelemetry.semconv._incubating.attributes import messaging_attributes as messaging
    from opentelemetry.semconv._incubating.metrics import messaging_metrics as metrics
    from opentelemetry.semconv.attributes import error_attributes
except ImportError as error:
    raise ImportError(
        f"OpenTelemetry is not installed ({error}): pip install 'aerobee-client[otel]'"
    ) from None

# Attributes.
SYSTEM = messaging.MESSAGING_SYSTEM
ROCKETMQ = messaging.MessagingSystemValues.ROCKETMQ.value
OPERATION_NAME = messaging.MESSAGING_OPERATION_NAME
OPERATION_TYPE = messaging.MESSAGING_OPERATION_TYPE
TOPIC = messaging.MESSAGING_DESTINATION_NAME
QUEUE_ID = messaging.MESSAGING_DESTINATION_PARTITION_ID
CONSUMER_GROUP = messaging.MESSAGING_CONSUMER_GROUP_NAME
BATCH_MESSAGE_COUNT = messaging.MESSAGING_BATCH_MESSAGE_COUNT
MESSAGE_ID = messaging.MESSAGING_MESSAGE_ID
BODY_SIZE = messaging.MESSAGING_MESSAGE_BODY_SIZE
TAG = messaging.MESSAGING_ROCKETMQ_MESSAGE_TAG
KEYS = messaging.MESSAGING_ROCKETMQ_MESSAGE_KEYS
DELAY_LEVEL = messaging.MESSAGING_ROCKETMQ_MESSAGE_DELAY_TIME_LEVEL
DELIVERY_TIMESTAMP = messaging.MESSAGING_ROCKETMQ_MESSAGE_DELIVERY_TIMESTAMP
ERROR_TYPE = error_attributes.ERROR_TYPE

# Values of OPERATION_TYPE.
SEND = messaging.MessagingOperationTypeValues.SEND.value
RECEIVE = messaging.MessagingOperationTypeValues.RECEIVE.value
PROCESS = messaging.MessagingOperationTypeValues.PROCESS.value
SETTLE = messaging.MessagingOperationTypeValues.SETTLE.value

# The conventions have no name for this operation. An Interceptor gets this name.
SEND_BACK = "send_back"

# Metrics.
SENT_MESSAGES = metrics.MESSAGING_CLIENT_SENT_MESSAGES
CONSUMED_MESSAGES = metrics.MESSAGING_CLIENT_CONSUMED_MESSAGES
OPERATION_DURATION = metrics.MESSAGING_CLIENT_OPERATION_DURATION
PROCESS_DURATION = metrics.MESSAGING_PROCESS_DURATION


Attributes = dict[str, str | int | Sequence[str]]


@lru_cache(maxsize=1024)
def of_send(topic: str, error_type: str | None = None) -> Attributes:
    """Return the attributes of sends to a topic, optionally of the sends that failed."""
    found: Attributes = {
        SYSTEM: ROCKETMQ,
        OPERATION_NAME: SEND,
        OPERATION_TYPE: SEND,
        TOPIC: topic,
    }
    if error_type is not None:
        found[ERROR_TYPE] = error_type
    return found


def of_sent(message: Message) -> Attributes:
    """Return the additional span attributes of one send."""
    found: Attributes = {BODY_SIZE: len(message.body)}
    if message.tag:
        found[TAG] = message.tag
    if message.keys:
        found[KEYS] = message.keys
    if message.delay_level:
        found[DELAY_LEVEL] = message.delay_level
    if message.deliver_at is not None:
        found[DELIVERY_TIMESTAMP] = int(message.deliver_at.timestamp() * 1_000)
    return found


@lru_cache(maxsize=1024)
def of_operation(
    operation: str, kind: str, topic: str, consumer_group: str, error_type: str | None = None
) -> Attributes:
    """Return the attributes of a group's operations with a topic.

    With `error_type`, return the attributes of the operations that failed with this error.
    """
    found: Attributes = {
        SYSTEM: ROCKETMQ,
        OPERATION_NAME: operation,
        OPERATION_TYPE: kind,
        TOPIC: topic,
    }
    if consumer_group:
        found[CONSUMER_GROUP] = consumer_group
    if error_type is not None:
        found[ERROR_TYPE] = error_type
    return found


def of_messages(messages: Sequence[ReceivedMessage]) -> Attributes:
    """Return the additional span attributes of an operation on `messages`."""
    first = messages[0]
    if len(messages) > 1:
        return {BATCH_MESSAGE_COUNT: len(messages)}
    found: Attributes = {
        QUEUE_ID: str(first.queue_id),
        MESSAGE_ID: first.message_id,
        BODY_SIZE: len(first.stored_body),
    }
    if first.tag:
        found[TAG] = first.tag
    if first.keys:
        found[KEYS] = first.keys
    return found


def error_type(error: BaseException | None) -> str | None:
    """Return the name of an MqError's code, or the class name of another exception."""
    if error is None:
        return None
    code = getattr(error, "code", None)
    return getattr(code, "name", None) or type(error).__name__
