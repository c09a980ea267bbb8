"""Report the metrics of a proxy to Prometheus.

Each scrape reads the counters of the proxy's objects. Scrapes run on another thread, which is safe
because they read only lengths and numbers. prometheus_client is loaded only if metrics are on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from aerobee_chassis.rpc.in_flight import InFlight, InFlightCollector
from aerobee_chassis.tls_port.supervisor import ConnectionCounts
from aerobee_proxy.counts import ProxyCounts
from aerobee_proxy.v2.sessions import Sessions

if TYPE_CHECKING:
    from prometheus_client.core import Metric

# Field of ProxyCounts → its help text.
_COUNTS = {
    "sent": "Messages that brokers took.",
    "received": "Messages given to clients.",
    "acknowledged": "Leases settled by an acknowledgement.",
    "unauthorized": "Calls without a valid signature or the rights for them.",
    "transactions_ended": "Commits and rollbacks.",
    "transaction_checks": "Checks of half messages sent to producers.",
    "leases_renewed": "Renewals of leases for push consumers.",
    "subscription_conflicts": "Topics to which members of one group subscribed differently.",
}


class ProxyCollector:
    """Collects the metrics of one proxy. Pass it to `CollectorRegistry.register`."""

    def __init__(
        self,
        sessions: Sessions,
        counts: ProxyCounts,
        in_flight: InFlight,
        connections: ConnectionCounts | None = None,
    ) -> None:
        """Create a collector. `connections` is None if TLS is off: gRPC does not count them."""
        self._sessions = sessions
        self._counts = counts
        self._in_flight = in_flight
        self._connections = connections

    def collect(self) -> Iterator[Metric]:
        yield from self._proxy()
        yield from InFlightCollector("aerobee_proxy_", self._in_flight).collect()
        if self._connections is not None:
            yield from _port(self._connections)

    def _proxy(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        yield GaugeMetricFamily(
            "aerobee_proxy_clients", "Clients that this proxy knows.", value=len(self._sessions)
        )
        for name, text in _COUNTS.items():
            value = getattr(self._counts, name)
            yield CounterMetricFamily(f"aerobee_proxy_{name}", text, value=value)


def _port(connections: ConnectionCounts) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    taken = CounterMetricFamily(
        "aerobee_proxy_connections", "Connections that clients opened.", labels=["security"]
    )
    taken.add_metric(["plaintext"], connections.plaintext)
    taken.add_metric(["tls"], connections.tls)
    yield taken
    refused = CounterMetricFamily(
        "aerobee_proxy_connections_refused", "Connections closed at once.", labels=["reason"]
    )
    refused.add_metric(["silent"], connections.silent)
    refused.add_metric(["plaintext"], connections.refused_plaintext)
    refused.add_metric(["handshake"], connections.failed_handshakes)
    refused.add_metric(["too_many"], connections.too_many)
    refused.add_metric(["too_many_of_address"], connections.too_many_of_address)
    yield refused
    yield CounterMetricFamily(
        "aerobee_proxy_certificate_reload_failures",
        "Changed certificates that could not be loaded: the last good one stays.",
        value=connections.failed_reloads,
    )
