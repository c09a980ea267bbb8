"""What a request must look like, rule by rule, before a broker hears of it. Pure.

Each function returns what the rest of the proxy needs from the field, or raises Refused with the
code that the StatusCode table of the public protocol has for that RPC and field.

Stricter than RocketMQ's proxy: a receipt handle must be of the topic and the group of its request;
names that brokers use inside stored messages cannot be user properties.
More lenient: a long poll with little time left is shortened instead of refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

from apache.rocketmq.v2.definition_pb2 import (
    Code,
    FilterExpression,
    FilterType,
    Message,
    MessageType,
    Resource,
    SystemProperties,
)
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.v2.errors import Refused
from aerobee_proxy.v2.resources import stored_name
from aerobee_wire import properties, recall_handle, receipt_handle, tags, topics, transaction_id
from aerobee_wire.recall_handle import RecallHandle
from aerobee_wire.receipt_handle import ReceiptHandle
from aerobee_wire.status import MqError
from aerobee_wire.transaction_id import TransactionId

CLIENT_ID_KEY = "x-mq-client-id"
MAX_CLIENT_ID = 512

# Names that users may not give to properties of their own, beyond those of the classic protocol.
RESERVED_PROPERTIES = properties.RESERVED | {
    "MAX_RECONSUME_TIME",
    "__LITE_TOPIC",
    "_SYS_MSG_PRIORITY_",
}
FURTHER_SYSTEM_TOPICS = frozenset({"CHECKPOINT_TOPIC"})

MAX_CLIENT_PROPERTIES = 32
MAX_CLIENT_PROPERTY_VALUE = 256
MAX_CLIENT_PROPERTIES_BYTES = 4_096
CLIENT_PROPERTY_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", re.ASCII)
RESERVED_CLIENT_PREFIX = "rocketmq."

# What is kept of a deadline to answer in: a poll that ends with it would look like a timeout.
RESERVED_OF_DEADLINE_MS = 500

_MOST_MS = 10**18 - 1  # more is no time that anybody means, and a number that no broker takes
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LITE_TOPIC = re.compile(r"[a-zA-Z0-9_-]+", re.ASCII)


# ---- who ----


def client_id(metadata: Mapping[str, str]) -> str:
    found = metadata.get(CLIENT_ID_KEY, "")
    if not found.strip():
        raise Refused(Code.CLIENT_ID_REQUIRED, f"the metadata lacks {CLIENT_ID_KEY}")
    if len(found) > MAX_CLIENT_ID:
        raise Refused(
            Code.CLIENT_ID_REQUIRED,
            f"{CLIENT_ID_KEY} has {len(found)} characters: use at most {MAX_CLIENT_ID}",
        )
    return found


def check_client_properties(pairs: Mapping[str, str]) -> None:
    problem = None
    if len(pairs) > MAX_CLIENT_PROPERTIES:
        problem = f"are {len(pairs)}: send at most {MAX_CLIENT_PROPERTIES}"
    elif (
        sum(len(k.encode()) + len(v.encode()) for k, v in pairs.items())
        > MAX_CLIENT_PROPERTIES_BYTES
    ):
        problem = f"have more than {MAX_CLIENT_PROPERTIES_BYTES} bytes together"
    for key, value in pairs.items():
        if not CLIENT_PROPERTY_KEY.fullmatch(key):
            problem = (
                f"have the key {key[:64]!r}: begin with a letter, at most 64 of A-Z a-z 0-9 _ . -"
            )
        elif key.startswith(RESERVED_CLIENT_PREFIX):
            problem = f"have the key {key!r}: {RESERVED_CLIENT_PREFIX} is reserved"
        elif len(value) > MAX_CLIENT_PROPERTY_VALUE:
            problem = f"are too long under {key!r}: at most {MAX_CLIENT_PROPERTY_VALUE} characters"
    if problem:
        raise Refused(Code.INVALID_CLIENT_PROPERTIES, f"the client properties {problem}")


# ---- resources ----


def topic_name(topic: Resource) -> str:
    """The name under which the topic is stored."""
    return _topic_name(topic.name, topic.resource_namespace)


@lru_cache(maxsize=1_024)  # asked with each call
def _topic_name(name: str, namespace: str) -> str:
    stored = stored_name(Resource(name=name, resource_namespace=namespace))
    try:
        topics.check_topic(stored)
    except MqError as error:
        raise Refused(Code.ILLEGAL_TOPIC, error.message) from None
    if len(stored) > topics.MAX_TOPIC_CHARACTERS:
        raise Refused(
            Code.ILLEGAL_TOPIC,
            f"topic {stored[:32]}… has over {topics.MAX_TOPIC_CHARACTERS} characters: shorten it",
        )
    if topics.is_system(name) or topics.is_system(stored) or name in FURTHER_SYSTEM_TOPICS:
        raise Refused(Code.ILLEGAL_TOPIC, f"{name} belongs to the system: use another topic")
    return stored


def group_name(group: Resource) -> str:
    """The name under which the consumer group is stored."""
    return _group_name(group.name, group.resource_namespace)


@lru_cache(maxsize=1_024)
def _group_name(name: str, namespace: str) -> str:
    stored = stored_name(Resource(name=name, resource_namespace=namespace))
    try:
        topics.check_group(stored)
    except MqError as error:
        raise Refused(Code.ILLEGAL_CONSUMER_GROUP, error.message) from None
    if topics.is_system_group(name) or topics.is_system_group(stored):
        raise Refused(
            Code.ILLEGAL_CONSUMER_GROUP, f"{name} belongs to the system: use another group"
        )
    return stored


def check_lite_topic(name: str, options: ProxyOptions) -> None:
    size = len(name.encode())
    if not _LITE_TOPIC.fullmatch(name) or size > options.max_lite_topic_size:
        raise Refused(
            Code.ILLEGAL_LITE_TOPIC,
            f"{name[:64]!r} is no lite topic: it has 1 to {options.max_lite_topic_size} letters, "
            "digits, _ or -",
        )


# ---- messages to send ----


# Each name of an enum is looked up in Python: once here, not once a message.
_NORMAL, _FIFO, _DELAY = MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY
_TRANSACTION, _PRIORITY, _LITE = MessageType.TRANSACTION, MessageType.PRIORITY, MessageType.LITE


def message_type(message: Message) -> MessageType:
    """What the properties make of it. Of the declared type only TRANSACTION counts."""
    system = message.system_properties
    if system.message_type == _TRANSACTION:
        return _TRANSACTION
    if system.HasField("delivery_timestamp"):
        return _DELAY
    if system.message_group:
        return _FIFO
    if system.lite_topic:
        return _LITE
    return _PRIORITY if system.HasField("priority") else _NORMAL


def topic_of(messages: Sequence[Message]) -> str:
    """The stored name of the one topic that all messages are for."""
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
    if not system.message_id.strip():
        raise Refused(Code.ILLEGAL_MESSAGE_ID, "the message has no id: the client makes one")
    if _CONTROL.search(system.message_id):
        raise Refused(Code.ILLEGAL_MESSAGE_ID, "the message id holds a control character")


def check_tag(system: SystemProperties) -> None:
    tag = system.tag
    if tag and (not tag.strip() or "|" in tag or _CONTROL.search(tag)):
        raise Refused(
            Code.ILLEGAL_MESSAGE_TAG,
            f"the tag {tag[:64]!r} is illegal: no blank tag, no | and no control characters",
        )


def check_keys(system: SystemProperties) -> None:
    for key in system.keys:
        if key and (not key.strip() or _CONTROL.search(key)):
            raise Refused(
                Code.ILLEGAL_MESSAGE_KEY,
                f"the key {key[:64]!r} is illegal: no blank keys and no control characters",
            )


def check_message_group(system: SystemProperties, options: ProxyOptions) -> None:
    group = system.message_group
    if not group:
        return
    size, limit = len(group.encode()), options.max_message_group_size
    if not group.strip() or _CONTROL.search(group) or 0 < limit <= size:
        raise Refused(
            Code.ILLEGAL_MESSAGE_GROUP,
            f"the message group {group[:64]!r} is illegal: less than {limit} bytes, not blank, no "
            "control characters",
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
    """User properties: their number, their names and values, and their size with tag and keys."""
    pairs = message.user_properties
    if len(pairs) > options.user_property_max_num:
        raise Refused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the message has {len(pairs)} properties: use at most {options.user_property_max_num}",
        )
    size = _bytes_of((message.system_properties.tag, *message.system_properties.keys))
    for name, value in pairs.items():
        if name in RESERVED_PROPERTIES:
            raise Refused(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"the property name {name} belongs to the system"
            )
        if _CONTROL.search(name) or _CONTROL.search(value):
            raise Refused(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"the property {name[:64]!r} holds a control character",
            )
        size += _bytes_of((name, value))
    if 0 < options.max_user_property_size < size:
        raise Refused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"properties, tag and keys have {size} bytes: use at most "
            f"{options.max_user_property_size}",
        )


def check_delivery_time(delivery: Timestamp, options: ProxyOptions, now_ms: int) -> None:
    """A time in the past means at once."""
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


def check_type(actual: MessageType, accepted: Collection[MessageType], topic: str) -> None:
    """Whether a topic takes this type. Retry and dead-letter topics take any."""
    if actual in accepted or topics.group_of(topic) is not None:
        return
    names = " or ".join(MessageType.Name(accepted_type) for accepted_type in accepted)
    raise Refused(
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        f"the message is of type {MessageType.Name(actual)}, topic {topic} takes {names}",
    )


# ---- receiving and settling ----


def filter_of(expression: FilterExpression) -> tuple[str, str]:
    """Type ("TAG" or "SQL92") and text. Brokers compile SQL92; a tag expression is parsed here."""
    if expression.type == FilterType.SQL:
        if not expression.expression.strip():
            raise Refused(Code.ILLEGAL_FILTER_EXPRESSION, "the SQL92 filter is empty")
        return "SQL92", expression.expression
    if expression.type not in (FilterType.TAG, FilterType.FILTER_TYPE_UNSPECIFIED):
        raise Refused(
            Code.ILLEGAL_FILTER_EXPRESSION, "the filter is of no known type: use TAG or SQL"
        )
    try:
        tags.parse_expression(expression.expression)
    except MqError as error:
        raise Refused(Code.ILLEGAL_FILTER_EXPRESSION, error.message) from None
    return "TAG", expression.expression


def receive_duration_ms(duration: Duration | None, auto_renew: bool, options: ProxyOptions) -> int:
    """The invisible duration of messages to receive. With auto_renew the server's default."""
    if auto_renew:
        return options.default_invisible_time_mills
    low, high = options.min_invisible_time_mills_for_recv, options.max_invisible_time_mills
    return _invisible_ms(duration or Duration(), low, high)


def change_duration_ms(duration: Duration, options: ProxyOptions) -> int:
    """A new invisible duration; 0 makes the message visible at once."""
    return _invisible_ms(duration, 0, options.max_invisible_time_mills)


def polling_ms(
    requested: Duration | None,
    remaining_s: float | None,
    request_timeout_ms: int,
    options: ProxyOptions,
) -> int:
    """How long to hold a long poll: what the client asks for, and done before its deadline.

    Two SDKs ask only by the deadline that they set: half a request timeout before it, then.
    """
    longest = options.grpc_client_consumer_max_long_polling_timeout_millis
    remaining = None if remaining_s is None else int(remaining_s * 1_000)
    if requested is not None:
        wanted = milliseconds(requested)
        if wanted < 0:
            raise Refused(Code.ILLEGAL_POLLING_TIME, "the long-polling timeout is below zero")
    else:
        wanted = longest if remaining is None else remaining - request_timeout_ms // 2
    if remaining is not None:
        wanted = min(wanted, remaining - min(RESERVED_OF_DEADLINE_MS, remaining // 2))
    return max(0, min(wanted, longest))


def handle_of(text: str, topic: str, consumer_group: str) -> ReceiptHandle:
    """The lease that a receipt handle names, which must be of this topic and group."""
    try:
        handle = receipt_handle.decode(text)
    except MqError as error:
        raise Refused(Code.INVALID_RECEIPT_HANDLE, error.message) from None
    check_handle(handle, topic, consumer_group)
    return handle


def check_handle(handle: ReceiptHandle, topic: str, consumer_group: str) -> None:
    if (handle.topic, handle.consumer_group) != (topic, consumer_group):
        raise Refused(
            Code.INVALID_RECEIPT_HANDLE,
            f"the receipt handle is of topic {handle.topic} and group {handle.consumer_group}",
        )


def transaction_of(text: str, topic: str) -> TransactionId:
    """The transaction that a transaction id names, which must be of this topic."""
    if not text.strip():
        raise Refused(Code.INVALID_TRANSACTION_ID, "the request has no transaction id")
    try:
        named = transaction_id.decode(text)
    except MqError as error:
        raise Refused(Code.INVALID_TRANSACTION_ID, error.message) from None
    if named.producer_group != topic:
        raise Refused(
            Code.INVALID_TRANSACTION_ID, f"the transaction is of topic {named.producer_group}"
        )
    return named


def recall_handle_of(text: str, topic: str) -> RecallHandle:
    """What a recall handle names, which must be a message of this topic."""
    try:
        handle = recall_handle.decode(text)
    except MqError as error:
        raise Refused(Code.BAD_REQUEST, error.message) from None
    if handle.topic != topic:
        raise Refused(Code.BAD_REQUEST, f"the recall handle is of topic {handle.topic}")
    return handle


def check_offset(offset: int) -> None:
    if offset < 0:
        raise Refused(Code.ILLEGAL_OFFSET, f"{offset} is no queue offset: they start at 0")


# ---- units ----


def milliseconds(value: Duration | Timestamp) -> int:
    """Of a duration, or since the epoch. Rounded down; of at most 18 digits."""
    found = int(value.seconds) * 1_000 + int(value.nanos) // 1_000_000
    return max(-_MOST_MS, min(found, _MOST_MS))


def delivery_ms(delivery: Timestamp) -> int:
    """The first whole millisecond since the epoch at which the message is not early."""
    return milliseconds(delivery) + (delivery.nanos % 1_000_000 > 0)


def _invisible_ms(duration: Duration, low: int, high: int) -> int:
    asked = milliseconds(duration)
    if not low <= asked <= high:
        raise Refused(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"the invisible duration is {asked} ms: it must be {low} to {high} ms",
        )
    return asked


def _bytes_of(texts: Iterable[str]) -> int:
    return sum(map(len, map(str.encode, texts)))
