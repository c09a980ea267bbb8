"""The rules of a redrive: topic, properties, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee_wire import properties as names
from aerobee_wire import redrive as rules
from aerobee_wire.redrive import Target
from aerobee_wire.status import Code
from support.client.dead_letters import GROUP, PROPERTIES, RETRY
from support.codes import raises_code

OFFSET_ID = "0A00000B00002A9F0000000000000099"


@pytest.mark.parametrize("text", ["retry", "origin", "topic:orders"])
def test_a_target_is_written_as_it_is_read(text: str) -> None:
    assert str(Target.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Retry",
        "orders",
        "topic:",
        "topic:a b",
        "topic:%DLQ%billing",
        "topic:%RETRY%other",
        "topic:SCHEDULE_TOPIC_XXXX",
        "topic:rmq_sys_wheel_timer",
    ],
)
def test_what_is_no_target_is_refused(text: str) -> None:
    with raises_code(Code.INVALID_PARAMETER):
        Target.parse(text)


@pytest.mark.parametrize(
    ("target", "topic"), [("retry", RETRY), ("origin", "orders"), ("topic:repair", "repair")]
)
def test_each_target_has_its_topic(target: str, topic: str) -> None:
    assert rules.topic_for(Target.parse(target), GROUP, PROPERTIES) == topic


def test_a_retry_names_its_origin_and_a_message_to_a_topic_does_not() -> None:
    def sent(target: str) -> dict[str, str]:
        return rules.properties_for(
            Target.parse(target), PROPERTIES, offset_message_id=OFFSET_ID, now_ms=7
        )

    assert sent("retry")[names.RETRY_TOPIC] == "orders"
    assert names.RETRY_TOPIC not in sent("origin")
    assert sent("origin") == sent("topic:repair")
    assert not sent("retry").keys() & (rules.DROPPED - {names.RETRY_TOPIC})


@pytest.mark.parametrize("target", [Target.RETRY, Target.ORIGIN])
def test_a_dead_letter_without_an_origin_goes_only_to_a_named_topic(target: Target) -> None:
    """Its own topic is the dead-letter topic."""
    without = {names.UNIQUE_KEY: "A"}
    with raises_code(Code.MESSAGE_ILLEGAL):
        rules.topic_for(target, GROUP, without)
    assert rules.topic_for(Target.parse("topic:repair"), GROUP, without) == "repair"


def test_a_dead_letter_without_message_id_gets_that_of_its_record() -> None:
    sent = rules.properties_for(
        Target.ORIGIN, {names.RETRY_TOPIC: "orders"}, offset_message_id=OFFSET_ID, now_ms=7
    )
    assert sent[names.UNIQUE_KEY] == sent[names.ORIGIN_MESSAGE_ID] == OFFSET_ID


@pytest.mark.parametrize(
    ("before", "after"), [(None, "1"), ("1", "2"), ("41", "42"), ("x", "1"), ("-3", "1")]
)
def test_redrives_are_counted(before: str | None, after: str) -> None:
    earlier = {} if before is None else {names.REDRIVE_TIMES: before, names.REDRIVE_TIMESTAMP: "1"}
    sent = rules.properties_for(
        Target.RETRY, PROPERTIES | earlier, offset_message_id=OFFSET_ID, now_ms=1_234
    )
    assert (sent[names.REDRIVE_TIMES], sent[names.REDRIVE_TIMESTAMP]) == (after, "1234")


@pytest.mark.parametrize(
    ("wanted", "fitting"),
    [("", ["a", "", None]), ("a", ["a"]), (rules.WITHOUT, ["", None]), ("b", [])],
)
def test_a_selection_by_reason_can_be_of_letters_without_one(
    wanted: str, fitting: list[str | None]
) -> None:
    assert [value for value in ("a", "", None) if rules.fits(wanted, value)] == fitting


def test_only_the_topics_of_dead_letters_have_dead_letters() -> None:
    assert rules.group_of("%DLQ%billing") == "billing"
    for topic in ("orders", RETRY):
        with raises_code(Code.MESSAGE_ILLEGAL):
            rules.group_of(topic)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*sorted(rules.DROPPED), names.TAGS, names.SHARDING_KEY, "mine", "yours"]),
        st.text(
            st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1
        ),
    ),
    st.sampled_from(["retry", "origin", "topic:repair"]),
)
def test_what_is_the_users_is_kept_and_sending_twice_is_as_sending_once(
    properties: dict[str, str], target: str
) -> None:
    properties = properties | {names.DLQ_ORIGIN_TOPIC: "orders"}

    def sent(given: dict[str, str]) -> dict[str, str]:
        return rules.properties_for(
            Target.parse(target), given, offset_message_id=OFFSET_ID, now_ms=1
        )

    once = sent(properties)
    kept = {name: value for name, value in properties.items() if name not in rules.DROPPED}
    assert kept.items() <= once.items()
    again = sent(once | {names.DLQ_ORIGIN_TOPIC: "orders"})
    assert again == once | {names.REDRIVE_TIMES: "2"}
