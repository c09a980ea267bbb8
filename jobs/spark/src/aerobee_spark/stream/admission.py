"""Decide at which queue offsets the next batch of a stream ends.

The decision depends on new messages, changed queues, limits and lost messages. `watch.py` provides
the answers of the brokers (`Seen`). This module does no I/O.
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
    """The answers of the brokers about the topics of a stream.

    `bounds` has the minimum and maximum offset of each readable queue. `absent` lists pairs of
    topic and broker where the broker answered, but does not have the topic. If a queue is in none
    of the fields, its broker is unavailable.
    """

    bounds: Mapping[Queue, Bounds]
    absent: frozenset[Place] = frozenset()
    # Pairs of topic and broker where the broker answered. A queue that it omits was deleted.
    answered: frozenset[Place] = frozenset()

    def has_answer(self, queue: Queue) -> bool:
        """Return whether the broker of a queue answered, even if the queue no longer exists."""
        return queue in self.bounds or queue[:2] in self.absent or queue[:2] in self.answered


@dataclass(slots=True)
class Advance:
    """The end of a batch, and the messages up to it.

    `end` has the offset at which the batch ends in each queue. `waiting` has the number of messages
    to read from each queue that has new messages. `losses` has an error for each queue that lost
    messages.
    """

    end: dict[Queue, int] = field(default_factory=dict)
    waiting: dict[Queue, int] = field(default_factory=dict)
    losses: list[DataLossError] = field(default_factory=list)


def advance(start: Positions, seen: Seen, *, upto: Mapping[Queue, int] | None = None) -> Advance:
    """Return the end of a batch that reads all messages from `start` on, without a limit.

    A new queue is added at its first message, and is read from the next batch on. If the start
    offset of a queue is after the queue's end, the topic was created again. Such a queue is treated
    like a new queue.

    Args:
        start: the offsets before the batch.
        seen: the answers of the brokers.
        upto: the highest end of each queue; None reads to the end of the queues. Queues that are
            missing in the mapping keep their offset, and are not added.
    """
    found = Advance()
    for queue, offset in start.of.items():
        bounds = seen.bounds.get(queue)
        if bounds is not None:
            _known(found, queue, offset, bounds, upto)
        elif seen.has_answer(queue):
            found.losses.append(_gone(queue, offset))
        else:
            found.end[queue] = offset  # its broker is unavailable
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
    """Return the end of a batch with at most `most` messages.

    The limit is divided among the queues in proportion to their unread messages. Each queue with
    unread messages gets at least one message, so that all queues make progress. The batch may
    exceed `most` for this reason.
    """
    queues, total = len(found.waiting), sum(found.waiting.values())
    if total <= most:
        return found.end
    end, more = dict(found.end), max(0, most - queues)
    # Round the running sum of the shares, so that the shares add up to `more`. Otherwise, a run
    # under AvailableNow would need another batch for the few remaining messages.
    before, shared = 0, 0
    for queue, waiting in found.waiting.items():
        before += waiting - 1
        upto = more * before // (total - queues) if more else 0
        end[queue] -= waiting - 1 - (upto - shared)
        shared = upto
    return end


@dataclass(slots=True)
class Patience:
    """Decides whether a batch waits for more messages (option minOffsetsPerTrigger).

    A batch waits until there are `least` messages, but at most `longest_s` seconds. `monotonic`
    returns seconds.
    """

    least: int
    longest_s: float
    monotonic: Callable[[], float]
    _since: float | None = None

    def waits(self, waiting: int) -> bool:
        """Return whether a batch with this number of new messages must wait for more messages."""
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


_ADVICE = "set failOnDataLoss to false to continue with the existing messages"


def _expired(queue: Queue, offset: int, bounds: Bounds) -> DataLossError:
    lost = range(offset, bounds.min_offset)
    return DataLossError(
        f"{queue}: wanted queue offset {offset}, but the min offset is {bounds.min_offset} (max "
        f"offset "
        f"{bounds.max_offset}): {len(lost)} messages were deleted; {_ADVICE}",
        str(queue),
        lost,
    )


def _beyond(queue: Queue, offset: int, bounds: Bounds) -> DataLossError:
    return DataLossError(
        f"{queue}: wanted queue offset {offset}, but the max offset is {bounds.max_offset} (min "
        f"offset "
        f"{bounds.min_offset}): the topic was created again, or its end was lost; {_ADVICE}, from "
        f"queue "
        f"offset {bounds.min_offset} on",
        str(queue),
        range(bounds.max_offset, offset),
    )


def _gone(queue: Queue, offset: int) -> DataLossError:
    return DataLossError(
        f"{queue}: wanted queue offset {offset}, but its broker no longer has the queue: the "
        f"topic "
        f"was deleted there, or has fewer queues; {_ADVICE}",
        str(queue),
        range(offset, offset),
    )
