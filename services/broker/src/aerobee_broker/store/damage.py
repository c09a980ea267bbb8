"""Reports events and damaged records of the store to its owner.

A damaged range is a part of the log below its durable end that does not contain a whole record. It
begins at the end of a whole record. It ends at the start of a whole record, or at the durable end
of the log. A replica can repair it from another replica (`replication/role/integrity/`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

EventListener = Callable[[str, Mapping[str, object]], None]  # event, fields
DamageListener = Callable[[Path, int, str], None]  # file, physical offset, reason

_REMEMBERED = 1_000
_OFFSETS = 10_000  # offsets that are reported only once; further ones may be reported twice


def ignore_event(event: str, fields: Mapping[str, object]) -> None:
    """Ignore an event. Use this listener for a store whose events are not logged."""


class DamagedRange(NamedTuple):
    """A damaged part of the log, from the physical offset `begin` to below `end`."""

    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


class DamageRegister:
    """Reports each damaged record once, and counts the reports.

    `ranges` has the known damage that is not repaired, in the order of offsets and without
    overlaps. `suspects` has the physical offsets at which a reader did not find a whole record. The
    scrub checks these first. `repairable` is true if other replicas may have the records.
    """

    def __init__(self, on_event: EventListener, *, repairable: bool = False) -> None:
        self.repairable = repairable
        self.count = 0
        self.ranges: list[DamagedRange] = []
        self.suspects: deque[int] = deque(maxlen=_REMEMBERED)
        self._event = on_event
        self._offsets: set[int] = set()
        self._given_up: set[DamagedRange] = set()  # no other replica has these
        self._pending: list[DamagedRange] = []  # the other ranges
        self._checked: set[int] = set()  # former suspects

    def report(self, file: Path, physical_offset: int, reason: str) -> None:
        """Report that no whole record is at this physical offset.

        The offset becomes a suspect.
        """
        if self._report(file, physical_offset, reason) and physical_offset not in self._checked:
            self.suspects.append(physical_offset)

    def report_range(self, file: Path, damaged: DamagedRange, reason: str) -> None:
        """Report damage with known bounds, and add it to `ranges`."""
        self._report(file, damaged.begin, reason)
        if damaged.size > 0:
            self._add(damaged)

    def _report(self, file: Path, physical_offset: int, reason: str) -> bool:
        if physical_offset in self._offsets:
            return False
        if len(self._offsets) < _OFFSETS:
            self._offsets.add(physical_offset)
        self.count += 1
        self._event(
            "corrupt_record",
            {"file": str(file), "physical_offset": physical_offset, "reason": reason},
        )
        return True

    def _add(self, damaged: DamagedRange) -> None:
        """Add a damaged range, and merge it with the ranges that it overlaps."""
        apart = [each for each in self.ranges if not _overlap(each, damaged)]
        joined = [each for each in self.ranges if _overlap(each, damaged)]
        begin = min([damaged.begin, *(each.begin for each in joined)])
        end = max([damaged.end, *(each.end for each in joined)])
        apart.insert(bisect_left(apart, (begin, end)), DamagedRange(begin, end))
        self._set_ranges(apart)

    @property
    def is_pending(self) -> bool:
        """Return whether some damage may still be repaired."""
        return self.repairable and bool(self.suspects or self._pending)

    def may_be_repaired(self, physical_offset: int) -> bool:
        """Return whether the bytes at this physical offset are damaged and may be repaired."""
        return self.repairable and (
            physical_offset in self.suspects
            or any(each.begin <= physical_offset < each.end for each in self._pending)
        )

    def may_be_repaired_before(self, physical_offset: int) -> bool:
        """Return whether damage before this physical offset may be repaired."""
        return self.repairable and any(each.begin < physical_offset for each in self._pending)

    def give_up(self, lost: Iterable[DamagedRange]) -> None:
        """Record that no other replica has the records of these ranges. Readers then skip them."""
        self._given_up.update(lost)
        self._set_ranges(self.ranges)

    def checked(self, suspect: int) -> None:
        """Record that the log was read at a suspect, and its damage registered if there was any.

        If the log is whole there, the offset does not become a suspect again: the consume queue is
        wrong.
        """
        with suppress(ValueError):  # newer suspects may have displaced it
            self.suspects.remove(suspect)
        if len(self._checked) < _OFFSETS:
            self._checked.add(suspect)

    def _set_ranges(self, ranges: list[DamagedRange]) -> None:
        self.ranges = ranges
        self._given_up.intersection_update(ranges)
        self._pending = [each for each in ranges if each not in self._given_up]

    def first_behind(self, physical_offset: int) -> DamagedRange | None:
        """Return the first damaged range that ends after this physical offset, or None."""
        return next((each for each in self.ranges if each.end > physical_offset), None)

    @property
    def damaged_bytes(self) -> int:
        return sum(each.size for each in self.ranges)

    def clear_range(self, begin: int, end: int) -> None:
        """Record that all records between two physical offsets were read and are whole.

        The call is cheap if no damage is known.
        """
        if self.ranges:
            self.clear(DamagedRange(begin, end))

    def clear(self, whole: DamagedRange) -> None:
        """Record that this part of the log is whole again. Later damage in it is reported again."""
        kept = []
        for each in self.ranges:
            if not _overlap(each, whole):
                kept.append(each)
                continue
            kept += [
                part
                for part in (
                    DamagedRange(each.begin, min(each.end, whole.begin)),
                    DamagedRange(max(each.begin, whole.end), each.end),
                )
                if part.size > 0
            ]
        self._set_ranges(kept)
        self._checked = {at for at in self._checked if not whole.begin <= at < whole.end}
        self._offsets = {at for at in self._offsets if not whole.begin <= at < whole.end}

    def end_at(self, physical_offset: int) -> None:
        """Forget damage at or after this physical offset, because the log was cut there."""
        self.clear(DamagedRange(physical_offset, 1 << 62))

    def begin_at(self, physical_offset: int) -> None:
        """Forget damage before this physical offset, because that part of the log has expired."""
        if self.ranges and self.ranges[0].begin < physical_offset:
            self.clear(DamagedRange(0, physical_offset))


def _overlap(one: DamagedRange, other: DamagedRange) -> bool:
    return one.begin < other.end and other.begin < one.end
