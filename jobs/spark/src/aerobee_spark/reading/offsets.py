"""Compute with queue offsets as plain values: bounds, ranges, positions, tasks, narrowing.

The bounds come from the brokers (`planning.py`). Every offset is a queue offset, and every range is
half open: `end` is not read. Only `Narrowing` has inclusive bounds. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from aerobee_spark.errors import DataLossError, OptionError

EARLIEST = -2
LATEST = -1
# topic → broker name → queue id → queue offset, or EARLIEST or LATEST
OffsetsByTopic = Mapping[str, Mapping[str, Mapping[int, int]]]


class Queue(NamedTuple):
    """A message queue."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"queue {self.queue_id} of {self.topic} on {self.broker_name}"


class Bounds(NamedTuple):
    """The offsets that a broker stores of a queue: `min_offset` up to `max_offset`, exclusive."""

    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class OffsetRange:
    queue: Queue
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Position:
    """The start or the end of a read.

    It is the offset `everywhere` for all queues except those in `by_queue`. If `timestamp_ms`
    (milliseconds since the epoch) is set, it is the first message of each queue stored at or after
    that time instead.
    """

    everywhere: int
    by_queue: Mapping[Queue, int] | None = None
    timestamp_ms: int | None = None

    def of(self, queue: Queue) -> int:
        return (self.by_queue or {}).get(queue, self.everywhere)


AT_EARLIEST = Position(EARLIEST)
AT_LATEST = Position(LATEST)


def by_queue(offsets: OffsetsByTopic) -> dict[Queue, int]:
    return {
        Queue(topic, broker_name, queue_id): offset
        for topic, brokers in offsets.items()
        for broker_name, queues in brokers.items()
        for queue_id, offset in queues.items()
    }


def nested(offsets: Iterable[tuple[Queue, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Nest values by topic, broker name and queue id (as text).

    Options and checkpoints use this form in JSON. It is sorted, so equal offsets give equal texts.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for (topic, broker_name, queue_id), value in sorted(offsets, key=lambda each: each[0]):
        found.setdefault(topic, {}).setdefault(broker_name, {})[str(queue_id)] = value
    return found


def check_known(position: Position, queues: Iterable[Queue], option: str) -> None:
    """Raise OptionError if `position` sets an offset for a queue that is not read."""
    unknown = sorted(set(position.by_queue or {}) - set(queues))
    if unknown:
        raise OptionError(
            f"{option} names {unknown[0]}, which is not among the queues to read: "
            "correct the topic, the broker name or the queue id",
            option,
        )


def range_of(
    queue: Queue, bounds: Bounds, start: int, end: int, *, fail_on_data_loss: bool
) -> OffsetRange:
    """Return the range to read; empty if `end` is before `start`.

    EARLIEST and LATEST are replaced by numbers. Without `fail_on_data_loss` the range is cut to the
    bounds.

    Raises:
        DataLossError: `start` or `end` is outside `bounds`.
    """
    first = _number(start, bounds)
    last = _number(end, bounds)
    if fail_on_data_loss:
        for wanted in (first, last):
            _check_inside(queue, bounds, wanted)
    first = min(max(first, bounds.min_offset), bounds.max_offset)
    last = min(max(last, first), bounds.max_offset)
    return OffsetRange(queue, first, last)


def _number(offset: int, bounds: Bounds) -> int:
    named = {EARLIEST: bounds.min_offset, LATEST: bounds.max_offset}
    return named.get(offset, offset)


def _check_inside(queue: Queue, bounds: Bounds, wanted: int) -> None:
    if wanted < bounds.min_offset:
        raise DataLossError(
            f"{queue}: wanted queue offset {wanted}, but the min offset is {bounds.min_offset}: "
            f"{bounds.min_offset - wanted} messages were deleted. Start at {bounds.min_offset} or "
            "later, or set failOnDataLoss to false to read the remaining messages",
            str(queue),
            range(wanted, bounds.min_offset),
        )
    if wanted > bounds.max_offset:
        raise DataLossError(
            f"{queue}: wanted queue offset {wanted}, but the max offset is {bounds.max_offset} "
            f"(min offset {bounds.min_offset}): the queue does not reach this offset. Correct "
            "the offset, or set failOnDataLoss to false to read the existing messages",
            str(queue),
            range(bounds.max_offset, wanted),
        )


def shared(
    ranges: Iterable[OffsetRange], *, max_records: int, min_partitions: int = 1
) -> list[tuple[OffsetRange, ...]]:
    """Distribute ranges to tasks.

    A range is split into parts of nearly equal length and at most `max_records` offsets. Short
    neighbors share a task, up to half of `max_records`, because starting a task costs as much as
    reading some thousand messages. Empty ranges are left out.

    Args:
        ranges: the ranges to read.
        max_records: most offsets of one part.
        min_partitions: fewest tasks, if there are at least as many offsets.

    Returns:
        The ranges of each task.
    """
    filled = [whole for whole in ranges if len(whole)]
    total = sum(map(len, filled))
    size = max(1, min(max_records, total // max(min_partitions, 1)))
    tasks: list[tuple[OffsetRange, ...]] = []
    free = 0  # offsets that still fit into the last task
    for whole in filled:
        for part in _cut(whole, -(-len(whole) // size)):
            if len(part) <= free:
                tasks[-1] += (part,)
            else:
                tasks.append((part,))
                free = min(max_records // 2, size)
            free -= len(part)
    return tasks


def _cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    cuts = [whole.start + len(whole) * i // parts for i in range(parts + 1)]
    return [OffsetRange(whole.queue, start, end) for start, end in pairwise(cuts)]


@dataclass(frozen=True, slots=True)
class Narrowing:
    """The part of a read that filters leave.

    `topics` and `queue_ids` are those to read (None: all). Queue offsets and store times
    (milliseconds since the epoch) are inclusive bounds (None: no bound).
    """

    topics: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    first_offset: int | None = None
    last_offset: int | None = None
    first_ms: int | None = None
    last_ms: int | None = None

    def takes(self, queue: Queue) -> bool:
        return (self.topics is None or queue.topic in self.topics) and (
            self.queue_ids is None or queue.queue_id in self.queue_ids
        )
