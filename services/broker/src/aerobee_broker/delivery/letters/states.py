"""The states of dead letters in memory, restored from the journal of the jobs.

This module does no I/O.

A letter without an entry is open. Entries are in pages of 1,024 letters: 13 kB, if a job has marked
one of these letters. A page is removed when retention has deleted its letters, so the entries are
bounded by the letters that the log has.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import chain
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


PAGE_LETTERS = 1_024  # looked through at once: less than 1 ms of the event loop


class _Page:
    """The states of PAGE_LETTERS letters, with 13 bytes for each."""

    __slots__ = ("marks", "outcomes", "times")

    def __init__(self) -> None:
        self.marks = array("I", bytes(4 * PAGE_LETTERS))
        self.times = array("q", bytes(8 * PAGE_LETTERS))
        # The outcome of a redrive that cannot change any more; 0 if it is unknown.
        self.outcomes = bytearray(PAGE_LETTERS)

    def put(self, low: int, high: int, number: int, at_ms: int) -> None:
        count = high - low
        self.marks[low:high] = array("I", [number]) * count
        self.times[low:high] = array("q", [at_ms]) * count
        self.outcomes[low:high] = bytes(count)


class QueueStates:
    """The states of the letters of one queue, from the queue offset `base` to `end`."""

    __slots__ = ("_pages", "base", "end")

    def __init__(self) -> None:
        self.base = self.end = 0
        self._pages: dict[int, _Page] = {}

    def put(self, runs: Iterable[Run], number: int, at_ms: int, min_offset: int) -> None:
        """Set the mark of the letters in `runs` at or after `min_offset`."""
        self.trim(min_offset)
        for first, end in runs:
            start = max(first, self.base)
            while start < end:
                page_number, low = divmod(start, PAGE_LETTERS)
                high = min(low + end - start, PAGE_LETTERS)
                page = self._pages.get(page_number)
                if page is None:
                    page = self._pages[page_number] = _Page()
                page.put(low, high, number, at_ms)
                start += high - low
                self.end = max(self.end, start)

    def trim(self, min_offset: int) -> None:
        """Remove the entries of letters before `min_offset`."""
        if min_offset >= self.end:
            self._pages.clear()
        elif min_offset // PAGE_LETTERS > self.base // PAGE_LETTERS:
            low = min_offset // PAGE_LETTERS
            self._pages = {number: page for number, page in self._pages.items() if number >= low}
        self.base = max(self.base, min_offset)
        self.end = max(self.end, self.base)

    def number(self, queue_offset: int) -> int:
        """Return the number of a letter's mark; 0 if it has none."""
        page = self._pages.get(queue_offset // PAGE_LETTERS) if queue_offset >= self.base else None
        return page.marks[queue_offset % PAGE_LETTERS] if page else 0

    def run_end(self, begin: int, end: int, wanted: Callable[[int], bool]) -> int:
        """Return the end of the run of letters from `begin` on whose marks are `wanted`.

        `wanted` gets the number of a mark. The result is at most `end`.
        """
        at = begin
        while at < end and at >= self.base:
            page = self._pages.get(at // PAGE_LETTERS)
            if page is None:
                return at
            low = at % PAGE_LETTERS
            numbers = page.marks[low : min(low + end - at, PAGE_LETTERS)]
            chosen = {number for number in set(numbers) if wanted(number)}
            for number in numbers:
                if number not in chosen:
                    return at
                at += 1
        return at

    def pages(self, begin: int, end: int) -> Iterator[list[tuple[int, int, int, int]]]:
        """Yield lists of (queue offset, number of the mark, ms, outcome) of letters with a mark.

        A list has the entries of one page, as they are when it is yielded. The entries may change
        between two lists.
        """
        begin, end = max(begin, self.base), min(end, self.end)
        numbers: Sequence[int] = range(begin // PAGE_LETTERS, -(-end // PAGE_LETTERS))
        if len(numbers) > len(self._pages):
            numbers = sorted(number for number in self._pages if number in numbers)
        for page_number in numbers:
            page, first = self._pages.get(page_number), page_number * PAGE_LETTERS
            if page is None:
                continue
            low = max(begin, self.base) - first
            yield [
                (first + at, page.marks[at], page.times[at], page.outcomes[at])
                for at in range(max(low, 0), min(end - first, PAGE_LETTERS))
                if page.marks[at]
            ]

    def settle(self, queue_offset: int, outcome: LetterState) -> None:
        """Remember the outcome of a redrive that cannot change any more."""
        if self.number(queue_offset):
            self._pages[queue_offset // PAGE_LETTERS].outcomes[queue_offset % PAGE_LETTERS] = (
                outcome
            )

    def is_empty(self) -> bool:
        return not self._pages

    def clear(self) -> None:
        self._pages.clear()


class LetterStates:
    """The states of all letters of this broker, by group and queue."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, int], QueueStates] = {}
        self._marks: list[Mark | None] = [None]  # by number; number 0 is "no mark"
        self._numbers: dict[str, dict[Mark, int]] = {}  # by job id
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
        numbers = self._numbers.setdefault(mark.job_id, {})
        number = numbers.get(mark)
        if number is None:
            if self._free:
                number = self._free.pop()
                self._marks[number] = mark
            else:
                number = len(self._marks)
                self._marks.append(mark)
            numbers[mark] = number
        return number

    def mark(self, consumer_group: str, queue_id: int, queue_offset: int) -> Mark | None:
        queue = self._queues.get((consumer_group, queue_id))
        return self._marks[queue.number(queue_offset)] if queue else None

    def handled_end(self, consumer_group: str, queue_id: int, begin: int, end: int) -> int:
        """Return the end of the run of letters from `begin` on that are not open."""
        queue = self._queues.get((consumer_group, queue_id))
        return begin if queue is None else queue.run_end(begin, end, self._is_handled)

    def handled(self, consumer_group: str, queue_id: int, begin: int, end: int) -> set[int]:
        """Return the queue offsets of letters that are not open, from `begin` to before `end`."""
        queue = self._queues.get((consumer_group, queue_id))
        if queue is None:
            return set()
        found = chain.from_iterable(queue.pages(begin, end))
        return {offset for offset, number, _, _ in found if self._is_handled(number)}

    def _is_handled(self, number: int) -> bool:
        mark = self._marks[number]
        return mark is not None and mark.state is not LetterState.OPEN

    def pages(
        self, consumer_group: str, queue_id: int, begin: int = 0, end: int = 1 << 63
    ) -> Iterator[list[LetterEntry]]:
        """Yield the states of the letters of a queue that a job has marked, in short lists.

        A list has the states as they are when it is yielded. The caller may yield to the event loop
        between two lists.
        """
        queue = self._queues.get((consumer_group, queue_id))
        if queue is None:
            return
        for page in queue.pages(begin, end):
            yield [
                LetterEntry(offset, mark, at_ms, LetterState(outcome or mark.state))
                for offset, number, at_ms, outcome in page
                if (mark := self._marks[number]) is not None
            ]

    def settle(
        self, consumer_group: str, queue_id: int, entry: LetterEntry, outcome: LetterState
    ) -> None:
        """Remember the outcome of a redrive that cannot change any more.

        Ignore it if the letter has another mark now.
        """
        queue = self._queues.get((consumer_group, queue_id))
        if queue and self._marks[queue.number(entry.queue_offset)] == entry.mark:
            queue.settle(entry.queue_offset, outcome)

    def queues(self) -> list[tuple[str, int]]:
        return list(self._queues)

    def trim(self, consumer_group: str, queue_id: int, min_offset: int) -> None:
        queue = self._queues[consumer_group, queue_id]
        queue.trim(min_offset)
        if queue.is_empty():
            del self._queues[consumer_group, queue_id]

    def forget_group(self, consumer_group: str) -> None:
        """Remove the states of a group whose dead-letter topic was deleted."""
        for key in [key for key in self._queues if key[0] == consumer_group]:
            self._queues.pop(key).clear()  # a listing may be between two pages

    def forget_job(self, job_id: str) -> None:
        """Forget the marks of a job. The letters with these marks must not exist any more."""
        for number in self._numbers.pop(job_id, {}).values():
            self._marks[number] = None
            self._free.append(number)
