"""Test positions of a stream: JSON, owner, and the ranges between two positions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_spark.errors import CheckpointError
from aerobee_spark.reading.offsets import OffsetRange, Queue
from aerobee_spark.reading.options import ReadOptions
from aerobee_spark.stream.positions import Positions, ranges_between
from support.codes import raises_about

A0, A1, B0 = Queue("t", "broker-a", 0), Queue("t", "broker-a", 1), Queue("t", "broker-b", 0)
QUEUES = st.tuples(st.sampled_from("tuv"), st.sampled_from(["a", "b"]), st.integers(0, 12))


def options(**given: str) -> ReadOptions:
    return ReadOptions.parse({"nameServer": "n:1", **given})


def at(**topics: Any) -> Positions:
    return Positions.parse({"v": 1, "topics": topics})


@given(st.dictionaries(QUEUES.map(lambda row: Queue(*row)), st.integers(0, 2**60)))
def test_positions_are_what_their_json_says_in_one_order(offsets: dict[Queue, int]) -> None:
    positions = Positions(offsets, frozenset({"t"}))
    text = json.dumps(positions.as_json())
    again = Positions.parse(json.loads(text))
    assert (dict(again.of), json.dumps(again.as_json())) == (offsets, text)
    backwards = Positions(dict(reversed(offsets.items())), frozenset({"t"}))
    assert json.dumps(backwards.as_json()) == text


def test_the_json_of_a_checkpoint_is_a_starting_offset() -> None:
    value = json.dumps(Positions({A0: 3, B0: 5}).as_json())
    parsed = options(topic="t", startingOffsets=value).starting
    assert parsed.by_queue == {A0: 3, B0: 5}


@pytest.mark.parametrize("value", [{"v": 2, "topics": {}}, {"topics": {}}, {"t": {"v": {"0": 1}}}])
def test_a_checkpoint_of_another_version_or_source_is_refused(value: dict[str, Any]) -> None:
    with raises_about(CheckpointError, "checkpoint"):
        Positions.parse(value)


@pytest.mark.parametrize(
    ("given", "of"),
    [
        ({"topic": "t"}, at(t={}, u={})),
        ({"topic": "t,u"}, at(t={})),
        ({"topic": "u"}, at(t={"broker-a": {"0": 1}})),
        ({"topicPattern": "u.*"}, at(t={"broker-a": {"0": 1}})),
        ({"consumerGroup": "g"}, at(**{"%RETRY%g": {}})),
        ({"consumerGroup": "*"}, at(**{"%RETRY%g": {}})),
        ({"assign": '{"t": {"broker-a": [0]}}'}, at(u={"broker-a": {"0": 1}})),
    ],
)
def test_a_checkpoint_of_other_topics_is_refused_with_both_sides(
    given: dict[str, str], of: Positions
) -> None:
    with raises_about(CheckpointError, "checkpoint") as refused:
        of.check(options(**given))
    assert all(topic in refused.value.message for topic in of.topics)


@pytest.mark.parametrize(
    ("given", "of"),
    [
        ({"topic": "t"}, at(t={})),
        ({"topicPattern": "t.*"}, at()),
        ({"topicPattern": "t.*"}, at(t={}, t2={})),
        ({"consumerGroup": "g", "kind": "both"}, at()),
        ({"consumerGroup": "g", "kind": "both"}, at(**{"%DLQ%g": {}})),
        ({"consumerGroup": "*"}, at(**{"%DLQ%g": {}, "%DLQ%h": {}})),
    ],
)
def test_a_pattern_or_a_group_may_gain_topics(given: dict[str, str], of: Positions) -> None:
    of.check(options(**given))


def test_a_batch_is_what_lies_between_two_positions() -> None:
    start, end = Positions({A0: 3, A1: 7, B0: 4}), Positions({A0: 9, A1: 7, B0: 2})
    assert ranges_between(start, end) == [OffsetRange(A0, 3, 9)]
    assert ranges_between(Positions({}), end) == []
