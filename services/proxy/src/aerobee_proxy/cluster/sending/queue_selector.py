"""The round robin of messages without a message group; `aerobee_wire.queues` chooses for those with
one. Pure, apart from its counters.
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
        """The next queue among `queues`, which must not be empty."""
        turn = self._next.get(topic)
        turn = (java_hash(topic) if turn is None else turn) % len(queues)
        self._next[topic] = turn + 1
        return queues[turn]
