"""The version of a table: two tables with the same version have the same content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class DataVersion:
    state_version: int = 0
    timestamp_ms: int = 0
    counter: int = 0

    def next(self, now_ms: int) -> DataVersion:
        return DataVersion(self.state_version, now_ms, self.counter + 1)

    def to_json(self) -> dict[str, int]:
        return {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp_ms,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        return cls(
            int(content.get("stateVersion", 0)),
            int(content.get("timestamp", 0)),
            int(content.get("counter", 0)),
        )
