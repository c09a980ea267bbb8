"""A message in flight for a consumer group: its lease and its states (`State`, `TRANSITIONS`).

Values only; `in_flight` contains the queue that changes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

# Lease ids start at the time of day times this, so that they grow even if the journal is lost.
LEASE_IDS_PER_MS = 1_024


class State(Enum):
    """The event that a message waits for."""

    VISIBLE = 0  # for its next delivery
    INVISIBLE = 1  # on lease: for an acknowledgement, or the end of its invisible duration
    ACKED = 2  # for an earlier message of its message group, which is not settled yet
    SETTLED = 3  # for no event: acknowledged, dead-lettered or no longer stored; not in flight


class Event(Enum):
    LEASE = "handed out: counts a delivery attempt"
    ACK = "acknowledged"
    ACK_BEHIND = "acknowledged, while an earlier message of its message group is not settled"
    FRONT_SETTLED = "every earlier message of its message group is settled"
    EXPIRE = "its invisible duration is over; an uncounted attempt is taken off again"
    GROUP_EXPIRED = "nothing of its message group is on lease, and an earlier message not settled"
    UNGROUPED = "its consumer group no longer consumes by message group"
    DROP = "dead-lettered, or no longer stored"
    RESET = "its consumer group was reset, or group or topic deleted"
    # Roll-backs, when the log did not accept the record:
    LEASE_ROLLED_BACK = "as if it had not been handed out"
    ACK_ROLLED_BACK = "on lease again, as before its acknowledgement or its dead letter"
    FRONT_ROLLED_BACK = "as before the earlier messages of its message group were settled"


VISIBLE, INVISIBLE, ACKED, SETTLED = State

# Pairs that are missing here do not occur.
TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    VISIBLE: {
        Event.LEASE: INVISIBLE,
        Event.DROP: SETTLED,
        Event.RESET: SETTLED,
    },
    INVISIBLE: {
        Event.ACK: SETTLED,
        Event.ACK_BEHIND: ACKED,
        Event.EXPIRE: VISIBLE,
        Event.DROP: SETTLED,
        Event.RESET: SETTLED,
        Event.LEASE_ROLLED_BACK: VISIBLE,
        Event.FRONT_ROLLED_BACK: INVISIBLE,  # its own acknowledgement was rolled back before
    },
    ACKED: {
        Event.FRONT_SETTLED: SETTLED,
        Event.GROUP_EXPIRED: VISIBLE,
        Event.UNGROUPED: VISIBLE,
        Event.RESET: SETTLED,
        Event.ACK_ROLLED_BACK: INVISIBLE,
    },
    SETTLED: {
        Event.ACK_ROLLED_BACK: INVISIBLE,
        Event.FRONT_ROLLED_BACK: ACKED,
    },
}


class Invisibility(NamedTuple):
    """The current invisible duration of a message."""

    deadline_ms: int  # monotonic clock
    expires_ms: int  # the same, since the epoch
    pop_time_ms: int  # the begin, since the epoch
    uncounted: bool  # the next delivery has the same attempt number as this one


@dataclass(slots=True, eq=False)
class InFlightMessage:
    """A message in flight. `attempt` 0: not delivered yet.

    The times are valid while the state is INVISIBLE; see Invisibility.
    """

    offset: int
    message_group: str | None = None
    attempt: int = 0
    lease_id: int = 0
    state: State = VISIBLE
    deadline_ms: int = 0
    expires_ms: int = 0
    pop_time_ms: int = 0
    uncounted: bool = False
    # The client that has, or had, the last lease; empty if unknown or from before the broker's
    # start.
    client_id: str = ""

    @property
    def is_leased(self) -> bool:
        """Return whether it is on lease: not settled, expired or void."""
        return self.state is INVISIBLE

    @property
    def has_failed(self) -> bool:
        """Return whether its first lease, as granted, failed to settle it.

        True if it was delivered again, is visible again, or its invisible duration was changed.
        """
        if self.attempt != 1 or self.state is not INVISIBLE:
            return self.attempt > 0
        return self.pop_time_ms > self.lease_id // LEASE_IDS_PER_MS

    @property
    def invisibility(self) -> Invisibility:
        return Invisibility(self.deadline_ms, self.expires_ms, self.pop_time_ms, self.uncounted)

    @invisibility.setter
    def invisibility(self, new: Invisibility) -> None:
        self.deadline_ms, self.expires_ms, self.pop_time_ms, self.uncounted = new


class Lease(NamedTuple):
    """The lease that all messages of one pop share; the fields as in InFlightMessage.

    `client_id`: the client that popped; empty if unknown.
    """

    lease_id: int
    deadline_ms: int
    expires_ms: int
    pop_time_ms: int
    client_id: str = ""
