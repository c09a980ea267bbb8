"""Names of topics and groups."""

from __future__ import annotations

import pytest

from aerobee_wire import topics
from aerobee_wire.status import Code, MqError


def test_group_of_inverts_retry_and_dead_letter_topics() -> None:
    assert topics.group_of(topics.retry_topic("g")) == topics.group_of("%DLQ%g") == "g"
    assert topics.group_of("orders") is None
    assert topics.is_retry("%RETRY%g") and topics.is_dead_letter("%DLQ%g")


@pytest.mark.parametrize("name", ["a", "A-b_c|d%", "x" * 127, "%RETRY%" + "g" * 248])
def test_legal_topics_pass(name: str) -> None:
    topics.check_topic(name)
    assert topics.is_system(name) is False


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("", "blank"),
        ("  ", "blank"),
        ("x" * 128, "128 characters: use at most 127"),
        ("%DLQ%" + "g" * 251, "at most 255"),
        ("a b", "illegal"),
        ("a/../b", "illegal"),
        ("topic\n", "illegal"),
        ("thé", "illegal"),
    ],
)
def test_illegal_topic_is_refused_with_the_rule(name: str, rule: str) -> None:
    with pytest.raises(MqError, match=rule) as caught:
        topics.check_topic(name)
    assert caught.value.code is Code.INVALID_PARAMETER


def test_group_has_at_most_120_characters() -> None:
    topics.check_group("g" * 120)
    with pytest.raises(MqError, match="at most 120"):
        topics.check_group("g" * 121)


@pytest.mark.parametrize("name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_anything"])
def test_system_topics_are_known(name: str) -> None:
    assert topics.is_system(name)
