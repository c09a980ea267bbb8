"""The lag of groups in parents: messages not settled yet, over all lite topics of a queue.

A group has an offset in each lite topic, so its lag in a queue is a sum over these. It is counted
on request, in slices that yield to the event loop. Counting 100,000 lite topics takes a quarter of
a second if most are consumed.
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

SLICE = 200  # lite topics between two turns of the event loop: a few milliseconds


@dataclass(frozen=True, slots=True)
class LiteLag:
    lines: LiteLines
    positions: LitePositions
    groups: GroupRegistry

    def parent_of(self, consumer_group: str) -> str | None:
        """Return the topic of type LITE that a group is bound to; None if it is not here."""
        group = self.groups.table.get(consumer_group)
        parent = group.attributes.get(BIND_ATTRIBUTE) if group is not None else None
        return parent if parent in self.lines.parents else None

    def bound(self) -> Iterator[tuple[str, str]]:
        """Yield each group that is bound to a parent, and the parent."""
        for group in list(self.groups.table.all()):
            parent = self.parent_of(group.consumer_group)
            if parent is not None:
                yield group.consumer_group, parent

    def size(self, parent: str) -> int:
        """Return the number of lite topics that `by_queue` would visit."""
        return sum(len(queue) for _, queue in self.lines.lite_queues(parent))

    async def by_queue(self, consumer_group: str, parent: str) -> dict[int, int]:
        """Return queue id → number of messages of lite topics that the group has not settled.

        Contains the queues that have lite topics. Raises StoreReadError, OSError.
        """
        lags = {}
        for queue_id, queue in list(self.lines.lite_queues(parent)):
            codes, lag = queue.codes(), 0
            for begin in range(0, len(codes), SLICE):
                await asyncio.sleep(0)
                if dict(self.lines.lite_queues(parent)).get(queue_id) is not queue:
                    return {}  # the parent was deleted in the meantime
                for code in codes[begin : begin + SLICE]:
                    last = queue.last(code)
                    position = self.positions.position(consumer_group, parent, queue_id, code) or 0
                    if last is not None and last.queue_offset >= position:
                        lag += queue.count_from(code, position)
            lags[queue_id] = lag
        return lags

    async def total(self, consumer_group: str, parent: str) -> int:
        """Return the sum of `by_queue`."""
        return sum((await self.by_queue(consumer_group, parent)).values())


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The progress of a group in each queue: its offset there; in a parent, its lag."""

    queries: OffsetQueries
    lite_lag: LiteLag

    async def of(self, consumer_group: str, topic: str = "") -> list[Progress]:
        """Return OffsetQueries.progress, and the progress in the parent that the group is bound to.

        Raises the errors of OffsetQueries.progress and of a read.
        """
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
