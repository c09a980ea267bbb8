"""What Prometheus sees of a proxy. Read at scrape time, so that nothing is counted twice.

Scrapes come from another thread: only lengths and numbers are read, which is safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from aerobee_proxy.sessions import Sessions


@dataclass(slots=True)
class Counts:
    """Since the start."""

    sent: int = 0
    received: int = 0
    acknowledged: int = 0
    subscription_conflicts: int = 0
    leases_renewed: int = 0
    unauthorized: int = 0


class ProxyCollector:
    """For `CollectorRegistry.register`."""

    def __init__(self, sessions: Sessions, counts: Counts) -> None:
        self._sessions = sessions
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "aerobee_proxy_clients", "Clients that this proxy knows.", value=len(self._sessions)
        )
        for name, text, value in (
            ("sent", "Messages that brokers took.", self._counts.sent),
            ("received", "Messages given to clients.", self._counts.received),
            ("acknowledged", "Leases settled by an acknowledgement.", self._counts.acknowledged),
            ("unauthorized", "Calls refused for who called.", self._counts.unauthorized),
            ("leases_renewed", "Renewals for push consumers.", self._counts.leases_renewed),
            (
                "subscription_conflicts",
                "Times that members of one group subscribed differently.",
                self._counts.subscription_conflicts,
            ),
        ):
            yield CounterMetricFamily(f"aerobee_proxy_{name}", text, value=value)
