"""Compute the ranges of queue offsets to read, and distribute them to tasks.

Every offset is a queue offset. The end of a range is exclusive; only the limits of `Narrowing` are
inclusive. The minimum and maximum offsets come from the brokers (`planning.py`). This module does
no I/O.
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
    """A message queue of a topic on one broker."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"queue {self.queue_id} of {self.topic} on {self.broker_name}"


class Bounds(NamedTuple):
    """The minimum offset of a queue on its broker, and the offset after its newest message."""

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
    """The start or the end of a read, as the user sets it.

    The offset `everywhere` applies to all queues except those in `by_queue`. If a queue has a time
    (milliseconds since the epoch), its position is instead the first message stored at or after
    that time. `timestamp_ms` is the time of all queues, and `ms_by_queue` that of single ones.
    """

    everywhere: int
    by_queue: Mapping[Queue, int] | None = None
    timestamp_ms: int | None = None
    ms_by_queue: Mapping[Queue, int] | None = None

    def of(self, queue: Queue) -> int:
        return (self.by_queue or {}).get(queue, self.everywhere)

    def ms_of(self, queue: Queue) -> int | None:
        """Return the time of a queue, or None if its position is an offset."""
        return (self.ms_by_queue or {}).get(queue, self.timestamp_ms)


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
    """Convert pairs of queue and value to a dict by topic, broker name and queue id (as text).

    Options and checkpoints contain this dict as JSON. Its keys are sorted, so that equal offsets
    have equal JSON texts.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for (topic, broker_name, queue_id), value in sorted(offsets, key=lambda each: each[0]):
        found.setdefault(topic, {}).setdefault(broker_name, {})[str(queue_id)] = value
    return found


def check_known(position: Position, queues: Iterable[Queue], option: str) -> None:
    """Raise OptionError if `position` sets an offset or time of a queue that is not read."""
    named = {*(position.by_queue or {}), *(position.ms_by_queue or {})}
    if position.ms_by_queue is not None:
        option = f"{option}ByTimestamp"
    unknown = sorted(named - set(queues))
    if unknown:
        raise OptionError(
            f"{option} names {unknown[0]}, which is not among the queues to read: "
            "correct the topic, the broker name or the queue id",
            option,
        )


def range_of(
    queue: Queue, bounds: Bounds, start: int, end: int, *, fail_on_data_loss: bool
) -> OffsetRange:
    """Return the range to read from a queue; it is empty if `end` is before `start`.

    EARLIEST and LATEST are replaced by the minimum and maximum offset. Without `fail_on_data_loss`,
    the range is cut to the offsets that exist.

    Raises:
        DataLossError: `fail_on_data_loss` is set, and `start` or `end` is outside `bounds`.
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
    neighboring parts share a task of up to half of `max_records`, because starting a task takes as
    long as reading some thousand messages. Empty ranges are left out.

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
    """The part of a read that remains after the filters of a query.

    `topics` and `queue_ids` are the topics and queue ids to read; None stands for all. Limits of
    queue offsets and store times (milliseconds since the epoch) are inclusive; None stands for no
    limit.
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
