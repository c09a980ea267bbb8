"""Collect the metrics of a name server from its tables at each scrape.

A scrape runs on another thread, which is safe because it reads only lengths and numbers.
prometheus_client is imported at the first scrape, because metrics are off by default.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aerobee_chassis.rpc.in_flight import InFlight, InFlightCollector
from aerobee_namesrv.routing.broker_live_table import RemovalQueue
from aerobee_namesrv.routing.route_info_manager import RouteInfoManager
from aerobee_namesrv.routing.rows import Reason

if TYPE_CHECKING:
    from prometheus_client.core import Metric


@dataclass(slots=True)
class RouteCounts:
    """The number of route queries since the start."""

    found: int = 0
    missed: int = 0


class NamesrvCollector:
    """Collect the metrics. Register it with `CollectorRegistry.register`."""

    def __init__(
        self,
        manager: RouteInfoManager,
        removals: RemovalQueue,
        counts: RouteCounts,
        in_flight: InFlight,
    ) -> None:
        self._in_flight = in_flight
        self._manager = manager
        self._removals = removals
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, text, value in (
            ("brokers", "Brokers that are registered.", len(self._manager.broker_live_table)),
            ("topics", "Topics that some broker has.", len(self._manager.topic_queue_table)),
            ("removals_waiting", "Brokers that wait to be unregistered.", len(self._removals)),
        ):
            yield GaugeMetricFamily(f"aerobee_namesrv_{name}", text, value=value)
        yield from InFlightCollector("aerobee_namesrv_", self._in_flight).collect()
        removed = CounterMetricFamily(
            "aerobee_namesrv_unregistered", "Brokers that were unregistered.", labels=["reason"]
        )
        for reason in Reason:
            removed.add_metric([reason.value], self._manager.unregistered[reason])
        yield removed
        queries = CounterMetricFamily(
            "aerobee_namesrv_route_queries", "Route queries.", labels=["outcome"]
        )
        queries.add_metric(["found"], self._counts.found)
        queries.add_metric(["missed"], self._counts.missed)
        yield queries
