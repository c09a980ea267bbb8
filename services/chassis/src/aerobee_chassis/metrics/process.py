"""The metrics that each service has: labels of the process, open ports and certificates."""

from __future__ import annotations

from collections.abc import Iterator

from aerobee_chassis.config import Options, pairs_of
from aerobee_chassis.metrics.series import Kind, Metric, Registry, Series

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
