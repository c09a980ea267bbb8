"""Records where the store times of the log decrease.

Store times follow the clock, and an operator or a time service may set a clock back. A search by
time that halves the log, or a queue, needs ascending times. Between two steps, times ascend.

The steps are saved in the checkpoint, whose sector has room for `MAX_STEPS`. If there are more, the
oldest parts of the log become one part without order. Only its end and its highest time are known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

MAX_STEPS = 16


class Step(NamedTuple):
    """A place where store times decrease.

    `physical_offset` is at or before the first record with a lower time, and after the last record
    with a higher one. `highest_ms` is the time of that last record.
    """

    physical_offset: int
    highest_ms: int


ALL_ORDERED = Step(0, 0)  # no part of the log is without order


class Part(NamedTuple):
    """The part of the log from one physical offset to another.

    `highest_ms` is the highest store time of its records, or None in the last part, which grows.
    """

    begin: int
    end: int | None
    highest_ms: int | None
    is_ordered: bool


class TimeSteps:
    """The steps of one log. `unordered` ends the part without order."""

    def __init__(self, steps: tuple[Step, ...] = (), unordered: Step = ALL_ORDERED) -> None:
        self.steps = list(steps)
        self.unordered = unordered

    @property
    def is_ordered(self) -> bool:
        """Return whether store times ascend in the whole log."""
        return not self.steps and self.unordered == ALL_ORDERED

    def add(self, physical_offset: int, highest_ms: int) -> None:
        """Add a step. Without effect if a later step is known, or the same one."""
        last = self.steps[-1].physical_offset if self.steps else self.unordered.physical_offset
        if physical_offset <= last:
            return
        self.steps.append(Step(physical_offset, highest_ms))
        if len(self.steps) > MAX_STEPS:
            first, second = self.steps[:2]
            highest_ms = max(self.unordered.highest_ms, first.highest_ms, second.highest_ms)
            self.unordered = Step(second.physical_offset, highest_ms)
            del self.steps[:2]

    def drop_from(self, physical_offset: int) -> None:
        """Drop the steps at or after a physical offset, where the log was rolled back."""
        while self.steps and self.steps[-1].physical_offset >= physical_offset:
            self.steps.pop()

    def drop_below(self, log_start: int) -> None:
        """Drop what concerns only records before the start of the log."""
        if self.unordered.physical_offset <= log_start:
            self.unordered = ALL_ORDERED
        while self.steps and self.steps[0].physical_offset <= log_start:
            del self.steps[0]

    def below(self, physical_offset: int) -> tuple[tuple[Step, ...], Step]:
        """Return the steps before a physical offset, and the end of the part without order."""
        return tuple(s for s in self.steps if s.physical_offset < physical_offset), self.unordered

    def parts(self) -> Iterator[Part]:
        """Yield the parts of the log, the oldest one first."""
        begin = 0
        if self.unordered.physical_offset:
            begin, highest_ms = self.unordered
            yield Part(0, begin, highest_ms, is_ordered=False)
        for end, highest_ms in self.steps:
            yield Part(begin, end, highest_ms, is_ordered=True)
            begin = end
        yield Part(begin, None, None, is_ordered=True)

    def highest_ms(self, begin: int, end: int) -> int:
        """Return the highest known store time of records in a range of the log, or 0.

        It is known in the parts that end within the range or in which the range begins. The time
        of the last record before `end` is not known here.
        """
        times = [
            part.highest_ms or 0
            for part in self.parts()
            if part.end is not None and begin < part.end <= end
        ]
        unordered = self.unordered
        if begin < unordered.physical_offset:
            times.append(unordered.highest_ms)
        return max(times, default=0)
