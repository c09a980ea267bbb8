"""Who stands for election, and who goes first."""

from __future__ import annotations

import pytest

from aerobee_broker.replication.coordinators.candidates import (
    FIRST_WAIT_MS,
    RANK_MS,
    rank,
    wait_before_election,
)
from aerobee_broker.replication.coordinators.coordinator import (
    Candidacy,
    MasterKey,
    State,
    View,
)
from aerobee_broker.replication.identity import Replica
from support.etcd.coordinator_contract import replica_of


def alive(number: int, *, epoch: int = 0, end: int = 0, priority: int = 5) -> Candidacy:
    return Candidacy(replica_of(number), f"127.0.0.1:{number}", epoch, end, priority)


def view_of(*alive: Candidacy, in_sync: tuple[int, ...] = (), master: int | None = None) -> View:
    """`in_sync` empty: a group that was never elected in."""
    members = frozenset(replica_of(number) for number in in_sync)
    key = None if master is None else MasterKey(replica_of(master), "127.0.0.1:0", 3, "n")
    return View(
        state=State(3, replica_of(in_sync[0]), members) if in_sync else None,
        master=key,
        candidacies={each.replica.replica_id: each for each in alive},
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (alive(2, epoch=4, end=10), alive(1, epoch=3, end=20)),
        (alive(2, epoch=3, end=20), alive(1, epoch=3, end=10)),
        (alive(2, epoch=3, end=20, priority=1), alive(1, epoch=3, end=20, priority=2)),
        (alive(1, epoch=3, end=20), alive(2, epoch=3, end=20)),
    ],
)
def test_the_newest_epoch_then_the_longest_log_then_the_priority_goes_first(
    first: Candidacy, second: Candidacy
) -> None:
    view = view_of(first, second, in_sync=(1, 2))
    assert (rank(view, first.replica), rank(view, second.replica)) == (0, 1)
    assert wait_before_election(view, second.replica, 3) == RANK_MS


def test_an_empty_disk_under_an_old_number_is_not_in_sync() -> None:
    view = view_of(in_sync=(1, 2))
    assert view.in_sync_ids(replica_of(1)) == view.in_sync_ids(replica_of(3)) == {1, 2}
    assert view.in_sync_ids(Replica(1, "another store")) == {2}
    assert view_of().in_sync_ids(replica_of(1)) == set()


def test_nobody_waits_for_the_master_that_is_gone_or_for_who_may_not_be_elected() -> None:
    gone, outside, mine = alive(1, end=90), alive(3, end=90), alive(2, end=10)
    view = view_of(gone, outside, mine, in_sync=(1, 2), master=1)
    assert rank(view, mine.replica) == 0


def test_who_is_not_in_the_set_does_not_stand() -> None:
    view = view_of(alive(1), alive(2), in_sync=(1,))
    assert wait_before_election(view, replica_of(2), 3) is None
    assert wait_before_election(view, Replica(1, "of an empty disk"), 3) is None


def test_in_a_new_group_empty_replicas_wait_for_one_that_may_have_messages() -> None:
    alone = view_of(alive(2))
    assert wait_before_election(alone, replica_of(2), 3) == FIRST_WAIT_MS
    both = view_of(alive(1), alive(2))
    assert wait_before_election(both, replica_of(2), 3) == FIRST_WAIT_MS + RANK_MS
    everybody = view_of(alive(1), alive(2), alive(3))
    assert wait_before_election(everybody, replica_of(1), 3) == 0
    assert wait_before_election(everybody, replica_of(2), 3) == RANK_MS


def test_in_a_new_group_the_only_one_with_messages_is_first() -> None:
    view = view_of(alive(1), alive(2, end=10))
    assert wait_before_election(view, replica_of(2), 3) == 0
    assert wait_before_election(view, replica_of(1), 3) is None


def test_in_a_new_group_of_two_with_messages_a_person_decides() -> None:
    view = view_of(alive(1, end=20), alive(2, end=10))
    assert wait_before_election(view, replica_of(1), 2) is None
    assert wait_before_election(view, replica_of(2), 2) is None


def test_who_is_not_announced_yet_does_not_begin_a_group() -> None:
    assert wait_before_election(view_of(alive(1)), replica_of(2), 2) is None
