"""Which message queue takes a message. Pure, apart from the counters of the round robin.

Messages of one message group go to one queue, whichever client sent them. SDKs hash message groups
in different ways, so the queue that a client names is ignored. Groups are spread by a jump
consistent hash: one more queue takes over about 1/n of the groups, and no other group moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from aerobee_wire.tags import java_hash

T = TypeVar("T")

_MASK = 2**64 - 1
_MULTIPLIER = 2_862_933_555_777_941_757  # of the generator that the hash is defined with


def jump_hash(key: int, buckets: int) -> int:
    """The bucket, from 0, of a signed 64-bit key: jump consistent hash (Lamping, Veach 2014)."""
    state, bucket, jump = key & _MASK, 0, 0
    while jump < buckets:
        bucket = jump
        state = (state * _MULTIPLIER + 1) & _MASK
        jump = int((bucket + 1) * (2**31 / ((state >> 33) + 1)))
    return bucket


def queue_of_group(message_group: str, queues: Sequence[T]) -> T:
    """The queue of a message group among `queues`, which must be sorted and not empty."""
    return queues[jump_hash(java_hash(message_group), len(queues))]


class RoundRobin:
    """Spreads messages without a message group over the queues of their topic."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}  # by topic

    def next(self, topic: str, queues: Sequence[T]) -> T:
        """The next queue among `queues`, which must not be empty."""
        turn = self._next.get(topic)
        turn = (java_hash(topic) if turn is None else turn) % len(queues)
        self._next[topic] = turn + 1
        return queues[turn]
