"""A dead letter as a message to send: what it has of the record, and that it is a Message."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee_client.admin.redriving import rules
from aerobee_client.admin.redriving.rules import Target
from aerobee_client.admin.redriving.sends import OpenedLetter, Redriven
from aerobee_client.message import Message, ReceivedMessage
from aerobee_wire import properties as names
from aerobee_wire import record
from aerobee_wire.status import Code
from support.client.dead_letters import DEAD, GROUP, PROPERTIES, RETRY
from support.codes import raises_code

NOW_MS = 1_234
TARGETS = [Target.RETRY, Target.ORIGIN, Target.parse("topic:repair")]
VALUES = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1
)


def letter(properties: dict[str, str], body: bytes = b"{}") -> ReceivedMessage:
    encoded = record.encode(topic=DEAD, body=body, properties=names.encode(properties), flag=5)
    return ReceivedMessage(record.decode(encoded), "a")


def redriven(given: ReceivedMessage, target: Target = Target.RETRY) -> Redriven:
    return Redriven(OpenedLetter(given), GROUP, target, NOW_MS)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(sorted(rules.LOOKED_AT)) | VALUES, VALUES),
    st.sampled_from(TARGETS),
)
def test_it_has_the_properties_that_the_rules_say(
    properties: dict[str, str], target: Target
) -> None:
    given = letter(properties | {names.DLQ_ORIGIN_TOPIC: "orders"})
    expected = rules.properties_for(
        target, given.properties, offset_message_id=given.offset_message_id, now_ms=NOW_MS
    )
    sent = redriven(given, target)
    assert sent.properties == expected
    assert names.decode(sent.encoded_properties("another id")) == expected
    assert OpenedLetter(given).message_id == given.message_id


def test_it_is_as_a_message_of_its_topic_body_and_flag() -> None:
    sent, expected = redriven(letter(PROPERTIES, b"the body")), Message(RETRY, b"the body", flag=5)
    same = set(Message.__slots__) - {"properties"}
    assert {name: getattr(sent, name) for name in same} == {
        name: getattr(expected, name) for name in same
    }


def test_an_interceptor_adds_properties_to_a_copy() -> None:
    sent = redriven(letter(PROPERTIES))
    before = sent.properties
    copy = sent.with_properties({"traceparent": "00-1", "currency": "USD"})
    assert copy.properties == {**before, "traceparent": "00-1", "currency": "USD"}
    assert names.decode(copy.encoded_properties("")) == copy.properties
    assert (copy.topic, copy.body, sent.properties) == (sent.topic, sent.body, before)
    added = sent.encoded_properties("", "span\x017\x02")
    assert names.decode(added) == {**before, "span": "7"}


def test_a_topic_that_is_none_and_an_empty_body_are_refused() -> None:
    with raises_code(Code.INVALID_PARAMETER):
        redriven(letter({**PROPERTIES, names.DLQ_ORIGIN_TOPIC: "a b"}), Target.ORIGIN)
    with raises_code(Code.MESSAGE_ILLEGAL):
        redriven(letter(PROPERTIES, b""))
