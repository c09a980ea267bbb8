"""What the clients of one consumer group were told of lite topics, and what must hold of it: each
lite topic comes in order, and what was acknowledged does not come again."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Sequence
from typing import Any

# A lite topic, and the place of a message in it, which rises.
Place = tuple[Any, int]


class LiteObserved:
    """`acked`: acknowledged. `settled`: with all before it, and when. `in_doubt`: how many
    acknowledgements of it are not answered."""

    def __init__(self) -> None:
        self.delivered: defaultdict[Hashable, set[int]] = defaultdict(set)
        self.acked: set[Place] = set()
        self.settled: dict[Place, float] = {}
        self.in_doubt: Counter[Place] = Counter()

    def copy(self) -> LiteObserved:
        other = LiteObserved()
        for line, delivered in self.delivered.items():
            other.delivered[line] = delivered.copy()
        other.acked = self.acked.copy()
        other.settled = self.settled.copy()
        other.in_doubt = self.in_doubt.copy()
        return other

    def received(self, place: Place, began: float, *, late: bool = False) -> None:
        """By a receive that began then. `late`: it has perhaps expired while its answer was on its
        way, so that what follows may have come before."""
        line, at = place
        settled = self.settled.get(place)
        assert settled is None or settled >= began, (
            f"{line} {at} was acknowledged at {settled}, and came again to a receive of {began}"
        )
        delivered = self.delivered[line]
        behind = max(delivered, default=-1)
        assert late or at in delivered or at > behind, f"{line} {at} came after {behind}"
        delivered.add(at)

    def acknowledging(self, places: Collection[Place]) -> None:
        self.in_doubt.update(places)

    def answered(self, places: Collection[Place]) -> None:
        """The acknowledgement of these."""
        self.in_doubt -= Counter(places)

    def acknowledged(self, batch: Sequence[Place], acked: Collection[Place], now: float) -> None:
        """Those of a batch were. What was so behind a message that was not may come again with it,
        or is settled with it."""
        self.acked.update(acked)
        held: set[Hashable] = set()
        for place in batch:
            if place not in acked:
                held.add(place[0])
            elif place[0] not in held:
                self.settled.setdefault(place, now)
