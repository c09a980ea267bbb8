"""The state of a message in a consumer group, with what is known about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from aerobee_broker.delivery.retry.policy import Failure


class State(Enum):
    """A state of a message in a consumer group. If it is not known, it is UNKNOWN."""

    NOT_YET = "earlier messages of its queue come first"
    READY = "the next receive may deliver it"
    ON_LEASE = "a client has it, and has not settled it"
    RETRYING = "it failed, and is delivered again"
    CONSUMED = "it was acknowledged, or the group's offset passed it"
    FILTERED = "the subscription of the group does not let it through"
    SKIPPED = "a reset moved the group over it, or the group began after it"
    DEAD_LETTERED = "it is in the dead-letter topic of the group"
    EXPIRED = "retention deleted it before the group had it"
    UNKNOWN = "the broker has no evidence"


@dataclass(frozen=True, slots=True)
class Place:
    topic: str
    queue_id: int
    queue_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """The state of a message in one group. Times are milliseconds since the epoch, 0 if unknown.

    Attributes:
        reason: How the broker knows the state, or why it does not.
        client_id: The client that has, consumed or skipped the message; "" if it is unknown.
        since_ms: The earliest time at which the message may have got into the state.
        at_ms: The latest time at which it may have got into the state.
        until_ms: The end of the lease, or the time of the next delivery.
        attempt: The number of the last delivery; of the next one if the message is RETRYING.
        ahead: The number of messages of its queue that come first.
        place: The place of the retry or the dead letter.
        failure: The reason of the last failure.
    """

    consumer_group: str
    state: State
    reason: str = ""
    client_id: str = ""
    since_ms: int = 0
    at_ms: int = 0
    until_ms: int = 0
    attempt: int = 0
    ahead: int = 0
    place: Place | None = None
    failure: Failure = field(default_factory=Failure)
