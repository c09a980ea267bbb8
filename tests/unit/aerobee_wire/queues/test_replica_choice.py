"""From which replica a queue is pulled."""

from __future__ import annotations

from aerobee_wire.queues.replica_choice import AVOID_MS, MASTER_EVERY_MS, ReplicaChoice
from aerobee_wire.route import MASTER_ID

GROUP = (0, 1, 2)


def test_the_master_is_asked_first_then_the_slave_that_it_suggests() -> None:
    choice = ReplicaChoice()
    assert choice.choose(GROUP, 1_000_000) == MASTER_ID
    choice.answered(MASTER_ID, 2, 1_000_000)
    assert choice.choose(GROUP, 1_000_001) == 2
    choice.answered(2, 2, 1_000_002)
    assert choice.choose(GROUP, 1_000_003) == 2
    choice.answered(2, MASTER_ID, 1_000_004)
    assert choice.choose(GROUP, 1_000_005) == MASTER_ID


def test_a_suggested_slave_that_is_not_registered_is_not_asked() -> None:
    choice = ReplicaChoice()
    choice.answered(MASTER_ID, 7, 0)
    assert choice.choose(GROUP, 1) == MASTER_ID


def test_a_reader_of_a_slave_asks_the_master_now_and_then() -> None:
    """A reset of its group is known there alone."""
    choice = ReplicaChoice()
    choice.answered(MASTER_ID, 1, 0)
    assert choice.choose(GROUP, MASTER_EVERY_MS - 1) == 1
    assert choice.choose(GROUP, MASTER_EVERY_MS) == MASTER_ID
    choice.answered(MASTER_ID, 1, MASTER_EVERY_MS)
    assert choice.choose(GROUP, MASTER_EVERY_MS + 1) == 1


def test_a_slave_that_did_not_serve_is_avoided_for_a_while() -> None:
    choice = ReplicaChoice()
    choice.answered(MASTER_ID, 1, 0)
    choice.failed(1, 10)
    choice.answered(MASTER_ID, 1, 20)
    assert choice.choose(GROUP, 30) == MASTER_ID
    later = 10 + AVOID_MS
    choice.answered(MASTER_ID, 1, later)
    assert choice.choose(GROUP, later) == 1


def test_without_a_master_any_slave_is_read_that_serves() -> None:
    choice = ReplicaChoice()
    assert choice.choose((1, 2), 0) == 1
    choice.answered(1, MASTER_ID, 0)  # it is near the end, and there is nobody else
    assert choice.choose((1, 2), 1) == 1
    choice.failed(1, 2)
    assert choice.choose((1, 2), 3) == 2
    choice.failed(2, 4)
    assert choice.choose((1, 2), 5) is None
    assert choice.choose((), 5) is None


def test_a_failure_of_the_master_changes_nothing() -> None:
    choice = ReplicaChoice()
    choice.failed(MASTER_ID, 0)
    assert choice.choose(GROUP, 1) == MASTER_ID
