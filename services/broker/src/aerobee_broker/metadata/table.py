"""What the tables have in common: a data version that travels, and a revision that does not."""

from __future__ import annotations

from typing import Any

from aerobee_broker.metadata.data_version import DataVersion
from aerobee_chassis.clock import Clock


class Table:
    """`revision` counts changes since the process started: what is saved, and who was told of what,
    is measured by it. Every change goes through `_changed`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.version = DataVersion(timestamp_ms=clock.now_ms())
        self.revision = 0

    def to_json(self) -> dict[str, Any]:
        raise NotImplementedError

    def load(self, content: dict[str, Any]) -> None:
        """Takes the content of the file in. Raises KeyError, TypeError, ValueError."""
        raise NotImplementedError

    def _changed(self) -> None:
        self.revision += 1
        self.version = self.version.next(self._clock.now_ms())
