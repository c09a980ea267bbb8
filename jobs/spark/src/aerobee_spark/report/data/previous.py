"""The report that stood in the folder before: what a new one compares itself with. Reads only."""

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
    """Its summary; empty when there was none."""

    summary: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path, consumer_group: str) -> PreviousReport:
        """What cannot be read, or is of another group or of another version, counts as none."""
        try:
            loaded = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return cls({})
        if not isinstance(loaded, dict) or loaded.get("schema_version") != SCHEMA_VERSION:
            return cls({})
        return cls(loaded if loaded.get("group") == consumer_group else {})

    def queues(self, kinds: Sequence[str]) -> frozenset[Queue]:
        return frozenset(
            Queue(one["topic"], one["broker_name"], one["queue_id"])
            for one in self.summary.get("queues", ())
            if one["kind"] in kinds
        )

    @property
    def earlier(self) -> Earlier | None:
        """None when it did not look at dead letters."""
        if DLQ not in self.summary.get("kinds", ()):
            return None
        read_to = {
            (one["broker_name"], one["queue_id"]): one["end_offset"]
            for one in self.summary["queues"]
            if one["kind"] == DLQ and one["end_offset"] is not None
        }
        return Earlier(self.summary["generated_at"], read_to)
