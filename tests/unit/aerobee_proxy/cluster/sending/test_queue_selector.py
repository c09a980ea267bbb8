"""The choice of a queue: message groups by hash, other messages by round robin."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_proxy.cluster.sending.queue_selector import RoundRobin, jump_hash, queue_of_group

keys = st.integers(-(2**63), 2**63 - 1)


@given(keys, st.integers(1, 1_000))
def test_hash_lies_within_the_buckets(key: int, buckets: int) -> None:
    assert 0 <= jump_hash(key, buckets) < buckets


@given(keys, st.integers(1, 200))
def test_new_bucket_takes_keys_and_moves_no_other(key: int, buckets: int) -> None:
    before, after = jump_hash(key, buckets), jump_hash(key, buckets + 1)
    assert after in (before, buckets)


def test_keys_are_spread_evenly() -> None:
    counts = Counter(jump_hash(key, 8) for key in range(8_000))
    assert set(counts) == set(range(8))
    assert all(850 < count < 1_150 for count in counts.values())


@pytest.mark.parametrize(
    ("key", "buckets", "bucket"),
    [(0, 1, 0), (0, 100, 0), (1, 100, 55), (-1, 100, 92), (2**63 - 1, 1_000, 972)],
)
def test_hash_is_stable(key: int, buckets: int, bucket: int) -> None:
    """Another hash would move every message group at an upgrade, and break its order once."""
    assert jump_hash(key, buckets) == bucket


def test_message_group_stays_on_its_queue() -> None:
    queues = [("broker-a", n) for n in range(4)] + [("broker-b", n) for n in range(4)]
    first = {group: queue_of_group(group, queues) for group in map(str, range(50))}
    assert first == {group: queue_of_group(group, queues) for group in map(str, range(50))}
    assert len(set(first.values())) > 4


def test_round_robin_by_topic() -> None:
    round_robin, queues = RoundRobin(), ["q0", "q1", "q2"]
    taken = [round_robin.next("a", queues) for _ in range(6)]
    assert sorted(taken[:3]) == queues and taken[3:] == taken[:3]
    round_robin.next("b", queues)
    assert round_robin.next("a", queues) == taken[0]


def test_round_robin_on_a_topic_that_shrinks() -> None:
    round_robin = RoundRobin()
    for _ in range(5):
        round_robin.next("a", ["q0", "q1", "q2"])
    assert round_robin.next("a", ["q0"]) == "q0"
