"""The queue of a message group and of a priority: the same one for every sender, now and later."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_wire.queues.choice import (
    check_message_group,
    jump_hash,
    queue_of_group,
    queues_of_priority,
)
from aerobee_wire.status import Code
from support.codes import raises_code

keys = st.integers(-(2**63), 2**63 - 1)


class Queue(NamedTuple):
    broker_name: str
    queue_id: int


def of(**counts: int) -> list[Queue]:
    return [Queue(name, queue_id) for name, count in counts.items() for queue_id in range(count)]


# ---- the hash ----


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


@pytest.mark.parametrize(
    ("message_group", "queues", "expected"),
    [
        ("0", of(a=1), Queue("a", 0)),
        ("order-1", of(a=4), Queue("a", 3)),
        ("order-2", of(a=4), Queue("a", 2)),
        ("order-1", of(a=4, b=4), Queue("a", 3)),
        ("Bestellung-ä", of(a=4, b=4), Queue("b", 2)),
        ("𝄞", of(a=4, b=4), Queue("b", 3)),
        ("g" * 63, of(a=8, b=8, c=8), Queue("c", 5)),
    ],
)
def test_a_message_group_has_its_queue(
    message_group: str, queues: list[Queue], expected: Queue
) -> None:
    """Vectors: what version 0.1 of the proxy chose."""
    assert queue_of_group(message_group, queues) == expected


@given(st.text(min_size=1, max_size=20), st.integers(1, 16))
def test_a_further_queue_moves_a_message_group_there_or_not_at_all(
    message_group: str, count: int
) -> None:
    before = queue_of_group(message_group, of(a=count))
    after = queue_of_group(message_group, of(a=count + 1))
    assert after in (before, Queue("a", count))


# ---- priorities ----


@pytest.mark.parametrize(
    ("priority", "expected"),
    [(0, [0, 0]), (1, [1, 1]), (2, [2, 1]), (9, [2, 1]), (2**31 - 1, [2, 1])],
)
def test_priority_has_a_queue_of_each_broker(priority: int, expected: list[int]) -> None:
    found = queues_of_priority(of(a=3, b=2), priority)
    assert [queue.broker_name for queue in found] == ["a", "b"]
    assert [queue.queue_id for queue in found] == expected


# ---- names of message groups ----


@pytest.mark.parametrize("name", ["g" * 64, "é" * 32, "", " \t", "a\nb", "a\x85b"])
def test_illegal_message_group_is_refused(name: str) -> None:
    with raises_code(Code.MESSAGE_ILLEGAL):
        check_message_group(name)


@pytest.mark.parametrize("name", ["g" * 63, "order 7", "Bestellung-ä"])
def test_legal_message_group(name: str) -> None:
    check_message_group(name)
