"""The half messages whose transactions are open, without their bodies. Knows no store, no clock."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass

from aerobee_broker.delivery.transaction.half_messages import Half
from aerobee_broker.store.messages import Appended

_SLACK = 1_024


@dataclass(slots=True, eq=False)
class Open:
    """A half message whose transaction is open."""

    half: Half
    # Where it stands now.
    queue_offset: int
    physical_offset: int
    size: int
    # No op record that matters to it, or to a half message behind it, lies below this offset.
    op_floor: int
    # Its end is in the log, and not known to be durable.
    ending: bool = False

    @property
    def name(self) -> int:
        return self.half.name

    @property
    def end_offset(self) -> int:
        return self.physical_offset + self.size


class OpenTransactions:
    def __init__(self) -> None:
        self.bytes = 0  # of the records of all of them
        self._by_name: dict[int, Open] = {}
        self._by_topic: Counter[str] = Counter()
        self._order: list[tuple[int, int]] = []  # heap of (queue offset, name), some out of date

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: int) -> Open | None:
        return self._by_name.get(name)

    def names(self) -> list[int]:
        """Of those whose end is not in the log."""
        return [one.name for one in self._by_name.values() if not one.ending]

    def by_topic(self) -> dict[str, int]:
        """Topic → half messages that are meant for it."""
        return {topic: count for topic, count in self._by_topic.items() if count}

    def add(self, half: Half, place: Appended, op_floor: int) -> Open:
        """In the place of another one of its name: that was never stored."""
        earlier = self._by_name.get(half.name)
        if earlier is not None:
            self.remove(earlier)
        one = Open(half, place.queue_offset, place.physical_offset, place.store_size, op_floor)
        self._by_name[half.name] = one
        self.bytes += one.size
        self._by_topic[half.topic] += 1
        heapq.heappush(self._order, (one.queue_offset, half.name))
        return one

    def remove(self, one: Open) -> None:
        """Another one of its name stays."""
        if self._by_name.get(one.name) is one:
            del self._by_name[one.name]
            self.bytes -= one.size
            self._by_topic[one.half.topic] -= 1
        if len(self._order) > 2 * len(self._by_name) + _SLACK:
            self._order = [(each.queue_offset, each.name) for each in self._by_name.values()]
            heapq.heapify(self._order)

    def moved(self, one: Open, place: Appended, op_floor: int) -> None:
        """Copied further on in the log; without effect when it has ended meanwhile."""
        if self._by_name.get(one.name) is one:
            self.bytes += place.store_size - one.size
            one.queue_offset, one.physical_offset = place.queue_offset, place.physical_offset
            one.size, one.op_floor = place.store_size, op_floor
            heapq.heappush(self._order, (one.queue_offset, one.name))

    def first(self) -> Open | None:
        """The one that stands first in the log."""
        order = self._order
        while order:
            queue_offset, name = order[0]
            one = self._by_name.get(name)
            if one is not None and one.queue_offset == queue_offset:
                return one
            heapq.heappop(order)
        return None

    def below(self, physical_offset: int, max_bytes: int) -> list[Open]:
        """Some of those that stand before a physical offset and are not ending: of `max_bytes`
        together, and the last one may go beyond."""
        first = self.first()
        if first is None or first.physical_offset >= physical_offset:
            return []
        size, found = 0, []
        for one in self._by_name.values():
            if one.physical_offset < physical_offset and not one.ending:
                found.append(one)
                size += one.size
                if size >= max_bytes:
                    break
        return found
