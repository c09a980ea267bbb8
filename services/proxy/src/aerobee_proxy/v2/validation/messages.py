"""Validate messages to send, and the messages of transaction ids and recall handles."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from apache.rocketmq.v2.definition_pb2 import Code, Message, SystemProperties
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.v2.resources import topic_name
from aerobee_proxy.v2.status import Refused
from aerobee_proxy.v2.validation.units import milliseconds
from aerobee_wire import properties
from aerobee_wire.handles import recall_handle, transaction_id
from aerobee_wire.handles.recall_handle import RecallHandle
from aerobee_wire.handles.transaction_id import TransactionId
from aerobee_wire.status import MqError

_LITE_TOPIC = re.compile(r"[a-zA-Z0-9_-]+", re.ASCII)


def topic_of(messages: Sequence[Message]) -> str:
    """Return the stored name of the topic of all messages."""
    if not messages:
        raise Refused(Code.MESSAGE_CORRUPTED, "the request holds no message")
    first = messages[0].topic
    if len(messages) > 1 and any(message.topic != first for message in messages):
        raise Refused(Code.MESSAGE_CORRUPTED, "the messages have different topics: send them apart")
    return topic_name(first)


def check_message(message: Message, options: ProxyOptions, now_ms: int) -> None:
    system = message.system_properties
    check_message_id(system)
    check_tag(system)
    check_keys(system)
    check_message_group(system, options)
    check_body(message.body, options)
    check_properties(message, options)
    if system.lite_topic:
        check_lite_topic(system.lite_topic, options)
    if system.priority < 0:
        raise Refused(Code.BAD_REQUEST, f"the priority is {system.priority}: the lowest is 0")
    if system.HasField("delivery_timestamp"):
        check_delivery_time(system.delivery_timestamp, options, now_ms)
    if system.HasField("orphaned_transaction_recovery_duration"):
        check_recovery_duration(system.orphaned_transaction_recovery_duration, options)


def check_message_id(system: SystemProperties) -> None:
    found = system.message_id
    if not found or found.isspace():
        raise Refused(Code.ILLEGAL_MESSAGE_ID, "the message has no id: the client makes one")
    if properties.has_control(found):
        raise Refused(Code.ILLEGAL_MESSAGE_ID, "the message id holds a control character")


def check_tag(system: SystemProperties) -> None:
    tag = system.tag
    if tag and (tag.isspace() or "|" in tag or properties.has_control(tag)):
        raise Refused(
            Code.ILLEGAL_MESSAGE_TAG,
            f"the tag {tag[:64]!r} is illegal: no blank tag, no | and no control characters",
        )


def check_keys(system: SystemProperties) -> None:
    for key in system.keys:
        if key and (key.isspace() or properties.has_control(key)):
            raise Refused(
                Code.ILLEGAL_MESSAGE_KEY,
                f"the key {key[:64]!r} is illegal: no blank keys and no control characters",
            )


def check_message_group(system: SystemProperties, options: ProxyOptions) -> None:
    group = system.message_group
    if not group:
        return
    size, limit = len(group.encode()), options.max_message_group_size
    if group.isspace() or properties.has_control(group):
        raise Refused(
            Code.ILLEGAL_MESSAGE_GROUP,
            f"the message group {group[:64]!r} is illegal: it is blank or has control characters",
        )
    if 0 < limit <= size:
        raise Refused(
            Code.ILLEGAL_MESSAGE_GROUP,
            f"the message group {group[:64]!r} has {size} bytes: it must be shorter than {limit}",
        )


def check_body(body: bytes, options: ProxyOptions) -> None:
    if not body and options.enable_message_body_empty_check:
        raise Refused(Code.MESSAGE_BODY_EMPTY, "the message has an empty body")
    if 0 < options.max_message_size < len(body):
        raise Refused(
            Code.MESSAGE_BODY_TOO_LARGE,
            f"the body has {len(body)} bytes: send at most {options.max_message_size}",
        )


def check_properties(message: Message, options: ProxyOptions) -> None:
    """Check the user properties: their number, names and values.

    Their size is checked together with tag and keys.
    """
    pairs = message.user_properties
    if len(pairs) > options.user_property_max_num:
        raise Refused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the message has {len(pairs)} properties: use at most {options.user_property_max_num}",
        )
    system = message.system_properties
    size = len(system.tag.encode())
    if system.keys:
        size += _bytes_of(system.keys)
    for name, value in pairs.items() if pairs else ():
        try:
            properties.check_user_property(name, value)
        except MqError as error:
            raise Refused(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, error.message) from None
        size += _bytes_of((name, value))
    if 0 < options.max_user_property_size < size:
        raise Refused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"properties, tag and keys have {size} bytes: use at most "
            f"{options.max_user_property_size}",
        )


def check_delivery_time(delivery: Timestamp, options: ProxyOptions, now_ms: int) -> None:
    """Check that the delivery time is not too far ahead.

    A time in the past is allowed: the message is delivered at once.
    """
    if milliseconds(delivery) - now_ms > options.max_delay_time_mills:
        raise Refused(
            Code.ILLEGAL_DELIVERY_TIME,
            f"the delivery time is more than {options.max_delay_time_mills} ms ahead",
        )


def check_recovery_duration(duration: Duration, options: ProxyOptions) -> None:
    limit = options.max_transaction_recovery_second
    if not 0 <= milliseconds(duration) <= limit * 1_000:
        raise Refused(
            Code.BAD_REQUEST, f"the recovery duration of a half message is 0 to {limit} s"
        )


def check_lite_topic(name: str, options: ProxyOptions) -> None:
    size = len(name.encode())
    if not _LITE_TOPIC.fullmatch(name) or size > options.max_lite_topic_size:
        raise Refused(
            Code.ILLEGAL_LITE_TOPIC,
            f"invalid lite topic {name[:64]!r}: write 1 to {options.max_lite_topic_size} letters, "
            "digits, _ or -",
        )


def transaction_of(text: str, topic: str) -> TransactionId:
    """Decode a transaction id, which must belong to this topic."""
    if not text.strip():
        raise Refused(Code.INVALID_TRANSACTION_ID, "the request has no transaction id")
    try:
        transaction = transaction_id.decode(text)
    except MqError as error:
        raise Refused(Code.INVALID_TRANSACTION_ID, error.message) from None
    if transaction.producer_group != topic:
        raise Refused(
            Code.INVALID_TRANSACTION_ID,
            f"the transaction is of topic {transaction.producer_group}",
        )
    return transaction


def recall_handle_of(text: str, topic: str) -> RecallHandle:
    """Decode a recall handle, which must belong to this topic."""
    try:
        handle = recall_handle.decode(text)
    except MqError as error:
        raise Refused(Code.BAD_REQUEST, error.message) from None
    if handle.topic != topic:
        raise Refused(Code.BAD_REQUEST, f"the recall handle is of topic {handle.topic}")
    return handle


def _bytes_of(texts: Iterable[str]) -> int:
    return sum(map(len, map(str.encode, texts)))
