"""Define the request for a report. `__main__.py` creates it from the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aerobee_spark.table.storage import Table

DLQ = "dlq"
RETRY = "retry"

# The engines. AUTO chooses an engine by the number of messages.
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
    # The largest number of poison keys, and of samples, in the report.
    top: int = 20
    # Only messages stored from since_ms up to until_ms, exclusive, are reported. Both are in
    # milliseconds since the epoch.
    since_ms: int | None = None
    until_ms: int | None = None
    # The width of a bucket of the timeline in milliseconds. None chooses a width that makes at most
    # 60 buckets.
    bucket_ms: int | None = None
    # Properties and JSON fields whose values are replaced by hashes in every file.
    redact: tuple[str, ...] = ()
    engine: str = AUTO
    local_up_to: int = LOCAL_UP_TO
    # If set, messages are read from this facts table, and brokers are not contacted.
    table: Table | None = None
    # Figures from --extra-json that are added to summary.json and the page.
    extra: Mapping[str, Any] = field(default_factory=dict)
