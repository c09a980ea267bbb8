"""Describe a request to write messages into a facts table, and its result. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aerobee_spark.report.request import AUTO, DLQ
from aerobee_spark.table.commits import Span
from aerobee_spark.table.storage import Table

# If a broker is unavailable, the read of a batch waits up to this time in milliseconds for it.
PULL_TIMEOUT_MS = 60_000

OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LandRequest:
    """A request to write messages into a facts table.

    The messages are those of a consumer group's dead-letter or retry topics (`kinds`), or those of
    `topics`. `every_ms` is the interval of batches in milliseconds. If it is 0, the job writes the
    existing messages and ends.
    """

    name_server: str
    table: Table
    consumer_group: str = ""
    kinds: tuple[str, ...] = ("dlq", "retry")
    topics: tuple[str, ...] = ()
    every_ms: int = 0
    # Most messages of one batch.
    batch_size: int = 200_000
    include_bodies: bool = True
    engine: str = AUTO

    def about(self) -> dict[str, Any]:
        """Return the description that the table stores: its group or topics.

        It must be the same for all runs that write into a table.
        """
        if self.consumer_group:
            return {"group": self.consumer_group, "kinds": list(self.kinds)}
        return {"topics": sorted(self.topics)}

    @property
    def has_letters(self) -> bool:
        """Return whether the table has dead letters of a group, which have states."""
        return bool(self.consumer_group) and DLQ in self.kinds

    def options(self) -> dict[str, str]:
        """Return the options of the data source for a read of the messages.

        With these options, lost messages do not stop the read; they are only counted.
        """
        options = {
            "nameServer": self.name_server,
            "failOnDataLoss": "false",
            "pullTimeoutMs": str(PULL_TIMEOUT_MS),
            "includeBody": str(self.include_bodies).lower(),
        }
        if self.consumer_group:
            kind = "both" if len(self.kinds) > 1 else self.kinds[0]
            return {**options, "consumerGroup": self.consumer_group, "kind": kind}
        return {**options, "topic": ",".join(self.topics)}

    def stream_options(self) -> dict[str, str]:
        """Return the options of the data source for a stream."""
        return {**self.options(), "maxOffsetsPerTrigger": str(self.batch_size)}


@dataclass(frozen=True, slots=True)
class LandResult:
    """The result of one run.

    `away` has a sentence for each queue that was not read completely. `queues` describes the
    content of the whole table. `states` counts the dead letters of the table by state, and
    `states_unknown` has the error of each broker that did not return states.
    """

    rows: int
    lost: int
    batches: int
    away: tuple[str, ...]
    queues: tuple[Span, ...]
    states: Mapping[str, int] = field(default_factory=dict)
    states_unknown: Mapping[str, str] = field(default_factory=dict)
