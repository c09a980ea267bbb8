"""The StatusCode table of the public protocol, field by field: what is refused, with which code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
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
from hypothesis import given
from hypothesis import strategies as st

from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.v2 import validation
from aerobee_proxy.v2.errors import Refused
from aerobee_wire import receipt_handle
from aerobee_wire.receipt_handle import ReceiptHandle
from aerobee_wire.transaction_id import TransactionId, encode

OPTIONS = ProxyOptions()
NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
HOUR_MS = 3_600_000
MIB = 1024 * 1024


def refused(code: Code, call: Callable[..., object], *arguments: Any) -> None:
    with pytest.raises(Refused) as caught:
        call(*arguments)
    assert Code.Name(caught.value.code) == Code.Name(code)
    assert caught.value.message and "\n" not in caught.value.message


def message(**system: Any) -> Message:
    user_properties = system.pop("user_properties", {})
    body = system.pop("body", b"x")
    return Message(
        topic=Resource(name="orders"),
        user_properties=user_properties,
        system_properties=SystemProperties(**{"message_id": "01AB", **system}),
        body=body,
    )


def check(sent: Message) -> None:
    validation.check_message(sent, OPTIONS, NOW_MS)


def timestamp(epoch_ms: int) -> Timestamp:
    return Timestamp(seconds=epoch_ms // 1000, nanos=epoch_ms % 1000 * 1_000_000)


def duration(milliseconds: int) -> Duration:
    result = Duration()
    result.FromMilliseconds(milliseconds)
    return result


# ---- every RPC ----


@pytest.mark.parametrize("metadata", [{}, {"x-mq-client-id": ""}, {"x-mq-client-id": "  "}])
def test_client_id_is_required(metadata: dict[str, str]) -> None:
    """StatusCode table: every RPC × CLIENT_ID_REQUIRED."""
    refused(Code.CLIENT_ID_REQUIRED, validation.client_id, metadata)


def test_client_id_is_read_from_the_metadata() -> None:
    assert validation.client_id({"x-mq-client-id": "host@1@0@abc"}) == "host@1@0@abc"


SYSTEM_TOPICS = [
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
    "BenchmarkTest",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRACE_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
    "CHECKPOINT_TOPIC",
    "rmq_sys_anything",
]


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "a.b", "grüße", "a/b", "a\n", "x" * 128, "../etc", "٣", *SYSTEM_TOPICS],
)
def test_illegal_topic(name: str) -> None:
    """StatusCode table: QueryRoute, SendMessage, ReceiveMessage, AckMessage … × ILLEGAL_TOPIC."""
    refused(Code.ILLEGAL_TOPIC, validation.topic_name, Resource(name=name))


@pytest.mark.parametrize("name", ["a", "x" * 127, "a-B_9|%", "%DLQ%billing", "%RETRY%billing"])
def test_legal_topic(name: str) -> None:
    assert validation.topic_name(Resource(name=name)) == name


def test_topic_counts_with_its_namespace() -> None:
    assert validation.topic_name(Resource(resource_namespace="eu", name="orders")) == "eu%orders"
    long = Resource(resource_namespace="n" * 64, name="x" * 64)
    refused(Code.ILLEGAL_TOPIC, validation.topic_name, long)


def test_a_namespace_makes_no_name_of_the_system() -> None:
    topic = Resource(resource_namespace="rmq_sys_REVIVE_LOG_", name="x")
    refused(Code.ILLEGAL_TOPIC, validation.topic_name, topic)
    group = Resource(resource_namespace="CID_RMQ_SYS_", name="TRANS")
    refused(Code.ILLEGAL_CONSUMER_GROUP, validation.group_name, group)


@pytest.mark.parametrize("name", ["", " ", "a b", "a.b", "x" * 121, "CID_RMQ_SYS_x", "a\u0000"])
def test_illegal_consumer_group(name: str) -> None:
    """StatusCode table: Heartbeat, ReceiveMessage, AckMessage … × ILLEGAL_CONSUMER_GROUP."""
    refused(Code.ILLEGAL_CONSUMER_GROUP, validation.group_name, Resource(name=name))


@pytest.mark.parametrize("name", ["g", "x" * 120, "GID_a-b|c%"])
def test_legal_consumer_group(name: str) -> None:
    assert validation.group_name(Resource(name=name)) == name


# ---- SendMessage ----


def test_request_without_messages() -> None:
    """StatusCode table: SendMessage × MESSAGE_CORRUPTED."""
    refused(Code.MESSAGE_CORRUPTED, validation.topic_of, [])


def test_messages_of_different_topics() -> None:
    """StatusCode table: SendMessage × MESSAGE_CORRUPTED."""
    two = [message(), Message(topic=Resource(name="other"))]
    refused(Code.MESSAGE_CORRUPTED, validation.topic_of, two)
    assert validation.topic_of([message(), message()]) == "orders"


@pytest.mark.parametrize("message_id", ["", "  ", "a\x01b"])
def test_illegal_message_id(message_id: str) -> None:
    """StatusCode table: SendMessage × ILLEGAL_MESSAGE_ID."""
    refused(Code.ILLEGAL_MESSAGE_ID, check, message(message_id=message_id))


@pytest.mark.parametrize("tag", [" ", "a|b", "a||b", "a\nb", "a\x7f", "a\u0085"])
def test_illegal_tag(tag: str) -> None:
    """StatusCode table: SendMessage × ILLEGAL_MESSAGE_TAG."""
    refused(Code.ILLEGAL_MESSAGE_TAG, check, message(tag=tag))


@pytest.mark.parametrize("keys", [[" "], ["ok", "a\tb"], ["a\x00"]])
def test_illegal_key(keys: list[str]) -> None:
    """StatusCode table: SendMessage × ILLEGAL_MESSAGE_KEY."""
    refused(Code.ILLEGAL_MESSAGE_KEY, check, message(keys=keys))


@pytest.mark.parametrize("group", [" ", "a\nb", "x" * 64, "ü" * 32])
def test_illegal_message_group(group: str) -> None:
    """StatusCode table: SendMessage × ILLEGAL_MESSAGE_GROUP."""
    refused(Code.ILLEGAL_MESSAGE_GROUP, check, message(message_group=group))


@pytest.mark.parametrize(
    "properties",
    [{"UNIQ_KEY": "x"}, {"KEYS": "x"}, {"__CRC32#": "x"}, {"a\nb": "x"}, {"a": "x\x02"}],
)
def test_illegal_property(properties: dict[str, str]) -> None:
    """StatusCode table: SendMessage × ILLEGAL_MESSAGE_PROPERTY_KEY."""
    refused(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, check, message(user_properties=properties))


# The names that the reference refuses.
RESERVED = """
TRACE_ON MSG_REGION KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET
MAX_OFFSET BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME UNIQ_KEY
MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET 1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET
DUP_INFO EXTEND_UNIQ_INFO INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME
CLUSTER MSG_TYPE INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS
TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL
__BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID __CRC32#
"""


@pytest.mark.parametrize("name", RESERVED.split())
def test_property_of_the_system(name: str) -> None:
    """Validation limits: reserved property keys."""
    refused(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, check, message(user_properties={name: "x"}))


def test_empty_body() -> None:
    """StatusCode table: SendMessage × MESSAGE_BODY_EMPTY."""
    refused(Code.MESSAGE_BODY_EMPTY, check, message(body=b""))


def test_body_size() -> None:
    """StatusCode table: SendMessage × MESSAGE_BODY_TOO_LARGE; 4 MiB are allowed."""
    check(message(body=bytes(4 * MIB)))
    refused(Code.MESSAGE_BODY_TOO_LARGE, check, message(body=bytes(4 * MIB + 1)))


def test_number_of_properties() -> None:
    """StatusCode table: SendMessage × MESSAGE_PROPERTIES_TOO_LARGE; 128 are allowed."""
    pairs = {f"k{n}": "v" for n in range(129)}
    refused(Code.MESSAGE_PROPERTIES_TOO_LARGE, check, message(user_properties=pairs))
    pairs.popitem()
    check(message(user_properties=pairs))


def test_size_of_properties_tag_and_keys() -> None:
    """StatusCode table: SendMessage × MESSAGE_PROPERTIES_TOO_LARGE; 16 KiB are allowed."""
    fits = {"k" * 100: "ü" * 8_000}  # 16,100 bytes; tag and keys have the other 284
    system = {"tag": "t" * 200, "keys": ["a" * 42, "b" * 42]}
    check(message(user_properties=fits, **system))
    over = {**system, "tag": "t" * 201}
    refused(Code.MESSAGE_PROPERTIES_TOO_LARGE, check, message(user_properties=fits, **over))


def test_delivery_time() -> None:
    """StatusCode table: SendMessage × ILLEGAL_DELIVERY_TIME; the past is allowed."""
    check(message(delivery_timestamp=timestamp(NOW_MS + DAY_MS)))
    check(message(delivery_timestamp=timestamp(NOW_MS - 20_000)))
    check(message(delivery_timestamp=Timestamp(seconds=-(2**62))))
    for ahead in (NOW_MS + DAY_MS + 1, NOW_MS + 25 * HOUR_MS):
        refused(Code.ILLEGAL_DELIVERY_TIME, check, message(delivery_timestamp=timestamp(ahead)))
    endless = Timestamp(seconds=2**63 - 1)
    refused(Code.ILLEGAL_DELIVERY_TIME, check, message(delivery_timestamp=endless))


def test_a_priority_is_not_below_zero() -> None:
    check(message(priority=0))
    check(message(priority=2**31 - 1))
    refused(Code.BAD_REQUEST, check, message(priority=-1))


def test_recovery_duration_of_half_messages() -> None:
    """Validation limits: at most 3,600 s, else BAD_REQUEST."""
    field = "orphaned_transaction_recovery_duration"
    check(message(**{field: Duration(seconds=3_600)}))
    refused(Code.BAD_REQUEST, check, message(**{field: Duration(seconds=3_601)}))
    refused(Code.BAD_REQUEST, check, message(**{field: Duration(seconds=-1)}))


@pytest.mark.parametrize("name", ["a b", "a.b", "x" * 65, "ü"])
def test_illegal_lite_topic(name: str) -> None:
    """Validation limits: lite topic × ILLEGAL_LITE_TOPIC."""
    refused(Code.ILLEGAL_LITE_TOPIC, check, message(lite_topic=name))


@pytest.mark.parametrize(
    "system",
    [
        {"tag": "", "keys": [""], "message_group": ""},  # empty is absent
        {"tag": "grüße 🙂", "keys": ["a", "b c"], "message_group": "x" * 63},
        {"lite_topic": "a" * 64},
        {"user_properties": {"price": "", "": "x", "TRACE": "1", "ü": "€"}},
    ],
)
def test_legal_message(system: dict[str, Any]) -> None:
    check(message(**system))


def test_limits_of_zero_are_no_limits() -> None:
    options = ProxyOptions(
        max_message_size=0,
        max_user_property_size=0,
        max_message_group_size=0,
        enable_message_body_empty_check=False,
    )
    pairs = {"k": "x" * 20_000}
    validation.check_message(message(user_properties=pairs, message_group="x" * 99), options, 0)
    validation.check_message(message(body=bytes(5 * MIB)), options, 0)
    validation.check_message(message(body=b""), options, 0)


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ({}, MessageType.NORMAL),
        ({"message_type": MessageType.FIFO}, MessageType.NORMAL),  # the declared type is not heeded
        ({"message_group": "g"}, MessageType.FIFO),
        ({"message_group": ""}, MessageType.NORMAL),
        ({"delivery_timestamp": Timestamp()}, MessageType.DELAY),
        ({"delivery_timestamp": Timestamp(), "message_group": "g"}, MessageType.DELAY),
        ({"message_type": MessageType.TRANSACTION}, MessageType.TRANSACTION),
        ({"lite_topic": "a"}, MessageType.LITE),
        ({"priority": 0}, MessageType.PRIORITY),
    ],
)
def test_type_is_worked_out_from_the_properties(
    system: dict[str, Any], expected: MessageType
) -> None:
    assert validation.message_type(message(**system)) == expected


MIXED = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)


@pytest.mark.parametrize(
    ("actual", "accepted"),
    [
        (MessageType.FIFO, [MessageType.NORMAL]),
        (MessageType.NORMAL, [MessageType.FIFO]),
        (MessageType.DELAY, [MessageType.TRANSACTION]),
        (MessageType.LITE, MIXED),
    ],
)
def test_type_conflict(actual: MessageType, accepted: list[MessageType]) -> None:
    """StatusCode table: SendMessage × MESSAGE_PROPERTY_CONFLICT_WITH_TYPE."""
    conflict = Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    refused(conflict, validation.check_type, actual, accepted, "orders")


@pytest.mark.parametrize("actual", MIXED)
def test_mixed_topics_and_retry_and_dead_letter_topics_take_any_type(actual: MessageType) -> None:
    validation.check_type(actual, MIXED, "orders")
    validation.check_type(actual, [MessageType.NORMAL], "%DLQ%billing")
    validation.check_type(actual, [MessageType.NORMAL], "%RETRY%billing")


# ---- ReceiveMessage, PullMessage ----


@pytest.mark.parametrize(
    "expression",
    [
        FilterExpression(type=FilterType.TAG, expression="||"),
        FilterExpression(type=FilterType.SQL, expression=" "),
        FilterExpression(type=9, expression="*"),  # type: ignore[arg-type]  # unknown on purpose
    ],
)
def test_illegal_filter_expression(expression: FilterExpression) -> None:
    """StatusCode table: ReceiveMessage × ILLEGAL_FILTER_EXPRESSION."""
    refused(Code.ILLEGAL_FILTER_EXPRESSION, validation.filter_of, expression)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (FilterExpression(), ("TAG", "")),
        (FilterExpression(type=FilterType.TAG, expression="a || b"), ("TAG", "a || b")),
        (FilterExpression(expression="a"), ("TAG", "a")),
        (FilterExpression(type=FilterType.SQL, expression="p > 1"), ("SQL92", "p > 1")),
    ],
)
def test_legal_filter_expression(expression: FilterExpression, expected: tuple[str, str]) -> None:
    assert validation.filter_of(expression) == expected


@pytest.mark.parametrize("milliseconds", [0, 9_999, 12 * HOUR_MS + 1, -1])
def test_illegal_invisible_time_of_a_receive(milliseconds: int) -> None:
    """StatusCode table: ReceiveMessage × ILLEGAL_INVISIBLE_TIME; 10 s to 12 h are allowed."""
    asked = duration(milliseconds)
    refused(Code.ILLEGAL_INVISIBLE_TIME, validation.receive_duration_ms, asked, False, OPTIONS)


def test_receive_without_invisible_time_needs_auto_renew() -> None:
    refused(Code.ILLEGAL_INVISIBLE_TIME, validation.receive_duration_ms, None, False, OPTIONS)
    assert validation.receive_duration_ms(None, True, OPTIONS) == 60_000


@pytest.mark.parametrize("milliseconds", [10_000, 12 * HOUR_MS])
def test_legal_invisible_time_of_a_receive(milliseconds: int) -> None:
    asked = duration(milliseconds)
    assert validation.receive_duration_ms(asked, False, OPTIONS) == milliseconds


@pytest.mark.parametrize(
    ("requested_ms", "remaining_s", "expected_ms"),
    [
        (20_000, 23.0, 20_000),  # most SDKs: the deadline is 3 s behind
        (40_000, 43.0, 20_000),  # Rust: the server's longest
        (1_000, 4.0, 1_000),  # a short poll stays short
        (0, 3.0, 0),
        (20_000, 10.0, 9_500),  # done before the deadline
        (20_000, 0.6, 300),
        (20_000, None, 20_000),
        (None, 23.0, 20_000),  # Go, C++: told by the deadline only
        (None, 13.0, 11_500),
        (None, 3.0, 1_500),  # Go with its default: the reference refuses this one
        (None, None, 20_000),
        (None, 1.0, 0),
    ],
)
def test_how_long_a_poll_is_held(
    requested_ms: int | None, remaining_s: float | None, expected_ms: int
) -> None:
    requested = None if requested_ms is None else duration(requested_ms)
    assert validation.polling_ms(requested, remaining_s, 3_000, OPTIONS) == expected_ms


def test_illegal_polling_time() -> None:
    """StatusCode table: ReceiveMessage × ILLEGAL_POLLING_TIME."""
    refused(Code.ILLEGAL_POLLING_TIME, validation.polling_ms, duration(-1), 9.0, 3_000, OPTIONS)


@given(
    st.one_of(st.none(), st.integers(0, 10**9)),
    st.one_of(st.none(), st.floats(0, 10**6)),
    st.integers(0, 10**6),
)
def test_poll_always_ends_before_the_deadline(
    requested_ms: int | None, remaining_s: float | None, timeout_ms: int
) -> None:
    requested = None if requested_ms is None else duration(requested_ms)
    held = validation.polling_ms(requested, remaining_s, timeout_ms, OPTIONS)
    assert 0 <= held <= 20_000
    assert remaining_s is None or held <= remaining_s * 1_000


# ---- AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue ----

HANDLE = ReceiptHandle("broker-a", "orders", "billing", 0, 7, 1, NOW_MS, 10_000, 1)


@pytest.mark.parametrize(
    ("text", "topic", "group"),
    [
        ("", "orders", "billing"),
        ("no handle", "orders", "billing"),
        (receipt_handle.encode(HANDLE), "other", "billing"),
        (receipt_handle.encode(HANDLE), "orders", "other"),
    ],
)
def test_invalid_receipt_handle(text: str, topic: str, group: str) -> None:
    """StatusCode table: AckMessage, ChangeInvisibleDuration … × INVALID_RECEIPT_HANDLE."""
    refused(Code.INVALID_RECEIPT_HANDLE, validation.handle_of, text, topic, group)


def test_valid_receipt_handle() -> None:
    text = receipt_handle.encode(HANDLE)
    assert validation.handle_of(text, "orders", "billing") == HANDLE


@pytest.mark.parametrize("milliseconds", [-1, 12 * HOUR_MS + 1])
def test_illegal_invisible_time_of_a_change(milliseconds: int) -> None:
    """StatusCode table: ChangeInvisibleDuration × ILLEGAL_INVISIBLE_TIME."""
    asked = duration(milliseconds)
    refused(Code.ILLEGAL_INVISIBLE_TIME, validation.change_duration_ms, asked, OPTIONS)


@pytest.mark.parametrize("milliseconds", [0, 1, 12 * HOUR_MS])
def test_legal_invisible_time_of_a_change(milliseconds: int) -> None:
    assert validation.change_duration_ms(duration(milliseconds), OPTIONS) == milliseconds


# ---- the others ----


@pytest.mark.parametrize("text", ["", " ", "t", encode(TransactionId("b", "others", "01AB", 1))])
def test_invalid_transaction_id(text: str) -> None:
    """StatusCode table: EndTransaction × INVALID_TRANSACTION_ID."""
    refused(Code.INVALID_TRANSACTION_ID, validation.transaction_of, text, "orders")


def test_a_transaction_of_the_topic() -> None:
    named = TransactionId("b", "orders", "01AB", 1)
    assert validation.transaction_of(encode(named), "orders") == named


def test_illegal_offset() -> None:
    """StatusCode table: UpdateOffset × ILLEGAL_OFFSET."""
    refused(Code.ILLEGAL_OFFSET, validation.check_offset, -1)
    validation.check_offset(0)


@pytest.mark.parametrize(
    "pairs",
    [
        {f"k{n}": "v" for n in range(33)},
        {"": "v"},
        {"1a": "v"},
        {"a b": "v"},
        {"k" * 65: "v"},
        {"rocketmq.x": "v"},
        {"k": "v" * 257},
        {f"k{n}": "v" * 200 for n in range(32)},
    ],
)
def test_invalid_client_properties(pairs: dict[str, str]) -> None:
    """Protocol inventory: rules of client_properties × INVALID_CLIENT_PROPERTIES."""
    refused(Code.INVALID_CLIENT_PROPERTIES, validation.check_client_properties, pairs)


def test_valid_client_properties() -> None:
    validation.check_client_properties({f"k{n}": "v" * 120 for n in range(32)})
    validation.check_client_properties({"Zone_a.b-9": "", "k" * 64: "v" * 256})


# ---- anything ----

texts = st.text(max_size=20)
systems = st.builds(
    SystemProperties,
    tag=texts,
    keys=st.lists(texts, max_size=3),
    message_id=texts,
    message_group=texts,
    lite_topic=st.one_of(st.none(), texts),
    delivery_timestamp=st.one_of(
        st.none(), st.builds(Timestamp, seconds=st.integers(-(2**63), 2**63 - 1))
    ),
)


@given(
    st.builds(
        Message,
        topic=st.builds(Resource, resource_namespace=texts, name=texts),
        user_properties=st.dictionaries(texts, texts, max_size=3),
        system_properties=systems,
        body=st.binary(max_size=8),
    )
)
def test_any_message_is_taken_or_refused(sent: Message) -> None:
    with contextlib.suppress(Refused):
        assert validation.topic_of([sent])
    with contextlib.suppress(Refused):
        check(sent)
