"""Choose the message queue for a message group or a priority.

This module does no I/O.

Proxy and client make the same choice, so that all senders use the same queue for a message group.

Message groups are distributed by a jump consistent hash of Java's string hash. A new queue takes
over about 1/n of the groups, and the other groups stay. SDKs use other hashes, so the queue that an
SDK names is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol, TypeVar

from aerobee_wire.status import Code, MqError
from aerobee_wire.tags import java_hash

MAX_MESSAGE_GROUP_BYTES = 63

_MASK = 2**64 - 1
_MULTIPLIER = 2_862_933_555_777_941_757  # of the generator in the definition of the hash


class Queue(Protocol):
    """A message queue of a topic."""

    @property
    def broker_name(self) -> str: ...

    @property
    def queue_id(self) -> int: ...


Q = TypeVar("Q", bound=Queue)
T = TypeVar("T")


def jump_hash(key: int, buckets: int) -> int:
    """Return the bucket of a signed 64-bit key: a number from 0 to `buckets` - 1.

    The algorithm is the jump consistent hash (Lamping, Veach 2014).
    """
    state, bucket, jump = key & _MASK, 0, 0
    while jump < buckets:
        bucket = jump
        state = (state * _MULTIPLIER + 1) & _MASK
        jump = int((bucket + 1) * (2**31 / ((state >> 33) + 1)))
    return bucket


@lru_cache(maxsize=8192)  # a message group has many messages
def _index_of_group(message_group: str, queue_count: int) -> int:
    return jump_hash(java_hash(message_group), queue_count)


def queue_of_group(message_group: str, queues: Sequence[T]) -> T:
    """Return the queue of a message group. `queues` must be sorted and not empty."""
    return queues[_index_of_group(message_group, len(queues))]


def queues_of_priority(queues: Sequence[Q], priority: int) -> list[Q]:
    """Return the queue of each broker for a priority.

    Queue 0 has the lowest priority. The last queue takes all priorities that are equal to or above
    its number. `queues` must be sorted.
    """
    by_broker: dict[str, list[Q]] = {}
    for queue in queues:
        by_broker.setdefault(queue.broker_name, []).append(queue)
    return [own[min(priority, len(own) - 1)] for own in by_broker.values()]


def check_message_group(message_group: str) -> None:
    """Check a message group by the rules of the public protocol.

    Raises MqError with the code MESSAGE_ILLEGAL.
    """
    size = len(message_group.encode("utf-8", "surrogatepass"))
    if size > MAX_MESSAGE_GROUP_BYTES or not message_group.strip() or _has_control(message_group):
        raise MqError(
            Code.MESSAGE_ILLEGAL,
            f"the message group {message_group[:64]!r} of {size} bytes is illegal: give at most "
            f"{MAX_MESSAGE_GROUP_BYTES} bytes, not blank, without control characters",
            about="message_group",
        )


def _has_control(text: str) -> bool:
    return any(character < " " or "\x7f" <= character <= "\x9f" for character in text)
