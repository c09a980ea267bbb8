"""When a replica outside of the in-sync set stands for election, and what it says it gives up."""

from __future__ import annotations

from aerobee_broker.replication.election.coordinators.candidates import RANK_MS
from aerobee_broker.replication.election.coordinators.coordinator import (
    Candidacy,
    MasterKey,
    State,
    View,
)
from aerobee_broker.replication.election.unclean import UNCLEAN_WAIT_MS, UncleanElection
from support.etcd.coordinator_contract import replica_of

STATE = State(3, replica_of(1), frozenset({replica_of(1)}))  # alone in the set
MASTER = MasterKey(replica_of(1), "127.0.0.1:1", 3, "n")


def alive(number: int, end: int = 0) -> Candidacy:
    return Candidacy(replica_of(number), f"127.0.0.1:{number}", 3, end, 5)


def view_of(*alive: Candidacy, master: MasterKey | None = None) -> View:
    return View(STATE, 7, master, 8 if master else 0, {c.replica.replica_id: c for c in alive})


def test_it_waits_since_the_last_member_of_the_set_was_alive() -> None:
    election = UncleanElection(2)
    with_master, without = view_of(alive(1), alive(2), master=MASTER), view_of(alive(2))
    election.look(with_master, 0)
    assert election.wait_ms(with_master, 60_000) is None
    election.look(without, 60_000)
    assert election.wait_ms(without, 60_000) == UNCLEAN_WAIT_MS
    election.look(without, 69_000)
    assert election.wait_ms(without, 69_000) == UNCLEAN_WAIT_MS - 9_000
    election.look(view_of(alive(1), alive(2)), 69_500)  # it is back, and has no key yet
    election.look(without, 70_000)
    assert election.wait_ms(without, 70_000) == UNCLEAN_WAIT_MS


def test_a_member_that_is_alive_is_waited_for_however_long() -> None:
    election, view = UncleanElection(2), view_of(alive(1), alive(2))
    for now_ms in range(0, 10 * UNCLEAN_WAIT_MS, 1_000):
        election.look(view, now_ms)
        assert election.wait_ms(view, now_ms) is None


def test_of_two_outside_the_one_that_has_more_goes_first() -> None:
    view = view_of(alive(2, end=10), alive(3, end=20))
    waits = {}
    for number in (2, 3):
        election = UncleanElection(number)
        election.look(view, 0)
        waits[number] = election.wait_ms(view, 0)
    assert waits == {3: UNCLEAN_WAIT_MS, 2: UNCLEAN_WAIT_MS + RANK_MS}


def test_a_group_that_was_never_elected_in_gives_nothing_up() -> None:
    election, view = UncleanElection(2), View(candidacies={2: alive(2)})
    election.look(view, 0)
    assert election.wait_ms(view, 10 * UNCLEAN_WAIT_MS) is None


def test_what_is_given_up_is_what_the_set_was_last_heard_to_have() -> None:
    election = UncleanElection(2)
    assert election.given_up(100, 0) == (None, None)
    election.look(view_of(alive(1, end=150), alive(2, end=100), alive(3, end=900)), 1_000)
    assert election.given_up(100, 5_000) == (50, 4_000)
    election.heard_of(170, 2_000)
    assert election.given_up(100, 5_000) == (70, 3_000)
    assert election.given_up(200, 5_000) == (0, 3_000)
