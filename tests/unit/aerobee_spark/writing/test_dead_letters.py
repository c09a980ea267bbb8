"""Test that rows of dead letters are sent again as the command sends them."""

from __future__ import annotations

from typing import Any

import pytest

from aerobee_broker.delivery.letters.redriven import RedrivenMessages
from aerobee_broker.delivery.letters.selection import OpenedLetter
from aerobee_broker.metadata.topics import TopicConfig, Topics
from aerobee_spark.errors import OptionError, RowError
from aerobee_spark.reading import columns
from aerobee_spark.reading.message_columns import COLUMNS
from aerobee_spark.writing import arrays, dead_letters
from aerobee_spark.writing.encoding import Messages
from aerobee_spark.writing.message_columns import OF_A_REDRIVE, OF_FACTS, FrameColumns
from aerobee_wire import message_id, properties, record
from aerobee_wire.compression import SYS_FLAGS, compress
from aerobee_wire.redrive import Target
from support import records
from support.client.dead_letters import DEAD, GROUP, PROPERTIES, RETRY
from support.clock.manual_clock import ManualClock
from support.codes import raises_about

NOW_MS = 1_760_000_000_000
HOST = message_id.pack_host("10.0.0.1:10911")
FRAME = FrameColumns.of(list(COLUMNS.items()))
TARGETS = [Target.RETRY, Target.ORIGIN, Target.parse("topic:again")]
PACKED = compress(b"x" * 500, "zlib", 5)
LETTERS: list[dict[str, Any]] = [
    {},
    {"flag": 7, "body": b"\xff\x00"},
    {"body": PACKED, "sys_flag": SYS_FLAGS["zlib"]},
    {"named": {properties.SHARDING_KEY: "g1", properties.PRIORITY: "3"}},
    {"named": {properties.SHARDING_KEY: "g2", properties.REDRIVE_TIMES: "2"}},
    {"named": {properties.LITE_TOPIC: "session-1"}},
    {"without": [properties.UNIQUE_KEY, properties.TAGS, properties.DLQ_ORIGIN_TOPIC]},
    {"named": {properties.PRIORITY: "many", "note": "Zürich"}},
]


def letters(*changes: dict[str, Any], topic: str = DEAD) -> bytes:
    """Concatenate records."""
    return b"".join(
        records.encode(
            topic=topic,
            queue_id=0,
            queue_offset=number,
            physical_offset=1000 * number,
            body=change.get("body", b"body %d" % number),
            flag=change.get("flag", 0),
            sys_flag=change.get("sys_flag", 0),
            born_timestamp_ms=1,
            born_host=HOST,
            store_timestamp_ms=2,
            store_host=HOST,
            properties=properties.encode(
                {
                    name: value
                    for name, value in {**PROPERTIES, **change.get("named", {})}.items()
                    if name not in change.get("without", ())
                }
            ),
        )
        for number, change in enumerate(changes)
    )


def sent_again(records: bytes, target: Target, **options: Any) -> Messages:
    """Return rows in the form in which a read returns them, with bodies as stored."""
    batch = columns.decode(records, "broker-a", inflate=False, **options)
    return dead_letters.encode(batch, FRAME, target, first_row=10, now_ms=NOW_MS)


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_each_is_what_a_broker_sends(target: Target) -> None:
    records = letters(*LETTERS)
    topics = Topics(ManualClock())
    for topic in ("orders", "again", RETRY):
        topics.put(TopicConfig(topic, 4, 4))
    broker = RedrivenMessages(topics.get, GROUP, target, NOW_MS)
    found, messages = list(record.iter_records(records)), sent_again(records, target)
    for row, each in enumerate(found):
        wanted = broker.message(OpenedLetter(each))
        given = {} if target.is_retry else each.properties
        order_key = given.get(properties.SHARDING_KEY) or given.get(properties.LITE_TOPIC)
        wanted_priority = properties.whole_number(given.get(properties.PRIORITY, ""))
        assert messages.topics.values[messages.topics.codes[row]] == wanted.topic
        assert properties.decode(messages.properties[row].as_py()) == properties.decode(
            wanted.properties
        )
        assert messages.bodies[row].as_py() == wanted.body
        assert (messages.flags[row], messages.sys_flags[row]) == (wanted.flag, wanted.sys_flag)
        group, priority = messages.groups.codes[row], messages.priorities[row]
        assert order_key == (None if group == arrays.NONE else messages.groups.values[group])
        assert wanted_priority == (None if priority == arrays.NONE else priority)
    assert messages.rows.tolist() == [10 + row for row in range(len(found))]


@pytest.mark.parametrize("topic", ["orders", RETRY])
def test_a_row_that_is_no_dead_letter_is_refused(topic: str) -> None:
    with pytest.raises(RowError, match="is not a dead letter"):
        sent_again(letters({}, topic=topic), Target.ORIGIN)


def test_a_row_that_does_not_say_where_it_comes_from_is_refused() -> None:
    homeless = {"without": [properties.RETRY_TOPIC, properties.DLQ_ORIGIN_TOPIC]}
    for target in (Target.ORIGIN, Target.RETRY):
        with pytest.raises(RowError, match="row 11"):
            sent_again(letters({}, homeless), target)
    assert len(sent_again(letters({}, homeless), Target.parse("topic:again"))) == 2


@pytest.mark.parametrize(
    "options", [{"include_body": False}, {"include_properties": False}, {"max_body_bytes": 3}]
)
def test_a_row_that_is_not_whole_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RowError, match="row 10"):
        sent_again(letters({}), Target.ORIGIN, **options)


# ---- the frame ----


def test_a_frame_that_was_read_can_be_redriven() -> None:
    FRAME.check_redrive()
    FrameColumns.of([(name, COLUMNS[name]) for name in OF_A_REDRIVE]).check_redrive()


@pytest.mark.parametrize("name", [name for name in OF_A_REDRIVE if name != "body"])
def test_a_frame_without_what_a_read_gives_is_refused(name: str) -> None:
    kinds = [(other, COLUMNS[other]) for other in OF_A_REDRIVE if other != name]
    with raises_about(OptionError, name):
        FrameColumns.of(kinds).check_redrive()


def test_a_frame_with_columns_of_other_messages_is_refused() -> None:
    with raises_about(OptionError, "messageGroup"):
        FrameColumns.of([*COLUMNS.items(), ("messageGroup", "string")]).check_redrive()
    kinds = [(name, "string" if name == "body" else kind) for name, kind in COLUMNS.items()]
    with raises_about(OptionError, "body"):
        FrameColumns.of(kinds).check_redrive()


def test_a_row_of_a_facts_table_may_have_its_own_columns() -> None:
    facts = [*COLUMNS.items(), *((name, "string") for name in OF_FACTS)]
    FrameColumns.of(facts).check_redrive()
    with raises_about(OptionError, "kind"):
        FrameColumns.of([("body", "string"), ("kind", "string")])
