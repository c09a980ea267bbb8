"""Validate the fields of requests before the proxy calls a broker. This module does no I/O.

Each function checks one field or message, and some functions return its converted value. If the
field is invalid, the function raises Refused with the code that the public protocol defines for
that field.

Differences from RocketMQ's proxy: a transaction id or recall handle must belong to the topic of its
request. Names that brokers use inside stored messages cannot be user properties. A long poll with
little time left is shortened, but not refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import (
    Code,
    FilterExpression,
    FilterType,
    Message,
    SystemProperties,
)
from aerobee_foreign.google.protobuf.duration_pb2 import Duration
from aerobee_foreign.google.protobuf.timestamp_pb2 import Timestamp

from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.v2.resources import topic_name
from aerobee_proxy.v2.status import Refused
from aerobee_wire import properties, tags
from aerobee_wire.handles import recall_handle, transaction_id
from aerobee_wire.handles.recall_handle import RecallHandle
from aerobee_wire.handles.transaction_id import TransactionId
from aerobee_wire.status import MqError

_MAX_MS = 10**18 - 1  # beyond any real time, and still a number that brokers accept


def milliseconds(value: Duration | Timestamp) -> int:
    """Convert a duration or a timestamp to milliseconds; a timestamp counts from the epoch.

    The result is rounded down and limited to 18 digits.
    """
    found = value.seconds * 1_000 + value.nanos // 1_000_000
    if -_MAX_MS <= found <= _MAX_MS:
        return found
    return _MAX_MS if found > 0 else -_MAX_MS


def delivery_ms(delivery: Timestamp) -> int:
    """Convert a delivery time to milliseconds since the epoch, rounded up."""
    return milliseconds(delivery) + (delivery.nanos % 1_000_000 > 0)


CLIENT_ID_KEY = "x-mq-client-id"
MAX_CLIENT_ID = 512

MAX_CLIENT_PROPERTIES = 32
MAX_CLIENT_PROPERTY_VALUE = 256
MAX_CLIENT_PROPERTIES_BYTES = 4_096
CLIENT_PROPERTY_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", re.ASCII)
RESERVED_CLIENT_PREFIX = "rocketmq."


def client_id(metadata: Mapping[str, str]) -> str:
    name = metadata.get(CLIENT_ID_KEY, "")
    if not name.strip():
        raise Refused(Code.CLIENT_ID_REQUIRED, f"the metadata lacks {CLIENT_ID_KEY}: send it")
    if len(name) > MAX_CLIENT_ID:
        raise Refused(
            Code.CLIENT_ID_REQUIRED,
            f"{CLIENT_ID_KEY} has {len(name)} characters: use at most {MAX_CLIENT_ID}",
        )
    return name


def check_client_properties(pairs: Mapping[str, str]) -> None:
    problem = None
    if len(pairs) > MAX_CLIENT_PROPERTIES:
        problem = f"are {len(pairs)}: send at most {MAX_CLIENT_PROPERTIES}"
    elif (
        sum(len(k.encode()) + len(v.encode()) for k, v in pairs.items())
        > MAX_CLIENT_PROPERTIES_BYTES
    ):
        problem = f"are too long: send at most {MAX_CLIENT_PROPERTIES_BYTES} bytes together"
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


# A long poll ends before the client's deadline, so that a busy proxy still answers in time. The
# reserve is a tenth of the remaining time, within these limits.
MIN_RESERVE_MS, MAX_RESERVE_MS = 500, 2_000


def filter_of(expression: FilterExpression) -> tuple[str, str]:
    """Check a filter. Return its kind ("TAG" or "SQL92") and its expression.

    The syntax of tag expressions is checked here, but only brokers check the syntax of SQL92.
    """
    if expression.type == FilterType.SQL:
        if not expression.expression.strip():
            raise Refused(Code.ILLEGAL_FILTER_EXPRESSION, "the SQL92 filter is empty: write one")
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
    """Return the invisible duration, in milliseconds, with which messages are received.

    With `auto_renew`, return the proxy's default instead of the client's duration.
    """
    if auto_renew:
        return options.default_invisible_time_mills
    low, high = options.min_invisible_time_mills_for_recv, options.max_invisible_time_mills
    return _invisible_ms(duration or Duration(), low, high)


def change_duration_ms(duration: Duration, options: ProxyOptions) -> int:
    """Return a new invisible duration in milliseconds; 0 makes the message visible at once."""
    return _invisible_ms(duration, 0, options.max_invisible_time_mills)


def polling_ms(
    requested: Duration | None,
    remaining_s: float | None,
    request_timeout_ms: int,
    options: ProxyOptions,
) -> int:
    """Return the duration of a long poll in milliseconds.

    It is the duration that the client requests, shortened so that the poll ends before the deadline
    of the call. `remaining_s` is the time until that deadline. Two SDKs send only the deadline, so
    their polls end half a request timeout before it.
    """
    longest = options.grpc_client_consumer_max_long_polling_timeout_millis
    remaining = None if remaining_s is None else int(remaining_s * 1_000)
    if requested is not None:
        wanted = milliseconds(requested)
        if wanted < 0:
            raise Refused(
                Code.ILLEGAL_POLLING_TIME,
                f"the long-polling timeout is {wanted} ms: use 0 or more",
            )
    else:
        wanted = longest if remaining is None else remaining - request_timeout_ms // 2
    if remaining is not None:
        reserve = max(MIN_RESERVE_MS, min(remaining // 10, MAX_RESERVE_MS))
        wanted = min(wanted, remaining - min(reserve, remaining // 2))
    return max(0, min(wanted, longest))


def check_offset(offset: int) -> None:
    if offset < 0:
        raise Refused(Code.ILLEGAL_OFFSET, f"invalid queue offset {offset}: use 0 or more")


def _invisible_ms(duration: Duration, low: int, high: int) -> int:
    asked = milliseconds(duration)
    if low <= asked <= high:
        return asked
    # RocketMQ's proxy uses these words, and users of SDKs compare the text with them.
    problem = f"small. min is {low}" if asked < low else f"large. max is {high}"
    raise Refused(
        Code.ILLEGAL_INVISIBLE_TIME,
        f"the invisibleTime is too {problem} ms, and the request says {asked} ms",
    )


_LITE_TOPIC = re.compile(r"[a-zA-Z0-9_-]+", re.ASCII)


def topic_of(messages: Sequence[Message]) -> str:
    """Return the stored name of the topic that all messages of a request must have."""
    if not messages:
        raise Refused(Code.MESSAGE_CORRUPTED, "the request has no message: send one")
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
        raise Refused(Code.BAD_REQUEST, f"invalid priority {system.priority}: use 0 or more")
    if system.HasField("delivery_timestamp"):
        check_delivery_time(system.delivery_timestamp, options, now_ms)
    if system.HasField("orphaned_transaction_recovery_duration"):
        check_recovery_duration(system.orphaned_transaction_recovery_duration, options)


def check_message_id(system: SystemProperties) -> None:
    found = system.message_id
    if not found or found.isspace():
        raise Refused(Code.ILLEGAL_MESSAGE_ID, "the message has no id: create one in the client")
    if properties.has_control(found):
        raise Refused(Code.ILLEGAL_MESSAGE_ID, "the message id has a control character: remove it")


def check_tag(system: SystemProperties) -> None:
    tag = system.tag
    if tag and (tag.isspace() or "|" in tag or properties.has_control(tag)):
        raise Refused(
            Code.ILLEGAL_MESSAGE_TAG,
            f"invalid tag {tag[:64]!r}: use a tag that is not blank, without | and control "
            "characters",
        )


def check_keys(system: SystemProperties) -> None:
    for key in system.keys:
        if key and (key.isspace() or properties.has_control(key)):
            raise Refused(
                Code.ILLEGAL_MESSAGE_KEY,
                f"invalid key {key[:64]!r}: use a key that is not blank, without control "
                "characters",
            )


def check_message_group(system: SystemProperties, options: ProxyOptions) -> None:
    group = system.message_group
    if not group:
        return
    size, limit = len(group.encode()), options.max_message_group_size
    if group.isspace() or properties.has_control(group):
        raise Refused(
            Code.ILLEGAL_MESSAGE_GROUP,
            f"invalid message group {group[:64]!r}: use one that is not blank, without control "
            "characters",
        )
    if 0 < limit <= size:
        raise Refused(
            Code.ILLEGAL_MESSAGE_GROUP,
            f"the message group {group[:64]!r} has {size} bytes: use fewer than {limit}",
        )


def check_body(body: bytes, options: ProxyOptions) -> None:
    if not body and options.enable_message_body_empty_check:
        raise Refused(Code.MESSAGE_BODY_EMPTY, "the message has no body: send one")
    if 0 < options.max_message_size < len(body):
        raise Refused(
            Code.MESSAGE_BODY_TOO_LARGE,
            f"the body has {len(body)} bytes: send at most {options.max_message_size}",
        )


def check_properties(message: Message, options: ProxyOptions) -> None:
    """Check the number, names and values of the user properties.

    The limit of their size applies to user properties, tag and keys together.
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
    """Check that the delivery time is not too far in the future.

    A time in the past is allowed. Then the message is delivered at once.
    """
    if milliseconds(delivery) - now_ms > options.max_delay_time_mills:
        raise Refused(
            Code.ILLEGAL_DELIVERY_TIME,
            f"the delivery time is {milliseconds(delivery) - now_ms} ms ahead: use at most "
            f"{options.max_delay_time_mills}",
        )


def check_recovery_duration(duration: Duration, options: ProxyOptions) -> None:
    limit = options.max_transaction_recovery_second
    asked_ms = milliseconds(duration)
    if not 0 <= asked_ms <= limit * 1_000:
        raise Refused(
            Code.BAD_REQUEST,
            f"the recovery duration of a half message is {asked_ms} ms: use 0 to {limit} s",
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
    """Decode a transaction id and check that it belongs to this topic."""
    if not text.strip():
        raise Refused(
            Code.INVALID_TRANSACTION_ID,
            "the request has no transaction id: send that of the half message",
        )
    try:
        transaction = transaction_id.decode(text)
    except MqError as error:
        raise Refused(Code.INVALID_TRANSACTION_ID, error.message) from None
    if transaction.producer_group != topic:
        raise Refused(
            Code.INVALID_TRANSACTION_ID,
            f"the transaction is of topic {transaction.producer_group}: end it with that topic",
        )
    return transaction


def recall_handle_of(text: str, topic: str) -> RecallHandle:
    """Decode a recall handle and check that it belongs to this topic."""
    try:
        handle = recall_handle.decode(text)
    except MqError as error:
        raise Refused(Code.BAD_REQUEST, error.message) from None
    if handle.topic != topic:
        raise Refused(
            Code.BAD_REQUEST,
            f"the recall handle is of topic {handle.topic}: recall the message with that topic",
        )
    return handle


def _bytes_of(texts: Iterable[str]) -> int:
    return sum(map(len, map(str.encode, texts)))
