"""The message of a dead letter: what it has of the record, and where it goes."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee_broker.delivery.letters.redriven import RedrivenMessages
from aerobee_broker.delivery.letters.selection import OpenedLetter
from aerobee_broker.metadata.topics import TopicConfig, Topics
from aerobee_broker.store.messages import NewMessage
from aerobee_wire import properties as props
from aerobee_wire import record
from aerobee_wire import redrive as rules
from aerobee_wire.compression import SYS_FLAGS
from aerobee_wire.record import Record
from aerobee_wire.redrive import Target
from aerobee_wire.route import READ
from aerobee_wire.status import Code
from support import records
from support.clock.manual_clock import ManualClock
from support.codes import raises_code

GROUP, DEAD, NOW_MS = "billing", "%DLQ%billing", 1_234
TARGETS = [Target.RETRY, Target.ORIGIN, Target.parse("topic:repair")]
VALUES = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1
)


def letter(
    properties: dict[str, str] | None = None, body: bytes = b"{}", sys_flag: int = 0
) -> Record:
    given = {props.UNIQUE_KEY: "A", props.DLQ_ORIGIN_TOPIC: "orders", **(properties or {})}
    encoded = props.encode(given)
    return record.decode(
        records.encode(topic=DEAD, body=body, properties=encoded, flag=5, sys_flag=sys_flag)
    )


def redriven(given: Record, target: Target = Target.ORIGIN) -> NewMessage:
    topics = Topics(ManualClock())
    for topic in ("orders", "repair", "%RETRY%billing"):
        topics.put(TopicConfig(topic, 4, 4))
    topics.put(TopicConfig("closed", 4, 4, READ))
    return RedrivenMessages(topics.get, GROUP, target, NOW_MS).message(OpenedLetter(given))


def wanted(found: Record, target: Target) -> dict[str, str]:
    return rules.properties_for(
        target, found.properties, offset_message_id=found.offset_message_id, now_ms=NOW_MS
    )


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(sorted(rules.LOOKED_AT)) | VALUES, VALUES),
    st.sampled_from(TARGETS),
)
def test_it_has_the_properties_of_the_rules(properties: dict[str, str], target: Target) -> None:
    found = letter({**properties, props.DLQ_ORIGIN_TOPIC: "orders"})
    assert props.decode(redriven(found, target).properties) == wanted(found, target)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([*sorted(rules.LOOKED_AT), "a%b", "%", "é"]), unique=True),
    st.lists(st.lists(VALUES, min_size=40, max_size=40), min_size=2, max_size=4),
    st.sampled_from(TARGETS),
)
def test_letters_with_the_same_names_keep_their_own_values(
    names: list[str], rows: list[list[str]], target: Target
) -> None:
    topics = Topics(ManualClock())
    for topic in ("orders", "repair", "%RETRY%billing"):
        topics.put(TopicConfig(topic, 4, 4))
    maker = RedrivenMessages(topics.get, GROUP, target, NOW_MS)
    for values in rows:
        properties = dict(zip(names, values, strict=False))
        found = letter({**properties, props.DLQ_ORIGIN_TOPIC: "orders"})
        assert props.decode(maker.message(OpenedLetter(found)).properties) == wanted(found, target)


def test_letters_of_one_redrive_go_to_their_own_topics() -> None:
    topics = Topics(ManualClock())
    for topic in ("orders", "bills"):
        topics.put(TopicConfig(topic, 4, 4))
    maker = RedrivenMessages(topics.get, GROUP, Target.ORIGIN, NOW_MS)
    origins = ["orders", "bills", "absent", "orders"]
    opened = [OpenedLetter(letter({props.DLQ_ORIGIN_TOPIC: origin})) for origin in origins]
    with raises_code(Code.TOPIC_NOT_EXIST):
        maker.message(opened[2])
    sent = [maker.message(opened[n]).topic for n in (0, 1, 3)]
    assert sent == ["orders", "bills", "orders"]


@pytest.mark.parametrize(("in_a_row", "queues"), [(1, [1, 2, 3, 0, 1]), (2, [0, 1, 1, 2, 2])])
def test_messages_without_order_go_to_the_queues_in_turn(in_a_row: int, queues: list[int]) -> None:
    topics = Topics(ManualClock())
    topics.put(TopicConfig("orders", 4, 4))
    maker = RedrivenMessages(topics.get, GROUP, Target.ORIGIN, NOW_MS, in_a_row)
    assert [maker.message(OpenedLetter(letter())).queue_id for _ in range(5)] == queues


@pytest.mark.parametrize("cut", [0, 9])
def test_a_compressed_body_is_sent_as_it_is_stored_damaged_or_not(cut: int) -> None:
    body = zlib.compress(b"late " * 500)[cut:]
    sent = redriven(letter(body=body, sys_flag=SYS_FLAGS["zlib"]))
    assert (sent.body, sent.sys_flag, sent.flag) == (body, SYS_FLAGS["zlib"], 5)


@pytest.mark.parametrize(
    ("given", "target", "queue_id"),
    [
        ({props.PRIORITY: "2"}, Target.ORIGIN, 2),
        ({props.PRIORITY: "9"}, Target.ORIGIN, 3),
        ({props.SHARDING_KEY: "g", props.DLQ_ORIGIN_QUEUE_ID: "3"}, Target.ORIGIN, 3),
        ({props.LITE_TOPIC: "g", props.DLQ_ORIGIN_QUEUE_ID: "1"}, Target.ORIGIN, 1),
    ],
)
def test_it_goes_to_the_queue_of_its_order(
    given: dict[str, str], target: Target, queue_id: int
) -> None:
    assert redriven(letter(given), target).queue_id == queue_id


def test_letters_of_a_group_without_a_known_queue_share_one() -> None:
    queues = {
        redriven(letter({props.SHARDING_KEY: "g", "n": str(n)}), target).queue_id
        for n in range(9)
        for target in (Target.ORIGIN, Target.parse("topic:repair"))
    }
    assert len(queues) == 1


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (letter({props.DLQ_ORIGIN_TOPIC: "absent"}), Code.TOPIC_NOT_EXIST),
        (letter({props.DLQ_ORIGIN_TOPIC: "closed"}), Code.NO_PERMISSION),
        (letter({props.DLQ_ORIGIN_TOPIC: ""}), Code.MESSAGE_ILLEGAL),
        (letter(body=b""), Code.MESSAGE_ILLEGAL),
    ],
)
def test_what_cannot_be_sent_is_refused(given: Record, code: Code) -> None:
    with raises_code(code):
        redriven(given)
