"""Test the end of a batch: new and lost messages, unavailable brokers, limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_spark.reading.offsets import Bounds, Queue
from aerobee_spark.stream.admission import Advance, Patience, Seen, advance, limited
from aerobee_spark.stream.positions import Positions

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
