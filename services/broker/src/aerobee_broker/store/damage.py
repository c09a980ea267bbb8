"""What was found damaged: each place told once, the last ones remembered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from aerobee_broker.store.messages import Corruption

Event = Callable[[str, Mapping[str, object]], None]

_REMEMBERED = 1_000
_PLACES = 10_000  # told once; beyond that many places, perhaps twice


class DamageRegister:
    def __init__(self, on_event: Event) -> None:
        self.count = 0
        self.last: deque[Corruption] = deque(maxlen=_REMEMBERED)
        self._event = on_event
        self._places: set[int] = set()

    def report(self, file: Path, physical_offset: int, reason: str) -> None:
        """The bytes at this place should be a record and are not, or no longer."""
        if physical_offset in self._places:
            return
        if len(self._places) < _PLACES:
            self._places.add(physical_offset)
        self.count += 1
        self.last.append(Corruption(file, physical_offset, reason))
        self._event(
            "corrupt_record",
            {"file": str(file), "physical_offset": physical_offset, "reason": reason},
        )
