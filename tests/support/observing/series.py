"""Read one series of the registry of a process that runs in the test."""

from __future__ import annotations

from collections.abc import Mapping

from aerobee_chassis.metrics.series import Registry, Value


def series_value(
    registry: Registry, name: str, labels: Mapping[str, str] | None = None
) -> Value | None:
    """Return the value of a series by its Prometheus name and own labels, or None."""
    wanted = dict(labels or {})
    for metric, items in registry.collect():
        if metric.exposed == name:
            for values, value in items:
                if dict(zip(metric.labels, values, strict=True)) == wanted:
                    return value
    return None
