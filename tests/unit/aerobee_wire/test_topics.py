"""Names of topics and groups."""

from __future__ import annotations

import pytest

from aerobee_wire import topics
from aerobee_wire.status import Code
from support.codes import raises_code


def test_group_of_inverts_retry_and_dead_letter_topics() -> None:
    assert topics.group_of(topics.retry_topic("g")) == topics.group_of("%DLQ%g") == "g"
    assert topics.group_of("orders") is None
    assert topics.is_retry("%RETRY%g") and topics.is_dead_letter("%DLQ%g")


@pytest.mark.parametrize("name", ["a", "A-b_c|d%", "x" * 127, "%RETRY%" + "g" * 248])
def test_legal_topics_pass(name: str) -> None:
    topics.check_topic(name)
    assert topics.is_system(name) is False


@pytest.mark.parametrize(
    "name", ["", "  ", "x" * 128, "%DLQ%" + "g" * 251, "a b", "a/../b", "topic\n", "thé"]
)
def test_illegal_topic_is_refused(name: str) -> None:
    with raises_code(Code.INVALID_PARAMETER, "topic"):
        topics.check_topic(name)


def test_group_has_at_most_120_characters() -> None:
    topics.check_group("g" * 120)
    with raises_code(Code.INVALID_PARAMETER, "group"):
        topics.check_group("g" * 121)


@pytest.mark.parametrize("name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_anything"])
def test_system_topics_are_known(name: str) -> None:
    assert topics.is_system(name)
