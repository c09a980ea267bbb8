"""The states of dead letters in memory, restored from the journal of the jobs. Pure.

A letter without an entry is open. An entry takes 13 bytes. It is removed when retention deletes its
letter, so the entries are bounded by the letters that the log has.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from aerobee_broker.delivery.letters.selection import Run


class LetterState(IntEnum):
    OPEN = 0
    REDRIVEN = 1
    CONSUMED = 2  # after a redrive
    DEAD_AGAIN = 3  # after a redrive: a later letter has the same message id
    DISMISSED = 4


class Mark(NamedTuple):
    """The outcome of a job for some letters.

    `state` is OPEN for a letter that the job failed to send, with the reason in `error`.
    """

    state: LetterState
    job_id: str
    error: str = ""


class LetterEntry(NamedTuple):
    """The state of one letter. `at_ms` is when the job sent, dismissed or failed to send it."""

    queue_offset: int
    mark: Mark
    at_ms: int
    state: LetterState


@dataclass(slots=True, eq=False)
class QueueStates:
    """The states of the letters of one queue, from the queue offset `base` on."""

    base: int = 0
    _marks: array[int] = field(default_factory=lambda: array("I"))
    _times: array[int] = field(default_factory=lambda: array("q"))
    # The outcome of a redrive that cannot change any more; 0 if it is unknown.
    _outcomes: array[int] = field(default_factory=lambda: array("B"))

    def __len__(self) -> int:
        return len(self._marks)

    def put(self, runs: Iterable[Run], number: int, at_ms: int, min_offset: int) -> None:
        """Set the mark of the letters in `runs` at or after `min_offset`."""
        self.trim(min_offset)
        for first, end in runs:
            start = max(first, min_offset)
            if start >= end:
                continue
            if not self._marks:
                self.base = start
            elif start < self.base:
                self._extend_down(self.base - start)
            missing = end - self.base - len(self._marks)
            if missing > 0:
                self._marks.extend([0] * missing)
                self._times.extend([0] * missing)
                self._outcomes.extend([0] * missing)
            low, high = start - self.base, end - self.base
            self._marks[low:high] = array("I", [number]) * (high - low)
            self._times[low:high] = array("q", [at_ms]) * (high - low)
            self._outcomes[low:high] = array("B", [0]) * (high - low)

    def _extend_down(self, count: int) -> None:
        self._marks[:0] = array("I", [0]) * count
        self._times[:0] = array("q", [0]) * count
        self._outcomes[:0] = array("B", [0]) * count
        self.base -= count

    def trim(self, min_offset: int) -> None:
        """Remove the entries of letters before `min_offset`."""
        count = min(min_offset - self.base, len(self._marks))
        if count > 0:
            del self._marks[:count], self._times[:count], self._outcomes[:count]
            self.base += count

    def number(self, queue_offset: int) -> int:
        """Return the number of a letter's mark; 0 if it has none."""
        at = queue_offset - self.base
        return self._marks[at] if 0 <= at < len(self._marks) else 0

    def entries(self, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (queue offset, number of the mark, ms, outcome) of the letters with a mark."""
        begin = max(begin, self.base)
        for offset in range(begin, min(end, self.base + len(self._marks))):
            at = offset - self.base
            if self._marks[at]:
                yield offset, self._marks[at], self._times[at], self._outcomes[at]

    def settle(self, queue_offset: int, outcome: LetterState) -> None:
        """Remember the outcome of a redrive that cannot change any more."""
        at = queue_offset - self.base
        if 0 <= at < len(self._outcomes):
            self._outcomes[at] = outcome

    def numbers(self) -> set[int]:
        return set(self._marks)


class LetterStates:
    """The states of all letters of this broker, by group and queue."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, int], QueueStates] = {}
        self._marks: list[Mark | None] = [None]  # by number; number 0 is "no mark"
        self._numbers: dict[Mark, int] = {}
        self._free: list[int] = []

    def put(  # noqa: PLR0917
        self,
        consumer_group: str,
        queue_id: int,
        runs: Iterable[Run],
        mark: Mark,
        at_ms: int,
        min_offset: int,
    ) -> None:
        """Set the mark of letters. Letters before `min_offset` are not stored any more."""
        queue = self._queues.setdefault((consumer_group, queue_id), QueueStates())
        queue.put(runs, self._number(mark), at_ms, min_offset)

    def _number(self, mark: Mark) -> int:
        number = self._numbers.get(mark)
        if number is None:
            if self._free:
                number = self._free.pop()
                self._marks[number] = mark
            else:
                number = len(self._marks)
                self._marks.append(mark)
            self._numbers[mark] = number
        return number

    def mark(self, consumer_group: str, queue_id: int, queue_offset: int) -> Mark | None:
        queue = self._queues.get((consumer_group, queue_id))
        return self._marks[queue.number(queue_offset)] if queue else None

    def entries(
        self, consumer_group: str, queue_id: int, begin: int, end: int
    ) -> Iterator[LetterEntry]:
        """Yield the states of the letters of a queue that a job has marked."""
        queue = self._queues.get((consumer_group, queue_id))
        if queue is None:
            return
        for offset, number, at_ms, outcome in queue.entries(begin, end):
            mark = self._marks[number]
            assert mark is not None
            yield LetterEntry(offset, mark, at_ms, LetterState(outcome or mark.state))

    def end(self, consumer_group: str, queue_id: int) -> int:
        """Return the queue offset behind the last letter of a queue that may have a mark."""
        queue = self._queues.get((consumer_group, queue_id))
        return queue.base + len(queue) if queue else 0

    def settle(
        self, consumer_group: str, queue_id: int, queue_offset: int, outcome: LetterState
    ) -> None:
        """Remember the outcome of a redrive that cannot change any more."""
        self._queues[consumer_group, queue_id].settle(queue_offset, outcome)

    def queues(self) -> list[tuple[str, int]]:
        return list(self._queues)

    def trim(self, consumer_group: str, queue_id: int, min_offset: int) -> None:
        queue = self._queues[consumer_group, queue_id]
        queue.trim(min_offset)
        if not len(queue):
            del self._queues[consumer_group, queue_id]

    def forget_group(self, consumer_group: str) -> None:
        """Remove the states of a group whose dead-letter topic was deleted."""
        self._queues = {key: each for key, each in self._queues.items() if key[0] != consumer_group}

    def free_marks(self) -> None:
        """Free the numbers of marks that no letter has any more."""
        used: set[int] = set()
        for queue in self._queues.values():
            used |= queue.numbers()
        for mark, number in list(self._numbers.items()):
            if number not in used:
                del self._numbers[mark]
                self._marks[number] = None
                self._free.append(number)
