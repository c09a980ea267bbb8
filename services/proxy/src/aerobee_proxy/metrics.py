"""The metrics of a proxy, read from the counters of its objects at each scrape.

Scrapes run on another thread, which is safe because they read only lengths and numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aerobee_chassis.metrics.series import Kind, Metric, Series
from aerobee_chassis.port_limits import PortCounts
from aerobee_chassis.tls_port.certificates import PortCertificate
from aerobee_proxy.counts import ProxyCounts
from aerobee_proxy.v2.sessions import Sessions

PREFIX = "aerobee_proxy_"
CLIENTS = Metric(f"{PREFIX}clients", Kind.GAUGE, "Clients that this proxy knows.")
# Field of ProxyCounts → the metric.
COUNTS = {
    name: Metric(f"{PREFIX}{name}_total", Kind.COUNTER, text)
    for name, text in {
        "sent": "Messages that brokers took.",
        "received": "Messages given to clients.",
        "acknowledged": "Leases settled by an acknowledgement.",
        "unauthorized": "Calls without a valid signature or the rights for them.",
        "transactions_ended": "Commits and rollbacks.",
        "transaction_checks": "Checks of half messages sent to producers.",
        "leases_renewed": "Renewals of leases for push consumers.",
        "subscription_conflicts": "Topics to which members of one group subscribed differently.",
    }.items()
}
CONNECTIONS = Metric(
    f"{PREFIX}connections_total",
    Kind.COUNTER,
    "Connections that clients opened.",
    ("security",),
)
CONNECTIONS_REFUSED = Metric(
    f"{PREFIX}connections_refused_total", Kind.COUNTER, "Connections closed at once.", ("reason",)
)
RELOAD_FAILURES = Metric(
    f"{PREFIX}certificate_reload_failures_total",
    Kind.COUNTER,
    "Changed certificates that could not be loaded: the last good one stays.",
)


@dataclass(frozen=True, slots=True)
class ProxyMetrics:
    """The metrics of one proxy. Register `collect` at the registry.

    `certificate` is None if TLS is off.
    """

    sessions: Sessions
    counts: ProxyCounts
    connections: PortCounts
    certificate: PortCertificate | None = None

    def collect(self) -> Iterator[Series]:
        yield Series(CLIENTS, {(): len(self.sessions)})
        for name, metric in COUNTS.items():
            yield Series(metric, {(): getattr(self.counts, name)})
        port = self.connections
        yield Series(CONNECTIONS, {("plaintext",): port.plaintext, ("tls",): port.tls})
        yield Series(
            CONNECTIONS_REFUSED,
            {
                ("silent",): port.silent,
                ("plaintext",): port.refused_plaintext,
                ("handshake",): port.failed_handshakes,
                ("proxy_protocol",): port.refused_headers,
                ("too_many",): port.too_many,
                ("too_many_of_address",): port.refused,
            },
        )
        if self.certificate is not None:
            yield Series(RELOAD_FAILURES, {(): self.certificate.failed_reloads})
