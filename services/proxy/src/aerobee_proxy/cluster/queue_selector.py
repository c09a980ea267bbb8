"""Which message queue takes a message. Pure but for the turn that it counts.

Messages of one message group go to one queue whatever client sent them: SDKs hash groups each in
its own way, so the queue that a client names is not heeded. Groups are spread by a jump consistent
hash, so that of n queues a new one takes over about 1/n of the groups and none moves otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(slots=True)
class Turns:
    """Takes turns, topic by topic, for messages without a group."""

    _next: dict[str, int]

    def __init__(self) -> None:
        self._next = {}

    def take(self, topic: str, queues: Sequence[T]) -> T:
        """The next queue among `queues`, which must not be empty."""
        turn = self._next.get(topic)
        turn = (java_hash(topic) if turn is None else turn) % len(queues)
        self._next[topic] = turn + 1
        return queues[turn]

    def forget(self, topic: str) -> None:
        """Drops the turn of a topic that is not used any more."""
        self._next.pop(topic, None)
