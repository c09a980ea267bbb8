"""The metrics of a name server, read from its tables at each scrape.

A scrape runs on another thread, which is safe because it reads only lengths and numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aerobee_chassis.metrics.series import Kind, Metric, Series
from aerobee_namesrv.routing.broker_live_table import RemovalQueue
from aerobee_namesrv.routing.route_info_manager import RouteInfoManager
from aerobee_namesrv.routing.rows import Reason

PREFIX = "aerobee_namesrv_"
BROKERS = Metric(f"{PREFIX}brokers", Kind.GAUGE, "Brokers that are registered.")
TOPICS = Metric(f"{PREFIX}topics", Kind.GAUGE, "Topics that some broker has.")
REMOVALS_WAITING = Metric(
    f"{PREFIX}removals_waiting", Kind.GAUGE, "Brokers that wait to be unregistered."
)
UNREGISTERED = Metric(
    f"{PREFIX}unregistered_total", Kind.COUNTER, "Brokers that were unregistered.", ("reason",)
)
ROUTE_QUERIES = Metric(
    f"{PREFIX}route_queries_total",
    Kind.COUNTER,
    "Route queries: found, or missed because no broker has the topic.",
    ("outcome",),
)


@dataclass(slots=True)
class RouteCounts:
    """The number of route queries since the start."""

    found: int = 0
    missed: int = 0


@dataclass(frozen=True, slots=True)
class NamesrvMetrics:
    """The metrics of the tables. Register `collect` at the registry."""

    manager: RouteInfoManager
    removals: RemovalQueue
    counts: RouteCounts

    def collect(self) -> Iterator[Series]:
        manager, counts = self.manager, self.counts
        yield Series(BROKERS, {(): len(manager.broker_live_table)})
        yield Series(TOPICS, {(): len(manager.topic_queue_table)})
        yield Series(REMOVALS_WAITING, {(): len(self.removals)})
        yield Series(
            UNREGISTERED, {(reason.value,): manager.unregistered[reason] for reason in Reason}
        )
        yield Series(ROUTE_QUERIES, {("found",): counts.found, ("missed",): counts.missed})
