"""The StatusCode table: messages to send, transaction ids."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import (
    Code,
    Message,
    Resource,
    SystemProperties,
)
from aerobee_foreign.google.protobuf.duration_pb2 import Duration
from aerobee_foreign.google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.v2.status import Refused
from aerobee_proxy.v2.validation import check_message, topic_of, transaction_of
from aerobee_wire.handles.transaction_id import TransactionId, encode
from support.proxy.harness import refused
from support.user_properties import REFUSED

OPTIONS = ProxyOptions()
NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
HOUR_MS = 3_600_000
MIB = 1024 * 1024


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
    check_message(sent, OPTIONS, NOW_MS)


def timestamp(epoch_ms: int) -> Timestamp:
    return Timestamp(seconds=epoch_ms // 1000, nanos=epoch_ms % 1000 * 1_000_000)


def test_request_without_messages() -> None:
    """StatusCode table: SendMessage × MESSAGE_CORRUPTED."""
    refused(Code.MESSAGE_CORRUPTED, topic_of, [])


def test_messages_of_different_topics() -> None:
    """StatusCode table: SendMessage × MESSAGE_CORRUPTED."""
    two = [message(), Message(topic=Resource(name="other"))]
    refused(Code.MESSAGE_CORRUPTED, topic_of, two)
    assert topic_of([message(), message()]) == "orders"


# The names that RocketMQ's proxy refuses.
RESERVED = """
TRACE_ON MSG_REGION KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET
MAX_OFFSET BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME UNIQ_KEY
MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET 1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET
DUP_INFO EXTEND_UNIQ_INFO INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME
CLUSTER MSG_TYPE INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS
TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL
__BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID __CRC32#
"""


# StatusCode table: SendMessage × the code.
ILLEGAL: list[tuple[Code, str, list[Any]]] = [
    (Code.ILLEGAL_MESSAGE_ID, "message_id", ["", "  ", "a\x01b"]),
    (Code.ILLEGAL_MESSAGE_TAG, "tag", [" ", "a|b", "a||b", "a\nb", "a\x7f", "a\u0085"]),
    (Code.ILLEGAL_MESSAGE_KEY, "keys", [[" "], ["ok", "a\tb"], ["a\x00"]]),
    (Code.ILLEGAL_MESSAGE_GROUP, "message_group", [" ", "a\nb", "x" * 64, "ü" * 32]),
    (
        Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
        "user_properties",
        [{name: value} for name, value in REFUSED],
    ),
    (
        Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
        "user_properties",
        [{name: "x"} for name in RESERVED.split()],
    ),
    (Code.ILLEGAL_LITE_TOPIC, "lite_topic", ["a b", "a.b", "x" * 65, "ü"]),
    (Code.MESSAGE_BODY_EMPTY, "body", [b""]),
    (Code.BAD_REQUEST, "priority", [-1]),
]


@pytest.mark.parametrize(
    ("code", "field", "value"),
    [(code, field, value) for code, field, values in ILLEGAL for value in values],
)
def test_illegal_field(code: Code, field: str, value: Any) -> None:
    refused(code, check, message(**{field: value}))


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


def test_recovery_duration_of_half_messages() -> None:
    """SendMessage × BAD_REQUEST; 3,600 s are allowed."""
    field = "orphaned_transaction_recovery_duration"
    check(message(**{field: Duration(seconds=3_600)}))
    refused(Code.BAD_REQUEST, check, message(**{field: Duration(seconds=3_601)}))
    refused(Code.BAD_REQUEST, check, message(**{field: Duration(seconds=-1)}))


@pytest.mark.parametrize(
    "system",
    [
        {"tag": "", "keys": [""], "message_group": ""},  # empty is absent
        {"tag": "grüße 🙂", "keys": ["a", "b c"], "message_group": "x" * 63},
        {"lite_topic": "a" * 64},
        {"priority": 0},
        {"priority": 2**31 - 1},
        {"user_properties": {"price": "", "TRACE": "1", "ü": "€"}},
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
    check_message(message(user_properties=pairs, message_group="x" * 99), options, 0)
    check_message(message(body=bytes(5 * MIB)), options, 0)
    check_message(message(body=b""), options, 0)


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


@settings(deadline=None)
@given(
    st.builds(
        Message,
        topic=st.builds(Resource, resource_namespace=texts, name=texts),
        user_properties=st.dictionaries(texts, texts, max_size=3),
        system_properties=systems,
        body=st.binary(max_size=8),
    )
)
def test_any_message_is_accepted_or_refused(sent: Message) -> None:
    with contextlib.suppress(Refused):
        assert topic_of([sent])
    with contextlib.suppress(Refused):
        check(sent)


@pytest.mark.parametrize("text", ["", " ", "t", encode(TransactionId("b", "others", "01AB", 1))])
def test_invalid_transaction_id(text: str) -> None:
    """StatusCode table: EndTransaction × INVALID_TRANSACTION_ID."""
    refused(Code.INVALID_TRANSACTION_ID, transaction_of, text, "orders")


def test_valid_transaction_id() -> None:
    transaction = TransactionId("b", "orders", "01AB", 1)
    assert transaction_of(encode(transaction), "orders") == transaction
