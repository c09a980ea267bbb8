"""How far the next batch goes: new messages, queues that come and go, limits, data loss. Pure.

What the brokers said is a `Seen` (`watch.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from aerobee_spark.errors import DataLossError
from aerobee_spark.reading.offsets import Bounds, Queue
from aerobee_spark.stream.positions import Positions

Place = tuple[str, str]  # topic, broker name


@dataclass(frozen=True, slots=True)
class Seen:
    """What the brokers answered: the bounds of the queues that can be read. `absent`: places where
    the broker answers, but has no such topic. Queues in neither are of brokers that are away."""

    bounds: Mapping[Queue, Bounds]
    absent: frozenset[Place] = frozenset()
    # Brokers that answered about a topic: a queue that they did not name is gone.
    answered: frozenset[Place] = frozenset()

    def tells(self, queue: Queue) -> bool:
        """Whether the broker of a queue answers: it has the queue, or no longer has it."""
        return queue in self.bounds or queue[:2] in self.absent or queue[:2] in self.answered


@dataclass(slots=True)
class Advance:
    """The end of a batch. `waiting`: queue → messages that could be read. `losses`: what is
    gone."""

    end: dict[Queue, int] = field(default_factory=dict)
    waiting: dict[Queue, int] = field(default_factory=dict)
    losses: list[DataLossError] = field(default_factory=list)


def advance(start: Positions, seen: Seen, *, upto: Mapping[Queue, int] | None = None) -> Advance:
    """Everything that can be read from `start` on. `upto`: where it ends at the latest; queues that
    it does not name stay where they are, and no others are added.

    A queue that is seen for the first time enters at its first message, and is read from the next
    batch on. One whose offset is beyond its end is of a topic that was made again: it enters
    likewise.
    """
    found = Advance()
    for queue, offset in start.of.items():
        bounds = seen.bounds.get(queue)
        if bounds is not None:
            _known(found, queue, offset, bounds, upto)
        elif seen.tells(queue):
            found.losses.append(_gone(queue, offset))
        else:
            found.end[queue] = offset  # its broker is away
    for queue, bounds in seen.bounds.items():
        if queue not in start.of and (upto is None or queue in upto):
            found.end[queue] = bounds.min_offset
    return found


def _known(
    found: Advance, queue: Queue, offset: int, bounds: Bounds, upto: Mapping[Queue, int] | None
) -> None:
    if offset > bounds.max_offset:
        found.losses.append(_beyond(queue, offset, bounds))
        found.end[queue] = bounds.min_offset
        return
    if offset < bounds.min_offset:
        found.losses.append(_expired(queue, offset, bounds))
    last = bounds.max_offset if upto is None else min(bounds.max_offset, upto.get(queue, offset))
    found.end[queue] = max(offset, last)
    if last > max(offset, bounds.min_offset):
        found.waiting[queue] = last - max(offset, bounds.min_offset)


def limited(found: Advance, most: int) -> dict[Queue, int]:
    """The end with at most `most` messages, shared in proportion to what waits in each queue; at
    least one of each queue that has any, so that none starves, and `most` may then be exceeded."""
    queues, total = len(found.waiting), sum(found.waiting.values())
    if total <= most:
        return found.end
    end, more = dict(found.end), max(0, most - queues)
    # Rounded as a running sum, so that the shares are `more` together: a run under AvailableNow
    # would else take one more batch for the few that are left at the end.
    before, shared = 0, 0
    for queue, waiting in found.waiting.items():
        before += waiting - 1
        upto = more * before // (total - queues) if more else 0
        end[queue] -= waiting - 1 - (upto - shared)
        shared = upto
    return end


@dataclass(slots=True)
class Patience:
    """minOffsetsPerTrigger: whether a batch waits until there is more. `monotonic` in seconds."""

    least: int
    longest_s: float
    monotonic: Callable[[], float]
    _since: float | None = None

    def waits(self, waiting: int) -> bool:
        """Whether to wait with so many messages; at most `longest_s` from the first one on."""
        now = self.monotonic()
        if not waiting or waiting >= self.least:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        if now - self._since < self.longest_s:
            return True
        self._since = None
        return False


_ADVICE = "set failOnDataLoss to false to go on with what is there"


def _expired(queue: Queue, offset: int, bounds: Bounds) -> DataLossError:
    lost = range(offset, bounds.min_offset)
    return DataLossError(
        f"{queue}: wanted queue offset {offset}, but the min offset is {bounds.min_offset} (max "
        f"offset "
        f"{bounds.max_offset}): {len(lost)} messages are gone; {_ADVICE}",
        str(queue),
        lost,
    )


def _beyond(queue: Queue, offset: int, bounds: Bounds) -> DataLossError:
    return DataLossError(
        f"{queue}: wanted queue offset {offset}, but the max offset is {bounds.max_offset} (min "
        f"offset "
        f"{bounds.min_offset}): the topic was made again, or its end is gone; {_ADVICE}, from "
        f"queue "
        f"offset {bounds.min_offset} on",
        str(queue),
        range(bounds.max_offset, offset),
    )


def _gone(queue: Queue, offset: int) -> DataLossError:
    return DataLossError(
        f"{queue}: wanted queue offset {offset}, but its broker has no such queue any more: the "
        f"topic "
        f"was deleted there, or has fewer queues; {_ADVICE}",
        str(queue),
        range(offset, offset),
    )
