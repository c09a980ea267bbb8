"""Names of lite topics, and the attributes of parents and groups."""

from __future__ import annotations

import pytest

from aerobee_wire.queues import lite
from aerobee_wire.queues.lite import LiteGroup, LiteTopic
from aerobee_wire.status import Code, MqError
from support.codes import raises_about, raises_code


@pytest.mark.parametrize("name", ["a", "A-b_9", "x" * 64])
def test_legal_names(name: str) -> None:
    lite.check_name(name)
    assert lite.lite_topic_of(lite.lease_topic_of("parent", name)) == LiteTopic("parent", name)


@pytest.mark.parametrize("name", ["", " ", "a b", "a$b", "a%b", "a.b", "a/b", "ä", "x" * 65, "a\n"])
def test_illegal_names(name: str) -> None:
    with raises_code(Code.INVALID_PARAMETER, "lite_topic"):
        lite.check_name(name)


@pytest.mark.parametrize("topic", ["parent", "%DLQ%g", "%LMQ%x", "%LMQ%$parent", "%LMQ%$$a", ""])
def test_other_topics_are_no_line(topic: str) -> None:
    assert lite.lite_topic_of(topic) is None


@pytest.mark.parametrize(
    ("value", "minutes"), [("-1", None), ("0", None), ("1", 1), ("43200", 43_200)]
)
def test_ttl(value: str, minutes: int | None) -> None:
    assert lite.ttl_minutes({lite.TTL_ATTRIBUTE: value}) == minutes


def test_no_ttl() -> None:
    assert lite.ttl_minutes({}) is None


@pytest.mark.parametrize("value", ["-2", "43201", "", "30m", "1.5"])
def test_ttl_out_of_range(value: str) -> None:
    with raises_about(MqError, lite.TTL_ATTRIBUTE):
        lite.ttl_minutes({lite.TTL_ATTRIBUTE: value})


def test_a_group_that_is_not_bound() -> None:
    assert lite.group_of({}) is None
    assert lite.group_of({"other": "1"}) is None


def test_defaults_of_a_bound_group() -> None:
    found = lite.group_of({lite.BIND_ATTRIBUTE: "parent"})
    assert found == LiteGroup("parent", "Shared", 2_000, False, False, False)
    assert not found.exclusive


def test_all_attributes_of_a_group() -> None:
    found = lite.group_of(
        {
            lite.BIND_ATTRIBUTE: "parent",
            lite.MODEL_ATTRIBUTE: "Exclusive",
            lite.QUOTA_ATTRIBUTE: "-1",
            lite.EVENTS_ATTRIBUTE: "10",
            lite.WILDCARD_ATTRIBUTE: "false",  # set at all: as in RocketMQ
            lite.RESET_EVICTED_ATTRIBUTE: "true",
            lite.RESET_UNSUBSCRIBED_ATTRIBUTE: "true",
        }
    )
    assert found == LiteGroup("parent", "Exclusive", -1, True, True, True)
    assert found.exclusive


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (lite.MODEL_ATTRIBUTE, "exclusive"),
        (lite.QUOTA_ATTRIBUTE, "-2"),
        (lite.QUOTA_ATTRIBUTE, "many"),
        (lite.EVENTS_ATTRIBUTE, "9"),
        (lite.RESET_EVICTED_ATTRIBUTE, "yes"),
        (lite.RESET_UNSUBSCRIBED_ATTRIBUTE, ""),
    ],
)
def test_illegal_attributes(name: str, value: str) -> None:
    for attributes in ({lite.BIND_ATTRIBUTE: "p", name: value},):
        with raises_about(MqError, name):
            lite.group_of(attributes)


@pytest.mark.parametrize("name", sorted(lite.GROUP_ATTRIBUTES - {lite.BIND_ATTRIBUTE}))
def test_lite_attributes_need_a_parent(name: str) -> None:
    with raises_about(MqError, name):
        lite.group_of({name: "true"})
