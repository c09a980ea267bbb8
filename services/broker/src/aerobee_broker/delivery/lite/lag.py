"""How far behind groups are in parents of lite topics: what waits for them, consumed or not yet
received, over all lite topics of a queue.

A group has an offset in each lite topic, so its lag in a queue is a sum over these. It is counted
when somebody asks, in slices, between which the loop serves others: of 100,000 lite topics in a
quarter of a second where most are consumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from aerobee_broker.delivery.lite.lines import LiteLines
from aerobee_broker.delivery.lite.positions import LitePositions
from aerobee_broker.delivery.pull.offsets import OffsetQueries, Progress
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_wire.queues.lite import BIND_ATTRIBUTE

SLICE = 200  # lite topics between two turns of the loop: a few milliseconds


@dataclass(frozen=True, slots=True)
class LiteLag:
    lines: LiteLines
    positions: LitePositions
    groups: GroupRegistry

    def parent_of(self, consumer_group: str) -> str | None:
        """The topic of the type LITE that a group is bound to; None: none that exists here."""
        group = self.groups.table.get(consumer_group)
        parent = group.attributes.get(BIND_ATTRIBUTE) if group is not None else None
        return parent if parent in self.lines.parents else None

    def bound(self) -> Iterator[tuple[str, str]]:
        """Each group that is bound to a parent, and this."""
        for group in list(self.groups.table.all()):
            parent = self.parent_of(group.consumer_group)
            if parent is not None:
                yield group.consumer_group, parent

    def size(self, parent: str) -> int:
        """Lite topics, as far as `by_queue` looks at them."""
        return sum(len(queue) for _, queue in self.lines.lite_queues(parent))

    async def by_queue(self, consumer_group: str, parent: str) -> dict[int, int]:
        """Queue id → messages of lite topics that the group has not settled, of queues that have
        lite topics. Raises StoreReadError, OSError."""
        lags = {}
        for queue_id, queue in list(self.lines.lite_queues(parent)):
            codes, lag = queue.codes(), 0
            for begin in range(0, len(codes), SLICE):
                await asyncio.sleep(0)
                if dict(self.lines.lite_queues(parent)).get(queue_id) is not queue:
                    return {}  # the parent was deleted meanwhile
                for code in codes[begin : begin + SLICE]:
                    last = queue.last(code)
                    position = self.positions.position(consumer_group, parent, queue_id, code) or 0
                    if last is not None and last.queue_offset >= position:
                        lag += queue.count_from(code, position)
            lags[queue_id] = lag
        return lags

    async def total(self, consumer_group: str, parent: str) -> int:
        """As `by_queue`, of all queues."""
        return sum((await self.by_queue(consumer_group, parent)).values())


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far a group is in each queue: by its offset there; in a parent by its lag."""

    queries: OffsetQueries
    lite_lag: LiteLag

    async def of(self, consumer_group: str, topic: str = "") -> list[Progress]:
        """As OffsetQueries.progress, and the parent that the group is bound to. Raises as that, and
        what a read raises."""
        found = self.queries.progress(consumer_group, topic)
        parent = self.lite_lag.parent_of(consumer_group)
        if parent is None or topic not in {"", parent}:
            return found
        lags = await self.lite_lag.by_queue(consumer_group, parent)
        bounds = self.queries.bounds(parent, (), with_timestamps=False)
        return [each for each in found if each.topic != parent] + [
            Progress(
                parent,
                queue.queue_id,
                queue.min_offset,
                queue.max_offset,
                None,
                0,
                lag=lags.get(queue.queue_id, 0),
            )
            for queue in bounds.queues
        ]
