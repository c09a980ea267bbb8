"""The metrics that each service has: labels of the process, open ports and certificates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from aerobee_chassis.config import Options, pairs_of
from aerobee_chassis.metrics.series import Kind, Metric, Registry, Series, Source
from aerobee_chassis.port_limits import PortCounts

INSECURE = Metric(
    "aerobee_insecure",
    Kind.GAUGE,
    "1 if other machines may reach the port and it serves each caller, else 0.",
)
CERTIFICATE_EXPIRY = Metric(
    "aerobee_certificate_expiry_timestamp_seconds",
    Kind.GAUGE,
    "When the first certificate of the file that the option names expires.",
    ("option",),
)

CONNECTIONS = Metric(
    "aerobee_connections",
    Kind.GAUGE,
    "Open connections of the port.",
)
CONNECTIONS_REFUSED = Metric(
    "aerobee_connections_refused_total",
    Kind.COUNTER,
    "Connections that were closed because their address had too many.",
)
LATE_REQUESTS = Metric(
    "aerobee_late_requests_total",
    Kind.COUNTER,
    "Calls that ended because their request did not arrive in time.",
)
OVER_QUOTA = Metric(
    "aerobee_over_quota_calls_total",
    Kind.COUNTER,
    "Calls beyond a quota of their caller.",
    ("outcome",),
)
AUDIT_FAILURES = Metric(
    "aerobee_audit_failures_total",
    Kind.COUNTER,
    "Lines of the audit log that could not be written. Only with `auditLogPath`.",
    ("effect",),
)
SCRAPES_REFUSED = Metric(
    "aerobee_scrapes_refused_total",
    Kind.COUNTER,
    "Requests for metrics that were refused because too many ran.",
)

EXPORTS = Metric(
    "aerobee_metrics_exports_total",
    Kind.COUNTER,
    "Exports of all metrics. Only with `metricsExporterType` OTLP_GRPC or LOG.",
    ("result",),
)
SPANS = Metric(
    "aerobee_spans_total",
    Kind.COUNTER,
    "Spans of traces that were sent or dropped. Only with `otlpEndpoint`, which name servers lack.",
    ("result",),
)


class AuditCounts(Protocol):
    """The numbers of lines of an audit log that could not be written."""

    @property
    def refused(self) -> int: ...

    @property
    def lost(self) -> int: ...


class QuotaCounts(Protocol):
    """The numbers of calls that were beyond a quota."""

    @property
    def refused(self) -> int: ...

    @property
    def delayed(self) -> int: ...


def make_registry(options: Options, cluster: str, node_type: str, node_id: str) -> Registry:
    """Return the registry of a process, with what each service reports.

    Args:
        options: The options of the service.
        cluster: The name of the cluster; empty if the service has none.
        node_type: The kind of the service.
        node_id: The name of the broker or proxy; empty if the service has none.
    """
    registry = Registry(
        {
            **pairs_of(options.metrics_label),
            "aggregation": "delta" if options.metrics_in_delta else "",
            "cluster": cluster,
            "node_type": node_type,
            "node_id": node_id,
        },
        options.metrics_otel_cardinality_limit,
    )

    def security() -> Iterator[Series]:
        yield Series(INSECURE, {(): options.is_insecure})
        yield Series(
            CERTIFICATE_EXPIRY,
            {(option,): each.timestamp() for option, each in options.expiries().items()},
        )

    registry.register(security)
    return registry


def port_source(counts: PortCounts) -> Source:
    """Return the metrics of a port's limits for a registry."""

    def collect() -> Iterator[Series]:
        yield Series(CONNECTIONS, {(): counts.open})
        yield Series(CONNECTIONS_REFUSED, {(): counts.refused})
        yield Series(LATE_REQUESTS, {(): counts.late})

    return collect


def audit_source(audit: Callable[[], AuditCounts | None]) -> Source:
    """Return the metrics of an audit log for a registry. `audit` returns None without one."""

    def collect() -> Iterator[Series]:
        counts = audit()
        if counts is not None:
            yield Series(
                AUDIT_FAILURES,
                {("change_refused",): counts.refused, ("line_lost",): counts.lost},
            )

    return collect


def quota_source(quotas: Callable[[], QuotaCounts | None]) -> Source:
    """Return the metrics of quotas for a registry. `quotas` returns None until they are known."""

    def collect() -> Iterator[Series]:
        counts = quotas()
        if counts is not None:
            yield Series(OVER_QUOTA, {("refused",): counts.refused, ("delayed",): counts.delayed})

    return collect
