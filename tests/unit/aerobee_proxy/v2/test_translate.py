"""Messages of the public protocol into those of brokers, and stored records back."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from typing import Any

import pytest
from aerobee.broker.v1.message_pb2 import Message as BrokerMessage
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import (
    DigestType,
    Encoding,
    Message,
    MessageType,
    Resource,
    SystemProperties,
)
from aerobee_foreign.google.protobuf.duration_pb2 import Duration
from aerobee_foreign.google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from aerobee_proxy.v2 import translate
from aerobee_proxy.v2.translate import MessageEncoder, from_record, md5_of, message_type, to_broker
from aerobee_wire import message_id, properties, record
from aerobee_wire.compression import SYS_FLAGS, compress
from aerobee_wire.record import COMPRESSED, Record
from support import records

PEER = "10.1.2.3:50000"
BORN_MS, STORED_MS = 1_700_000_000_123, 1_700_000_000_456
LAST_TIME = "9999-12-31T23:59:59.999Z"
MESSAGE_ID = "01" + "A" * 32


def sent(body: bytes = b"hello", user: dict[str, str] | None = None, **system: Any) -> Message:
    fields = {
        "message_id": MESSAGE_ID,
        "born_timestamp": Timestamp(seconds=BORN_MS // 1000, nanos=123_000_000),
        "born_host": "laptop",
        "body_encoding": Encoding.IDENTITY,
        **system,
    }
    return Message(
        topic=Resource(resource_namespace="eu", name="orders"),
        user_properties=user or {},
        system_properties=SystemProperties(**fields),
        body=body,
    )


def broker_message(message: Message, peer: str = PEER, topic: str = "eu%orders") -> BrokerMessage:
    return to_broker(message, message_type(message), topic, 3, peer)


def stored(message: Message, topic: str = "eu%orders", **fields: Any) -> Record:
    """The record that a broker stores."""
    ours = broker_message(message, topic=topic)
    defaults: dict[str, Any] = {
        "topic": topic,
        "queue_id": 3,
        "queue_offset": 7,
        "physical_offset": 4_096,
        "body": ours.body,
        "properties": ours.encoded_properties,
        "flag": 0,
        "sys_flag": ours.sys_flag,
        "born_timestamp_ms": ours.born_timestamp_ms,
        "born_host": message_id.pack_host(ours.born_host),
        "store_timestamp_ms": STORED_MS,
        "store_host": message_id.pack_host("10.0.0.1:10911"),
    }
    return record.decode(records.encode(**{**defaults, **fields}))


def delivered(source: Record, *given: Any) -> Message:
    message = Message()
    MessageEncoder(message, namespace="eu", max_body_size=4_194_304).encode(source, *given)
    return message


# ---- to the broker ----


def test_system_properties_are_stored() -> None:
    message = sent(
        tag="paid",
        keys=["k1", "", "k2"],
        message_group="g",
        trace_context="00-ab",
        delivery_timestamp=Timestamp(seconds=1_800_000_000),
        user={"price": "10"},
    )
    ours = broker_message(message)
    assert properties.decode(ours.encoded_properties) == {
        "price": "10",
        "UNIQ_KEY": MESSAGE_ID,
        "TAGS": "paid",
        "KEYS": "k1 k2",
        "__SHARDINGKEY": "g",
        "TRACE_CONTEXT": "00-ab",
        "TIMER_DELIVER_MS": "1800000000000",
        "__BORNHOST": "laptop",
    }
    assert (ours.topic, ours.queue_id, ours.body) == ("eu%orders", 3, b"hello")
    assert (ours.born_timestamp_ms, ours.born_host) == (BORN_MS, PEER)
    assert ours.sys_flag == 0


def test_half_message_properties() -> None:
    message = sent(
        message_type=MessageType.TRANSACTION,
        orphaned_transaction_recovery_duration=Duration(seconds=30),
    )
    ours = broker_message(message)
    stored_properties = properties.decode(ours.encoded_properties)
    assert stored_properties["TRAN_MSG"] == "true"
    assert stored_properties["PGROUP"] == "eu%orders"
    assert stored_properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "30"


def test_delivery_attempt_and_queue_of_the_client_are_ignored() -> None:
    """The C++ SDK puts part of a timestamp into the delivery attempt."""
    ours = broker_message(sent(delivery_attempt=999, queue_id=77))
    assert ours.queue_id == 3
    assert ours.reconsume_times == 0
    assert b"RECONSUME_TIME" not in ours.encoded_properties


def test_compressed_body_stays_compressed() -> None:
    packed = gzip.compress(b"hello")
    ours = broker_message(sent(body=packed, body_encoding=Encoding.GZIP))
    assert ours.body == packed
    assert ours.sys_flag == COMPRESSED


def test_bad_peer_and_bad_born_time_are_left_out() -> None:
    ours = broker_message(sent(born_timestamp=Timestamp(seconds=-5)), "unix")
    assert ours.born_host == "" and ours.born_timestamp_ms == 0


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ({}, "NORMAL"),
        ({"message_type": MessageType.FIFO}, "NORMAL"),  # the declared type is ignored
        ({"message_group": "g"}, "FIFO"),
        ({"message_group": ""}, "NORMAL"),
        ({"delivery_timestamp": Timestamp()}, "DELAY"),
        ({"delivery_timestamp": Timestamp(), "message_group": "g"}, "DELAY"),
        ({"message_type": MessageType.TRANSACTION}, "TRANSACTION"),
        ({"lite_topic": "a"}, "LITE"),
        ({"priority": 0}, "PRIORITY"),
    ],
)
def test_message_type_follows_from_the_properties(system: dict[str, Any], expected: str) -> None:
    assert message_type(sent(**system)) == expected


# ---- to the client ----


def test_message_has_every_field_that_sdks_dereference() -> None:
    system = delivered(stored(sent()), "handle").system_properties
    assert system.body_encoding == Encoding.IDENTITY
    assert system.body_digest.type == DigestType.MD5
    assert system.body_digest.checksum == hashlib.md5(b"hello").hexdigest().upper()
    assert system.born_timestamp.ToMilliseconds() == BORN_MS
    assert system.message_id == MESSAGE_ID
    assert system.receipt_handle == "handle"
    assert system.delivery_attempt == 1
    assert system.message_type == MessageType.NORMAL
    assert (system.queue_id, system.queue_offset) == (3, 7)
    assert system.store_timestamp.ToMilliseconds() == STORED_MS
    assert system.store_host == "10.0.0.1:10911"


def test_round_trip_of_a_message() -> None:
    message = sent(
        body="grüße 🙂".encode(),
        user={"price": "10", "ü": "€"},
        tag="paid",
        keys=["k1", "k2"],
        message_group="g",
        trace_context="00-ab",
        delivery_timestamp=Timestamp(seconds=1_800_000_000),
        priority=3,
    )
    back = delivered(stored(message))
    assert back.topic == message.topic
    assert back.body == message.body
    assert back.user_properties == message.user_properties
    ours, theirs = back.system_properties, message.system_properties
    for name in ("tag", "keys", "message_id", "message_group", "trace_context", "priority"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.born_host == "laptop"
    assert ours.delivery_timestamp == theirs.delivery_timestamp


def test_unset_fields_are_absent() -> None:
    system = delivered(stored(sent())).system_properties
    for name in (
        "tag",
        "message_group",
        "trace_context",
        "delivery_timestamp",
        "receipt_handle",
        "invisible_duration",
        "dead_letter_queue",
        "lite_topic",
        "priority",
    ):
        assert not system.HasField(name), name


def test_delivery_attempt_is_reconsume_times_plus_one() -> None:
    source = stored(sent(), reconsume_times=2)
    assert delivered(source).system_properties.delivery_attempt == 3
    assert delivered(source, "", 5).system_properties.delivery_attempt == 5


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ({}, MessageType.NORMAL),
        ({"message_group": "g"}, MessageType.FIFO),
        ({"delivery_timestamp": Timestamp(seconds=9)}, MessageType.DELAY),
        ({"message_type": MessageType.TRANSACTION, "message_group": "g"}, MessageType.TRANSACTION),
        ({"lite_topic": "a"}, MessageType.LITE),
        ({"priority": 0}, MessageType.PRIORITY),
    ],
)
def test_round_trip_of_the_message_type(system: dict[str, Any], expected: MessageType) -> None:
    assert delivered(stored(sent(**system))).system_properties.message_type == expected


def test_delay_level_of_a_retry_is_not_the_message_type() -> None:
    retried = stored(sent(), properties=properties.encode({"DELAY": "3", "RETRY_TOPIC": "orders"}))
    assert delivered(retried).system_properties.message_type == MessageType.NORMAL
    delayed = stored(sent(), properties=properties.encode({"DELAY": "3"}))
    assert delivered(delayed).system_properties.message_type == MessageType.DELAY


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_compressed_body_is_inflated(pack: Any) -> None:
    """The C++ SDK labels zlib as GZIP; Rust inflates nothing."""
    source = stored(sent(body=pack(b"hello" * 99), body_encoding=Encoding.GZIP))
    back = delivered(source)
    assert back.body == b"hello" * 99
    assert back.system_properties.body_encoding == Encoding.IDENTITY
    assert back.system_properties.body_digest.checksum == md5_of(b"hello" * 99)


@pytest.mark.parametrize("method", SYS_FLAGS)
def test_a_body_that_a_classic_client_compressed_is_inflated(method: str) -> None:
    body = b"hello" * 99
    source = stored(sent(), body=compress(body, method, 5), sys_flag=SYS_FLAGS[method])
    back = delivered(source)
    assert back.body == body
    assert back.system_properties.body_encoding == Encoding.IDENTITY
    assert back.system_properties.body_digest.checksum == md5_of(body)


def test_large_bodies_of_a_batch_are_inflated_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those within the limit always are."""
    monkeypatch.setattr(translate, "MAX_BODY_BYTES", 10_000)
    message = Message()
    encoder = MessageEncoder(message, namespace="", max_body_size=1_000)
    encodings = []
    for size in (6_000, 6_000, 4_000, 1_001, 1_000):
        packed = compress(bytes(size), "zstd", 5)
        encoder.encode(stored(sent(), body=packed, sys_flag=SYS_FLAGS["zstd"]))
        encodings.append(message.system_properties.body_encoding)
    inflated, kept = Encoding.IDENTITY, Encoding.GZIP
    assert encodings == [inflated, kept, inflated, kept, inflated]


@pytest.mark.parametrize(
    "body",
    [
        gzip.compress(bytes(2_000), mtime=0),  # inflates beyond the limit
        gzip.compress(bytes(1_001), mtime=0),
        gzip.compress(b"hello", mtime=0)[:-4],  # cut off
        gzip.compress(b"hello", mtime=0)[:4] + b"broken",
        b"\x04\x22\x4d\x18 something else",
        b"x",
    ],
    ids=["a bomb", "one byte too long", "cut off", "broken", "another format", "no format"],
)
def test_body_beyond_the_limit_stays_compressed(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translate, "MAX_BODY_BYTES", 1_000)
    source = stored(sent(body=body, body_encoding=Encoding.GZIP))
    back = from_record(source, namespace="eu", max_body_size=1_000)
    assert back.body == body
    assert back.system_properties.body_encoding == Encoding.GZIP
    assert back.system_properties.body_digest.checksum == md5_of(body)


@pytest.mark.parametrize("limit", [9_000, 0, -1, -2])
def test_body_within_the_limit_or_without_one_is_inflated(limit: int) -> None:
    source = stored(sent(zlib.compress(bytes(9_000)), body_encoding=Encoding.GZIP))
    back = from_record(source, namespace="", max_body_size=limit)
    assert (back.body, back.system_properties.body_encoding) == (bytes(9_000), Encoding.IDENTITY)


@pytest.mark.parametrize("number", ["99999999999", "-1", "9" * 30, "9" * 5_000, "x"])
@pytest.mark.parametrize("name", ["_SYS_MSG_PRIORITY_", "TIMER_DELIVER_MS"])
def test_number_out_of_range_is_left_out(name: str, number: str) -> None:
    raw = properties.encode({"UNIQ_KEY": "U", name: number})
    back = delivered(stored(sent(), properties=raw, reconsume_times=2**31 - 1))
    assert back.system_properties.message_id == "U"
    assert not back.system_properties.HasField("priority")
    assert back.system_properties.delivery_attempt == 2**31 - 1


@pytest.mark.parametrize("born_ms", [-(2**63), -1, 2**63 - 1])
def test_time_out_of_range_becomes_the_nearest(born_ms: int) -> None:
    """A classic producer may write any time, and SDKs refuse times that protobuf calls invalid."""
    raw = properties.encode({"UNIQ_KEY": "U", "TIMER_DELIVER_MS": "9" * 18})
    system = delivered(stored(sent(), born_timestamp_ms=born_ms, properties=raw)).system_properties
    assert system.born_timestamp.ToJsonString() in ("1970-01-01T00:00:00Z", LAST_TIME)
    assert system.delivery_timestamp.ToJsonString() == LAST_TIME


_IDS = ["UNIQ_KEY\x01a\x02", "UNIQ_KEY\x01b\x02", "UNIQ_KEY\x01\x02", "UNIQ_KEY\x01b"]
_OTHERS = ["TAGS\x01a\x02", "KEYS\x01a b\x02", "mine\x01\ud800\x02", "\x01\x02", "TAGS", *_IDS]
_BEFORE = ["", "MY_", "mine\x01", "TAGS\x01b\x02"]


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": "%RETRY%eu%billing"},
        {"topic": "%DLQ%eu%billing"},
        {"born_host": b"\x0a\0\0\x08\0\0*\x9f"},
        {"store_host": b"\x0a\0\0\x08\0\0*\x9f"},
        {"born_timestamp_ms": 5, "store_timestamp_ms": 6},
        {"queue_id": 5, "queue_offset": 6, "physical_offset": 7, "reconsume_times": 8},
        {"body": b"another"},
        {"body": gzip.compress(b"another"), "sys_flag": COMPRESSED},
        {"body": b"\x1f\x8b broken", "sys_flag": COMPRESSED},
    ],
    ids="-".join,
)
def test_batch_with_different_fields(fields: dict[str, Any]) -> None:
    _assert_as_alone([stored(sent()), stored(sent(), **fields), stored(sent())])


@given(
    st.lists(
        st.tuples(st.sampled_from(_BEFORE), st.sampled_from(_IDS), st.sampled_from(_OTHERS)),
        min_size=2,
        max_size=6,
    )
)
def test_batch_with_different_properties(batch: list[tuple[str, str, str]]) -> None:
    raw = ["".join(proxy).encode("utf-8", "surrogatepass") for proxy in batch]
    _assert_as_alone([stored(sent(), properties=text) for text in raw])


def _assert_as_alone(batch: list[Record]) -> None:
    message = Message()
    encoder = MessageEncoder(message, namespace="eu", max_body_size=1_000)
    for source in batch:
        encoder.encode(source, "handle", 7)
        alone = from_record(source, namespace="eu", max_body_size=1_000)
        alone.system_properties.receipt_handle = "handle"
        alone.system_properties.delivery_attempt = 7
        assert message == alone


def test_retry_has_its_original_topic() -> None:
    kept = properties.encode({"RETRY_TOPIC": "eu%orders", "UNIQ_KEY": MESSAGE_ID})
    back = delivered(stored(sent(), topic="%RETRY%eu%billing", properties=kept))
    assert back.topic == Resource(resource_namespace="eu", name="orders")


@pytest.mark.parametrize(
    "kept",
    [
        {"DLQ_ORIGIN_TOPIC": "orders", "DLQ_ORIGIN_MESSAGE_ID": "0A", "UNIQ_KEY": MESSAGE_ID},
        {"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "0A"},  # of a classic consumer
    ],
)
def test_dead_letter_has_its_origin(kept: dict[str, str]) -> None:
    dead = stored(sent(), topic="%DLQ%eu%billing", properties=properties.encode(kept))
    back = delivered(dead)
    assert back.topic == Resource(resource_namespace="eu", name="%DLQ%billing")
    origin = back.system_properties.dead_letter_queue
    assert (origin.topic, origin.message_id) == ("orders", "0A")


def test_message_of_a_classic_producer() -> None:
    source = stored(sent(), properties=b"")
    system = delivered(source).system_properties
    assert system.message_id == source.offset_message_id
    assert system.born_host == PEER


@given(
    st.binary(max_size=64),
    st.dictionaries(
        st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.text(min_size=1, max_size=8), max_size=4
    ),
)
def test_round_trip_of_any_body_and_properties(body: bytes, user: dict[str, str]) -> None:
    kept = {name: value for name, value in user.items() if not {"\x01", "\x02"} & set(value)}
    back = delivered(stored(sent(body=body, user=kept)))
    assert back.body == body
    assert dict(back.user_properties) == kept
