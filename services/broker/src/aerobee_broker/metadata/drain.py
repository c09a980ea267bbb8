"""The drain state of this broker: `brokerDrain.json`."""

from __future__ import annotations

from typing import Any

from aerobee_broker.metadata.data_version import DataVersion
from aerobee_broker.metadata.table import Table
from aerobee_chassis.clock import Clock


class Drain(Table):
    """The drain state of this broker.

    `since_ms`: wall-clock time at which draining began; 0: this broker does not drain. `refuses`:
    whether producers are refused. That begins after the name servers were notified.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.since_ms = 0
        self.refuses = False

    def put(self, draining: bool) -> bool:
        """Start or end draining. Return False if that changes nothing."""
        if draining == bool(self.since_ms):
            return False
        self.since_ms = self._clock.now_ms() if draining else 0
        self._changed()
        return True

    def take_effect(self) -> None:
        self.refuses = bool(self.since_ms)

    def to_json(self) -> dict[str, Any]:
        return {"dataVersion": self.version.to_json(), "drainingSince": self.since_ms}

    def load(self, content: dict[str, Any]) -> None:
        self.since_ms = int(content.get("drainingSince", 0))
        self.take_effect()
        self.version = DataVersion.from_json(content.get("dataVersion") or {})
