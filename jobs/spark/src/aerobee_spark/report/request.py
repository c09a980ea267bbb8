"""The request for a report: values only, parsed from the command line by `__main__.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aerobee_spark.table.storage import Table

DLQ = "dlq"
RETRY = "retry"

# Engines. AUTO: chosen by the number of messages.
AUTO = "auto"
LOCAL = "local"
SPARK = "spark"
ENGINES = (AUTO, LOCAL, SPARK)
# Up to so many messages AUTO takes the local engine.
LOCAL_UP_TO = 2_000_000


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
    # Width of a bucket of the timeline; None: chosen so that there are sixty at most.
    bucket_ms: int | None = None
    # Properties and JSON fields whose values become hashes in every file.
    redact: tuple[str, ...] = ()
    engine: str = AUTO
    local_up_to: int = LOCAL_UP_TO
    # A facts table to compute from, in place of the brokers.
    table: Table | None = None
    # Further figures for summary.json and the page, by --extra-json.
    extra: Mapping[str, Any] = field(default_factory=dict)
