"""The base of the tables: a data version, which crosses the wire; a revision, which does not."""

from __future__ import annotations

from typing import Any

from aerobee_broker.metadata.data_version import DataVersion
from aerobee_chassis.clock import Clock


class Table:
    """`revision` counts the changes since the process started; what was saved or registered last is
    known by it. Every change calls `_changed`.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.version = DataVersion(timestamp_ms=clock.now_ms())
        self.revision = 0

    def to_json(self) -> dict[str, Any]:
        raise NotImplementedError

    def load(self, content: dict[str, Any]) -> None:
        """Fills the table from the content of its file. Raises KeyError, TypeError, ValueError."""
        raise NotImplementedError

    def _changed(self) -> None:
        self.revision += 1
        self.version = self.version.next(self._clock.now_ms())
