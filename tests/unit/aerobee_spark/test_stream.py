"""Test the positions of a stream, and how many messages a batch admits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_spark.errors import CheckpointError
from aerobee_spark.reading.offsets import Bounds, OffsetRange, Queue
from aerobee_spark.reading.options import ReadOptions
from aerobee_spark.stream.admission import Advance, Patience, Seen, advance, limited
from aerobee_spark.stream.positions import Positions, ranges_between
from support.codes import raises_about

# ---- test admission ----
#
# Test the end of a batch: new and lost messages, unavailable brokers, limits.


A0, A1, B0 = Queue("t", "broker-a", 0), Queue("t", "broker-a", 1), Queue("t", "broker-b", 0)
ANSWERED = frozenset({("t", "broker-a")})


def test_a_batch_goes_to_the_end_of_each_queue() -> None:
    found = advance(Positions({A0: 3, A1: 5}), Seen({A0: Bounds(0, 9), A1: Bounds(5, 5)}))
    assert (found.end, found.waiting, found.losses) == ({A0: 9, A1: 5}, {A0: 6}, [])


def test_a_queue_whose_broker_is_away_stays_where_it_is() -> None:
    found = advance(Positions({A0: 3, B0: 4}), Seen({A0: Bounds(0, 9)}, answered=ANSWERED))
    assert (found.end, found.losses) == ({A0: 9, B0: 4}, [])


def test_a_new_queue_enters_at_its_first_message() -> None:
    seen = Seen({A0: Bounds(0, 9), A1: Bounds(2, 8)})
    found = advance(Positions({A0: 9}), seen)
    assert (found.end, found.waiting) == ({A0: 9, A1: 2}, {})
    assert advance(Positions(found.end), seen).end == {A0: 9, A1: 8}


def test_an_end_that_is_fixed_is_reached_and_not_passed() -> None:
    upto = {A0: 5, A1: 7}
    seen = Seen({A0: Bounds(0, 9), A1: Bounds(0, 9), B0: Bounds(0, 9)})
    first = advance(Positions({A0: 3, B0: 2}), seen, upto=upto)
    assert (first.end, first.waiting) == ({A0: 5, A1: 0, B0: 2}, {A0: 2})
    second = advance(Positions(first.end), seen, upto=upto)
    assert second.end == {A0: 5, A1: 7, B0: 2}
    assert advance(Positions(second.end), seen, upto=upto).end == second.end


def test_a_start_below_the_minimum_is_lost_and_what_is_left_is_read() -> None:
    found = advance(Positions({A0: 3}), Seen({A0: Bounds(5, 9)}))
    (loss,) = found.losses
    assert (loss.about, loss.lost) == (str(A0), range(3, 5))
    assert (found.end, found.waiting) == ({A0: 9}, {A0: 4})


def test_a_topic_that_was_made_again_is_lost_and_read_from_its_first_message() -> None:
    found = advance(Positions({A0: 30}), Seen({A0: Bounds(0, 9)}))
    (loss,) = found.losses
    assert (loss.about, loss.lost) == (str(A0), range(9, 30))
    assert (found.end, found.waiting) == ({A0: 0}, {})


@pytest.mark.parametrize("where", ["absent", "answered"])
def test_a_queue_that_its_broker_no_longer_has_is_lost_and_forgotten(where: str) -> None:
    found = advance(Positions({A0: 3}), Seen({}, **{where: ANSWERED}))
    assert ([loss.about for loss in found.losses], found.end) == ([str(A0)], {})


@given(
    st.dictionaries(st.integers(0, 40), st.tuples(st.integers(0, 50), st.integers(0, 900))),
    st.integers(1, 1000),
)
def test_a_limit_is_shared_in_proportion_and_leaves_no_queue_out(
    queues: dict[int, tuple[int, int]], most: int
) -> None:
    start = {Queue("t", "b", number): low for number, (low, _) in queues.items()}
    bounds = {
        Queue("t", "b", number): Bounds(0, low + more) for number, (low, more) in queues.items()
    }
    found = advance(Positions(start), Seen(bounds))
    end = limited(found, most)
    taken = {queue: end[queue] - start[queue] for queue in found.waiting}
    total = sum(found.waiting.values())
    assert sum(taken.values()) == min(total, max(most, len(taken)))
    for queue, waiting in found.waiting.items():
        assert 1 <= taken[queue] <= waiting
        if total > most > len(taken):
            assert taken[queue] >= (most - len(taken)) * waiting / total - 1
    if total <= most:
        assert end == found.end


def test_a_batch_waits_for_enough_messages_or_for_long_enough() -> None:
    now = 0.0
    patience = Patience(10, 60.0, lambda: now)
    assert not patience.waits(0)
    assert patience.waits(3)
    now = 59.0
    assert patience.waits(9)
    now = 60.0
    assert not patience.waits(9)
    now = 61.0
    assert patience.waits(1)
    assert not patience.waits(10)


def test_nothing_seen_changes_nothing() -> None:
    assert advance(Positions({}), Seen({})) == Advance()


# ---- test positions ----
#
# Test positions of a stream: JSON, owner, and the ranges between two positions.


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
