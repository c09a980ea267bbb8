"""Read the previous report in the folder, for comparison with the new one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerobee_spark.reading.offsets import Queue
from aerobee_spark.report.data.summary import SCHEMA_VERSION, Earlier
from aerobee_spark.report.request import DLQ


@dataclass(frozen=True, slots=True)
class PreviousReport:
    """The previous report. `summary` is empty if there is none."""

    summary: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path, consumer_group: str) -> PreviousReport:
        """Read a summary. An unreadable one, or one of another group or version, is ignored."""
        try:
            loaded = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return cls({})
        if not isinstance(loaded, dict) or loaded.get("schema_version") != SCHEMA_VERSION:
            return cls({})
        return cls(loaded if loaded.get("group") == consumer_group else {})

    def queues(self, kinds: Sequence[str]) -> frozenset[Queue]:
        return frozenset(
            Queue(queue["topic"], queue["broker_name"], queue["queue_id"])
            for queue in self.summary.get("queues", ())
            if queue["kind"] in kinds
        )

    @property
    def earlier(self) -> Earlier | None:
        """Return what the previous report read; None if it did not read dead letters."""
        if DLQ not in self.summary.get("kinds", ()):
            return None
        read_to = {
            (queue["broker_name"], queue["queue_id"]): queue["end_offset"]
            for queue in self.summary["queues"]
            if queue["kind"] == DLQ and queue["end_offset"] is not None
        }
        return Earlier(self.summary["generated_at"], read_to)
