"""What the store reports to its owner: events to be logged, and damaged records."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from aerobee_broker.store.messages import Corruption

EventListener = Callable[[str, Mapping[str, object]], None]  # event, fields
DamageListener = Callable[[Path, int, str], None]  # file, physical offset, reason

_REMEMBERED = 1_000
_OFFSETS = 10_000  # reported once; beyond that many, perhaps twice


def ignore_event(event: str, fields: Mapping[str, object]) -> None:
    """A listener for a store whose events are not logged."""


class DamageRegister:
    """Reports each damaged record once, and remembers the last ones."""

    def __init__(self, on_event: EventListener) -> None:
        self.count = 0
        self.last: deque[Corruption] = deque(maxlen=_REMEMBERED)
        self._event = on_event
        self._offsets: set[int] = set()

    def report(self, file: Path, physical_offset: int, reason: str) -> None:
        """The bytes at this physical offset should be a record, and are none or a damaged one."""
        if physical_offset in self._offsets:
            return
        if len(self._offsets) < _OFFSETS:
            self._offsets.add(physical_offset)
        self.count += 1
        self.last.append(Corruption(file, physical_offset, reason))
        self._event(
            "corrupt_record",
            {"file": str(file), "physical_offset": physical_offset, "reason": reason},
        )
