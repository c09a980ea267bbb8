"""The arguments of a Message, and the fields of a ReceivedMessage."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_client.message import Message, ReceivedMessage
from aerobee_wire import message_id, properties, record
from aerobee_wire.status import Code, MqError
from support import records
from support.codes import raises_code
from support.user_properties import ACCEPTED, REFUSED

HOST = message_id.pack_host("10.0.0.2:10911")


def stored(topic: str = "t", **names: str) -> record.Record:
    return record.decode(
        records.encode(
            topic=topic,
            queue_id=3,
            queue_offset=7,
            physical_offset=1000,
            body=b"body",
            properties=properties.encode(names),
            flag=5,
            sys_flag=0,
            born_timestamp_ms=11,
            born_host=HOST,
            store_timestamp_ms=12,
            store_host=HOST,
            reconsume_times=2,
        )
    )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"topic": "no spaces"}, Code.INVALID_PARAMETER),
        ({"topic": ""}, Code.INVALID_PARAMETER),
        ({"topic": "t" * 128}, Code.INVALID_PARAMETER),
        ({"body": b""}, Code.MESSAGE_ILLEGAL),
        ({"tag": "a\x01b"}, Code.MESSAGE_ILLEGAL),
        ({"keys": "two keys"}, Code.MESSAGE_ILLEGAL),
        ({"keys": ["ok", ""]}, Code.MESSAGE_ILLEGAL),
        ({"properties": {"UNIQ_KEY": "mine"}}, Code.MESSAGE_ILLEGAL),
        ({"properties": {"DLQ_REASON": "mine"}}, Code.MESSAGE_ILLEGAL),
        ({"properties": {"a": "b\x02c"}}, Code.MESSAGE_ILLEGAL),
        ({"properties": {"a": ""}}, Code.MESSAGE_ILLEGAL),
        ({"delay_level": 19}, Code.MESSAGE_ILLEGAL),
        ({"flag": 1 << 31}, Code.MESSAGE_ILLEGAL),
        ({"flag": -(1 << 31) - 1}, Code.MESSAGE_ILLEGAL),
        ({"delay_level": -1}, Code.MESSAGE_ILLEGAL),
        ({"deliver_at": datetime(2026, 1, 1)}, Code.MESSAGE_ILLEGAL),
        ({"deliver_at": datetime(2026, 1, 1, tzinfo=UTC), "delay_level": 1}, Code.MESSAGE_ILLEGAL),
        ({"delay": timedelta(seconds=1), "delay_level": 1}, Code.MESSAGE_ILLEGAL),
        (
            {"delay": timedelta(0), "deliver_at": datetime(2026, 1, 1, tzinfo=UTC)},
            Code.MESSAGE_ILLEGAL,
        ),
        ({"delay": timedelta(microseconds=-1)}, Code.MESSAGE_ILLEGAL),
        ({"delay": timedelta(days=3, microseconds=1)}, Code.MESSAGE_ILLEGAL),
        ({"message_group": "g" * 64}, Code.MESSAGE_ILLEGAL),
        ({"message_group": "g", "delay": timedelta(seconds=1)}, Code.MESSAGE_ILLEGAL),
        ({"message_group": "g", "delay_level": 1}, Code.MESSAGE_ILLEGAL),
        ({"priority": -1}, Code.MESSAGE_ILLEGAL),
        ({"priority": 1 << 31}, Code.MESSAGE_ILLEGAL),
        ({"tag": "a|b"}, Code.MESSAGE_ILLEGAL),
        ({"properties": {"__SHARDINGKEY": "g"}}, Code.MESSAGE_ILLEGAL),
        ({"mesage_group": "g"}, Code.INVALID_PARAMETER),
    ],
)
def test_bad_argument_is_refused_with_its_code(arguments: dict[str, Any], code: Code) -> None:
    with pytest.raises(MqError) as caught:
        Message(**{"topic": "t", "body": b"x", **arguments})
    assert caught.value.code is code
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("microsecond", "due"),
    [(0, 1_767_225_600_000), (1, 1_767_225_600_001), (1_000, 1_767_225_600_001)],
)
def test_a_time_is_rounded_up_so_that_no_message_is_early(microsecond: int, due: int) -> None:
    moment = datetime(2026, 1, 1, 1, microsecond=microsecond, tzinfo=timezone(timedelta(hours=1)))
    message = Message("t", b"x", deliver_at=moment)
    assert message.delayed
    encoded = message.encoded_properties("U")
    assert properties.decode(encoded) == {"UNIQ_KEY": "U", "TIMER_DELIVER_MS": str(due)}


def test_encoded_properties_include_the_users_own() -> None:
    message = Message(
        "t", b"x", tag="UA", keys=["k1", "k2"], properties={"café": "crème"}, delay_level=3
    )
    assert properties.decode(message.encoded_properties("ID")) == {
        "UNIQ_KEY": "ID",
        "TAGS": "UA",
        "KEYS": "k1 k2",
        "DELAY": "3",
        "café": "crème",
    }


def test_encoded_properties_include_group_priority_and_delay() -> None:
    ordered = Message("t", b"x", message_group="order 7", priority=0)
    assert properties.decode(ordered.encoded_properties("ID")) == {
        "UNIQ_KEY": "ID",
        "__SHARDINGKEY": "order 7",
        "_SYS_MSG_PRIORITY_": "0",
    }
    delayed = Message("t", b"x", delay=timedelta(microseconds=1_001), wait_store_ok=False)
    assert delayed.delayed
    assert properties.decode(delayed.encoded_properties("ID")) == {
        "UNIQ_KEY": "ID",
        "TIMER_DELAY_MS": "2",
        "WAIT": "false",
    }


def test_properties_over_the_limit_are_refused() -> None:
    """31,743 bytes: what brokers take."""
    room = 31_743 - len("UNIQ_KEY\x01ID\x02a\x01\x02")
    assert len(Message("t", b"x", properties={"a": "v" * room}).encoded_properties("ID")) == 31_743
    with raises_code(Code.MESSAGE_ILLEGAL):
        Message("t", b"x", properties={"a": "v" * (room + 1)}).encoded_properties("ID")


def test_property_outside_utf8_is_refused() -> None:
    with raises_code(Code.MESSAGE_ILLEGAL):
        Message("t", b"x", properties={"a": "\ud800"}).encoded_properties("ID")


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_property_that_a_user_may_not_set_is_refused(name: str, value: str) -> None:
    with raises_code(Code.MESSAGE_ILLEGAL):
        Message("t", b"x", properties={name: value})
    with raises_code(Code.MESSAGE_ILLEGAL):
        Message("t", b"x").with_properties({name: value})


@pytest.mark.parametrize(("name", "value"), ACCEPTED)
def test_property_of_printable_text_passes(name: str, value: str) -> None:
    assert Message("t", b"x", properties={name: value}).properties == {name: value}


# Any text that UTF-8 can write (no surrogates: category Cs), without control characters (Cc).
_NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20).filter(
    lambda text: text not in properties.RESERVED and not text.isspace()
)


@given(st.dictionaries(_NAMES, _NAMES, max_size=5))
def test_properties_survive_encoding(own: dict[str, str]) -> None:
    encoded = Message("t", b"x", properties=own).encoded_properties("ID")
    assert properties.decode(encoded) == {"UNIQ_KEY": "ID", **own}


def test_a_key_may_hold_any_white_space_but_a_blank() -> None:
    encoded = Message("t", b"x", keys=["a\tb", "c"]).encoded_properties("ID")
    received = ReceivedMessage(stored(KEYS=properties.decode(encoded)["KEYS"]))
    assert received.keys == ("a\tb", "c")
    assert ReceivedMessage(stored(KEYS=" a  b ")).keys == ("a", "b")


def test_received_message_shows_the_record() -> None:
    message = ReceivedMessage(stored(TAGS="UA", KEYS="a b", UNIQ_KEY="U", mine="1"), "broker-a")
    assert (message.topic, message.queue_id, message.queue_offset) == ("t", 3, 7)
    assert (message.body, message.tag, message.keys) == (b"body", "UA", ("a", "b"))
    assert (message.message_id, message.broker_name) == ("U", "broker-a")
    assert message.offset_message_id == "0A00000200002A9F00000000000003E8"
    assert (message.flag, message.reconsume_times) == (5, 2)
    assert (message.born_timestamp_ms, message.store_timestamp_ms) == (11, 12)
    assert message.properties["mine"] == "1"


def test_without_a_unique_key_the_offset_message_id_is_the_id() -> None:
    message = ReceivedMessage(stored())
    assert message.message_id == message.offset_message_id == message.origin_message_id


def test_dead_letter_shows_origin_and_reason() -> None:
    message = ReceivedMessage(
        stored(
            "%DLQ%g",
            RETRY_TOPIC="flights",
            ORIGIN_MESSAGE_ID="AB",
            DLQ_REASON="ValueError",
            DLQ_REASON_DESCRIPTION="no arrival",
        )
    )
    assert (message.topic, message.stored_topic) == ("%DLQ%g", "%DLQ%g")
    assert (message.origin_topic, message.origin_message_id) == ("flights", "AB")
    assert (message.failure_reason, message.failure_description) == ("ValueError", "no arrival")
