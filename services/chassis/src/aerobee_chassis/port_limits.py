"""Define the limits of a port: its connections, their silence, and late requests.

`rpc.connections` and the options of gRPC enforce them, and for a proxy its relay (`tls_port`). The
bytes of requests and answers have limits of their own (`rpc.in_flight`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aerobee_chassis.config import Options

if TYPE_CHECKING:
    from prometheus_client.core import Metric


@dataclass(slots=True)
class PortCounts:
    """The connections of a port now, and what it refused since its start."""

    open: int = 0
    refused: int = 0  # connections above maxConnectionsPerAddress
    late: int = 0  # calls whose request did not arrive in time


@dataclass(frozen=True, slots=True)
class PortLimits:
    """The limits of one port, with its counts. The comments name the options."""

    connections: int = 20_000  # maxConnections
    connections_per_address: int = 2_000  # maxConnectionsPerAddress
    silent_ms: int = 10_000  # silentConnectionTimeoutMillis
    streams: int = 10_000  # maxStreamsPerConnection
    arrival_s: float = 30.0  # requestArrivalTimeoutMillis
    counts: PortCounts = field(default_factory=PortCounts)


def limits_of(options: Options) -> PortLimits:
    """Return the limits in the options of a service, with new counts."""
    return PortLimits(
        options.max_connections,
        options.max_connections_per_address,
        options.silent_connection_timeout_millis,
        options.max_streams_per_connection,
        options.request_arrival_timeout_millis / 1_000,
    )


class PortCollector:
    """Collect the counts of a port for Prometheus."""

    def __init__(self, limits: PortLimits) -> None:
        self._counts = limits.counts

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        yield GaugeMetricFamily(
            "aerobee_connections",
            "Open connections of the port, without those of a proxy's relay.",
            value=self._counts.open,
        )
        yield CounterMetricFamily(
            "aerobee_connections_refused",
            "Connections that were closed because their address had too many.",
            value=self._counts.refused,
        )
        yield CounterMetricFamily(
            "aerobee_late_requests",
            "Calls that ended because their request did not arrive in time.",
            value=self._counts.late,
        )
