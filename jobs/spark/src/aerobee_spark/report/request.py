"""Define the request for a report: plain values, which `__main__.py` parses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aerobee_spark.table.storage import Table

DLQ = "dlq"
RETRY = "retry"

# Engines. AUTO chooses by the number of messages.
AUTO = "auto"
LOCAL = "local"
SPARK = "spark"
ENGINES = (AUTO, LOCAL, SPARK)
# AUTO chooses the local engine for up to this number of messages.
LOCAL_UP_TO = 2_000_000


@dataclass(frozen=True, slots=True)
class ReportRequest:
    name_server: str
    consumer_group: str
    out: Path
    # DLQ, RETRY, or both.
    kinds: tuple[str, ...] = (DLQ, RETRY)
    include_bodies: bool = True
    # Rows of a ranking: poison keys and samples.
    top: int = 20
    # Store times in milliseconds since the epoch: start inclusive, end exclusive.
    since_ms: int | None = None
    until_ms: int | None = None
    # Width of a bucket of the timeline in milliseconds; None chooses at most 60 buckets.
    bucket_ms: int | None = None
    # Properties and JSON fields whose values are replaced by hashes in every file.
    redact: tuple[str, ...] = ()
    engine: str = AUTO
    local_up_to: int = LOCAL_UP_TO
    # A facts table to compute from, instead of the brokers.
    table: Table | None = None
    # Further figures for summary.json and the page, from --extra-json.
    extra: Mapping[str, Any] = field(default_factory=dict)
