"""What a report is asked for. Values only; `__main__.py` makes one from the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DLQ = "dlq"
RETRY = "retry"


@dataclass(frozen=True, slots=True)
class ReportRequest:
    name_server: str
    consumer_group: str
    out: Path
    # DLQ, RETRY or both.
    kinds: tuple[str, ...] = (DLQ, RETRY)
    include_bodies: bool = True
    # Rows of a ranking: poison keys, samples.
    top: int = 20
    # Store times, milliseconds since the epoch: from, inclusive; until, exclusive.
    since_ms: int | None = None
    until_ms: int | None = None
    # Width of a column of the timeline; None: chosen so that there are about fifty.
    bucket_ms: int | None = None
    # Figures of others that stand in summary.json and on the page beside ours.
    extra: Mapping[str, Any] = field(default_factory=dict)
