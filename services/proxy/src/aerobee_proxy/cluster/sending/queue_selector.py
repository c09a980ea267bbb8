"""Choose queues in turn for messages without a message group.

For messages with a message group, `aerobee_wire.queues` chooses. Apart from its counters, this
module is pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from aerobee_wire.tags import java_hash

T = TypeVar("T")


class RoundRobin:
    """Spreads messages without a message group over the queues of their topic."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}  # by topic

    def next(self, topic: str, queues: Sequence[T]) -> T:
        """Return the next queue of `queues`, which must not be empty."""
        turn = self._next.get(topic)
        turn = (java_hash(topic) if turn is None else turn) % len(queues)
        self._next[topic] = turn + 1
        return queues[turn]
