"""Which replica stands for election, and which goes first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aerobee_broker.replication.election.coordinators.candidates import (
    FIRST_WAIT_MS,
    RANK_MS,
    Decision,
    Standing,
    decide,
    rank,
)
from aerobee_broker.replication.election.coordinators.coordinator import (
    Candidacy,
    MasterKey,
    State,
    View,
)
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.log.epochs import NOTHING, Reach
from support.etcd.coordinator_contract import replica_of

SET_WAIT_MS = 7_000
VERSION = 9


def alive(
    number: int, *, epoch: int = 0, end: int = 0, priority: int = 5, whole: bool = True
) -> Candidacy:
    address = f"127.0.0.1:{number}"
    return Candidacy(replica_of(number), address, epoch, end, priority, whole=whole)


def view_of(
    *alive: Candidacy,
    in_sync: tuple[int, ...] = (),
    master: int | None = None,
    floor: Reach = NOTHING,
) -> View:
    """`in_sync` empty: the coordinator has no state."""
    members = frozenset(replica_of(number) for number in in_sync)
    key = None if master is None else MasterKey(replica_of(master), "127.0.0.1:0", 3, "n")
    state = State(3, replica_of(in_sync[0]), members, VERSION, floor) if in_sync else None
    return View(
        state=state,
        master=key,
        candidacies={each.replica.replica_id: each for each in alive},
    )


def decision(view: View, me: Candidacy, *, is_current: bool = True, copies: int = 3) -> Decision:
    return decide(view, Standing(me, is_current, copies, SET_WAIT_MS))


def wait_ms(view: View, me: Candidacy, *, is_current: bool = True, copies: int = 3) -> int | None:
    return decision(view, me, is_current=is_current, copies=copies).wait_ms


# ---- members that were current ----


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
    assert (wait_ms(view, first), wait_ms(view, second)) == (0, RANK_MS)


def test_an_empty_disk_under_an_old_number_is_not_in_sync() -> None:
    view = view_of(in_sync=(1, 2))
    assert view.in_sync_ids(replica_of(1)) == view.in_sync_ids(replica_of(3)) == {1, 2}
    assert view.in_sync_ids(Replica(1, "another store")) == {2}
    assert view_of().in_sync_ids(replica_of(1)) == set()


def test_a_member_does_not_wait_for_the_lost_master_or_for_replicas_out_of_sync() -> None:
    gone, outside, mine = alive(1, end=90), alive(3, end=90), alive(2, end=10)
    view = view_of(gone, outside, mine, in_sync=(1, 2), master=1)
    assert rank(view, mine.replica) == 0


def test_a_replica_out_of_sync_does_not_stand() -> None:
    view = view_of(alive(1), alive(2), in_sync=(1,))
    assert wait_ms(view, alive(2)) is None
    other_disk = replace(alive(1), replica=Replica(1, "of an empty disk"))
    assert wait_ms(view, other_disk) is None


# ---- members whose process has started since ----


def test_members_that_were_all_gone_wait_for_each_other() -> None:
    mine, other = alive(1, epoch=3, end=20), alive(2, epoch=3, end=20)
    alone = view_of(mine, in_sync=(1, 2))
    assert wait_ms(alone, mine, is_current=False) == SET_WAIT_MS
    assert "replica 2" in decision(alone, mine, is_current=False).reason
    both = view_of(mine, other, in_sync=(1, 2))
    assert wait_ms(both, mine, is_current=False) == 0


def test_of_members_that_were_all_gone_the_furthest_is_elected() -> None:
    mine, other = alive(1, epoch=3, end=10), alive(2, epoch=3, end=20)
    view = view_of(mine, other, in_sync=(1, 2))
    assert wait_ms(view, other, is_current=False) == 0
    waiting = decision(view, mine, is_current=False)
    assert waiting.wait_ms is None and "replica 2" in waiting.reason
    damaged = view_of(mine, replace(other, whole=False), in_sync=(1, 2))
    assert wait_ms(damaged, mine, is_current=False) == RANK_MS


def test_a_member_whose_disk_is_a_new_one_is_not_waited_for() -> None:
    mine = alive(1, epoch=3, end=10)
    emptied = replace(alive(2), replica=Replica(2, "of an empty disk"))
    view = view_of(mine, emptied, in_sync=(1, 2))
    assert wait_ms(view, mine, is_current=False) == 0


def test_a_log_that_ends_before_the_floor_of_the_set_is_an_older_copy() -> None:
    old, mine = alive(1, epoch=3, end=19), alive(2, epoch=3, end=20)
    view = view_of(old, mine, in_sync=(1, 2), floor=Reach(3, 20))
    assert wait_ms(view, old) is None
    assert wait_ms(view, mine) == 0
    longer_but_older = alive(1, epoch=2, end=90)
    assert wait_ms(view, longer_but_older) is None


# ---- damage ----


def test_a_damaged_member_does_not_stand_while_a_whole_one_exists() -> None:
    damaged, whole = alive(1, epoch=3, end=20, whole=False), alive(2, epoch=3, end=20)
    assert wait_ms(view_of(damaged, whole, in_sync=(1, 2)), damaged) is None
    assert wait_ms(view_of(damaged, in_sync=(1, 2)), damaged) is None
    both = view_of(damaged, whole, in_sync=(1, 2))
    waits = wait_ms(both, whole, is_current=False)
    assert waits is not None and waits < SET_WAIT_MS


def test_damaged_members_stand_if_all_are_damaged() -> None:
    one, two = alive(1, end=20, whole=False), alive(2, end=20, whole=False)
    view = view_of(one, two, in_sync=(1, 2))
    assert wait_ms(view, one, is_current=False) == SET_WAIT_MS


# ---- a state that is lost ----


def test_a_log_with_an_epoch_does_not_begin_a_new_group() -> None:
    mine, other, third = (alive(number, epoch=3, end=20) for number in (1, 2, 3))
    assert wait_ms(view_of(mine), mine) is None
    assert wait_ms(view_of(mine, other), mine) is None
    assert wait_ms(view_of(mine, other, third), mine) == 0
    assert "start all 3 replicas" in decision(view_of(mine), mine).reason


def test_without_a_state_the_furthest_of_all_copies_is_elected() -> None:
    mine, other = alive(1, epoch=3, end=20), alive(2, epoch=3, end=10)
    view = view_of(mine, other, alive(3))
    assert wait_ms(view, mine) == 0
    assert wait_ms(view, other) is None
    assert wait_ms(view, alive(3)) is None


def test_without_a_state_an_empty_replica_does_not_begin_beside_one_that_has_an_epoch() -> None:
    view = view_of(alive(1), alive(2, epoch=3, end=20))
    assert wait_ms(view, alive(1), copies=2) is None
    assert wait_ms(view, alive(2, epoch=3, end=20), copies=2) == 0


def test_without_a_state_and_the_number_of_copies_an_operator_decides() -> None:
    mine = alive(1, epoch=3, end=20)
    assert wait_ms(view_of(mine), mine, copies=1) is None
    assert "totalReplicas" in decision(view_of(mine), mine, copies=1).reason


def test_an_older_state_than_a_replica_has_read_is_not_trusted() -> None:
    knows = replace(alive(1, epoch=3, end=20), seen=VERSION + 1)
    mine = alive(2, epoch=3, end=10)
    view = view_of(knows, mine, in_sync=(1, 2))
    assert view.trusted_state(0) is None
    assert wait_ms(view, mine) is None
    assert not view.may_be_elected(mine)
    assert wait_ms(view_of(knows, mine, alive(3), in_sync=(1, 2)), knows) == 0


def test_a_damaged_log_is_not_elected_without_a_state() -> None:
    damaged, whole = alive(1, epoch=3, end=30, whole=False), alive(2, epoch=3, end=20)
    view = view_of(damaged, whole, alive(3))
    assert wait_ms(view, damaged) is None
    assert wait_ms(view, whole) == 0


def test_an_epoch_that_any_replica_has_heard_of_is_not_given_again() -> None:
    view = view_of(replace(alive(1), heard=40), alive(2, epoch=7), in_sync=(1,))
    assert view.next_epoch(alive(3)) == 41
    assert view.next_epoch(replace(alive(3), heard=50)) == 51
    assert view.next_version(alive(3)) == VERSION + 1


def test_an_epoch_that_the_group_cannot_have_reached_counts_as_unknown() -> None:
    view = view_of(replace(alive(1), heard=2**63 - 1), alive(2, epoch=7), in_sync=(2,))
    assert view.next_epoch(alive(2, epoch=7)) == 8


# ---- new groups ----


def test_in_a_new_group_empty_replicas_wait_for_one_that_may_have_messages() -> None:
    alone = view_of(alive(2))
    assert wait_ms(alone, alive(2)) == FIRST_WAIT_MS
    both = view_of(alive(1), alive(2))
    assert wait_ms(both, alive(2)) == FIRST_WAIT_MS + RANK_MS
    everybody = view_of(alive(1), alive(2), alive(3))
    assert wait_ms(everybody, alive(1)) == 0
    assert wait_ms(everybody, alive(2)) == RANK_MS


def test_in_a_new_group_the_only_one_with_messages_is_first() -> None:
    view = view_of(alive(1), alive(2, end=10))
    assert wait_ms(view, alive(2, end=10)) == 0
    assert wait_ms(view, alive(1)) is None


def test_in_a_new_group_of_two_with_messages_a_person_decides() -> None:
    view = view_of(alive(1, end=20), alive(2, end=10))
    assert wait_ms(view, alive(1, end=20), copies=2) is None
    assert wait_ms(view, alive(2, end=10), copies=2) is None


def test_a_replica_that_is_not_announced_yet_does_not_begin_a_group() -> None:
    assert wait_ms(view_of(alive(1)), alive(2), copies=2) is None
