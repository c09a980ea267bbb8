"""The table of the states of a transaction."""

from __future__ import annotations

from itertools import product

import pytest

from aerobee_broker.delivery.transaction.half_messages import HalfMessage
from aerobee_broker.delivery.transaction.open_transactions import (
    TRANSITIONS,
    Event,
    State,
    Transaction,
)

FINAL = {State.COMMITTED, State.ROLLED_BACK, State.GIVEN_UP, State.NOT_STORED}


def transaction(state: State = State.OPEN) -> Transaction:
    half = HalfMessage(0, "t", "id", "producers", 0, None, 0)
    return Transaction(half, 0, 0, 100, 0, state)


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([Event.COMMIT, Event.FLUSHED], State.COMMITTED),
        ([Event.ROLL_BACK, Event.FLUSHED], State.ROLLED_BACK),
        ([Event.GIVE_UP, Event.FLUSHED], State.GIVEN_UP),
        ([Event.COMMIT, Event.LOST, Event.ROLL_BACK, Event.FLUSHED], State.ROLLED_BACK),
        ([Event.GIVE_UP, Event.LOST, Event.COMMIT, Event.FLUSHED], State.COMMITTED),
        ([Event.FIND_TORN, Event.MEND, Event.FLUSHED], State.COMMITTED),
        ([Event.FIND_TORN, Event.MEND, Event.LOST, Event.MEND, Event.FLUSHED], State.COMMITTED),
        ([Event.HALF_LOST], State.NOT_STORED),
        ([Event.COMMIT, Event.HALF_LOST, Event.LOST], State.NOT_STORED),
        ([Event.COMMIT, Event.LOST, Event.HALF_LOST], State.NOT_STORED),
    ],
)
def test_the_ways_through_the_table(events: list[Event], state: State) -> None:
    walker = transaction()
    for event in events:
        walker.advance(event)
    assert walker.state is state


def test_an_event_that_a_state_does_not_have_is_refused() -> None:
    for state, event in product(State, Event):
        walker = transaction(state)
        if event in TRANSITIONS[state]:
            walker.advance(event)
            assert walker.state is TRANSITIONS[state][event]
        else:
            with pytest.raises(KeyError):
                walker.advance(event)
            assert walker.state is state


def test_every_state_can_be_reached_and_every_way_ends() -> None:
    reached, border = {State.OPEN}, [State.OPEN]
    while border:
        after = set(TRANSITIONS[border.pop()].values())
        border += after - reached
        reached |= after
    assert reached == set(State)
    for state in State:
        assert (set(TRANSITIONS[state].values()) <= {state}) is (state in FINAL)


def test_only_an_open_transaction_can_be_ended_by_its_producer() -> None:
    for state in State:
        ends = {Event.COMMIT, Event.ROLL_BACK} <= TRANSITIONS[state].keys()
        assert transaction(state).is_open is ends
