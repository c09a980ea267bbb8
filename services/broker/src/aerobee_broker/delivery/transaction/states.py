"""The state table of a transaction; it starts when its half message is appended.

    OPEN ──COMMIT───▶ COMMITTING ───FLUSHED─▶ COMMITTED
    OPEN ──ROLL_BACK▶ ROLLING_BACK ─FLUSHED─▶ ROLLED_BACK
    OPEN ──GIVE_UP──▶ GIVING_UP ────FLUSHED─▶ GIVEN_UP
         ◀───LOST──── each of the three

    OPEN ──FIND_TORN▶ TORN ──MEND─▶ MENDING ─FLUSHED─▶ COMMITTED
                           ◀─LOST──

    OPEN, COMMITTING, ROLLING_BACK, GIVING_UP ──HALF_LOST─▶ NOT_STORED

A transaction ends with an op record in the log, and with the message if it is committed. LOST: that
append was rolled back. HALF_LOST: the append of the half message was rolled back. FIND_TORN: a
start has found the committed message without its op record, because a crash has torn their append.

A check-back does not change the state: the producer is asked about an OPEN transaction, which stays
OPEN (`HalfMessage.checks` counts the checks).
"""

from __future__ import annotations

from enum import Enum, auto


class State(Enum):
    OPEN = auto()
    # The end is in the log, but not durable yet.
    COMMITTING = auto()
    ROLLING_BACK = auto()
    GIVING_UP = auto()
    # Committed before a crash; the op record is missing, or not durable yet.
    TORN = auto()
    MENDING = auto()
    # Final: the transaction is forgotten.
    COMMITTED = auto()
    ROLLED_BACK = auto()
    GIVEN_UP = auto()
    NOT_STORED = auto()


class Event(Enum):
    COMMIT = auto()
    ROLL_BACK = auto()
    GIVE_UP = auto()
    FIND_TORN = auto()
    MEND = auto()
    FLUSHED = auto()
    LOST = auto()
    HALF_LOST = auto()


TRANSITIONS: dict[State, dict[Event, State]] = {
    State.OPEN: {
        Event.COMMIT: State.COMMITTING,
        Event.ROLL_BACK: State.ROLLING_BACK,
        Event.GIVE_UP: State.GIVING_UP,
        Event.FIND_TORN: State.TORN,
        Event.HALF_LOST: State.NOT_STORED,
    },
    State.COMMITTING: {
        Event.FLUSHED: State.COMMITTED,
        Event.LOST: State.OPEN,
        Event.HALF_LOST: State.NOT_STORED,
    },
    State.ROLLING_BACK: {
        Event.FLUSHED: State.ROLLED_BACK,
        Event.LOST: State.OPEN,
        Event.HALF_LOST: State.NOT_STORED,
    },
    State.GIVING_UP: {
        Event.FLUSHED: State.GIVEN_UP,
        Event.LOST: State.OPEN,
        Event.HALF_LOST: State.NOT_STORED,
    },
    State.TORN: {Event.MEND: State.MENDING},
    State.MENDING: {Event.FLUSHED: State.COMMITTED, Event.LOST: State.TORN},
    State.COMMITTED: {},
    State.ROLLED_BACK: {},
    State.GIVEN_UP: {},
    # Both appends were rolled back, and HALF_LOST came first.
    State.NOT_STORED: {Event.LOST: State.NOT_STORED},
}
