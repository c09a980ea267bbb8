"""Encode metrics as requests of OTLP's MetricsService (opentelemetry.proto.collector.metrics.v1).

The few messages that metrics need are written here by field number, so that no generated code and
no package of OpenTelemetry is loaded. Every number is 8 bytes wide or a varint.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

from aerobee_chassis.metrics.series import Distribution, Kind, Labels, Metric, Value
from aerobee_chassis.otlp.encoding import (
    VARINT,
    attribute,
    bytes_field,
    double_field,
    export_request,
    fixed_field,
    text_field,
    varint,
)

EXPORT = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
# Data points of one request: about 1 MB. Receivers accept at most 4 MiB by default.
POINTS = 5_000
DELTA, CUMULATIVE = 1, 2  # enum AggregationTemporality


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The series of one metric at the time of an export.

    `begin_ns` is the begin of the interval that the values cover, in ns since the epoch. It is the
    start of the process. With `delta`, it is the time since which the changes are counted.
    """

    metric: Metric
    items: Sequence[tuple[Labels, Value]]
    begin_ns: int
    delta: bool = False


class _Total(NamedTuple):
    """A total, and when it was read, in ns since the epoch."""

    value: Value | None
    at_ns: int


@dataclass(slots=True)
class Deltas:
    """Turns totals into changes. Each series changes since its own last export that succeeded.

    Args:
        begin_ns: The start of the process, in ns since the epoch.
    """

    begin_ns: int
    _before: dict[str, dict[Labels, _Total]] = field(default_factory=dict, init=False)
    _next: dict[str, dict[Labels, _Total]] = field(default_factory=dict, init=False)

    def of(
        self, collected: Iterable[tuple[Metric, list[tuple[Labels, Value]]]], now_ns: int
    ) -> list[Snapshot]:
        """Return the metrics, with changes in place of the totals of counters and histograms.

        If some series of a metric were not exported, it has a snapshot for each begin.
        """
        self._next, found, first = {}, [], _Total(None, self.begin_ns)
        for metric, items in collected:
            if metric.kind is Kind.GAUGE:
                found.append(Snapshot(metric, items, self.begin_ns))
                continue
            known = self._before.get(metric.name, {})
            # Without the series that were removed.
            before = {labels: known.get(labels, first) for labels, _ in items}
            self._before[metric.name] = before
            self._next[metric.name] = {
                labels: _Total(_copy(value), now_ns) for labels, value in items
            }
            changes: dict[int, list[tuple[Labels, Value]]] = {}
            for labels, value in items:
                total = before[labels]
                changes.setdefault(total.at_ns, []).append((labels, _since(total.value, value)))
            found += [Snapshot(metric, each, at_ns, delta=True) for at_ns, each in changes.items()]
        return found

    def exported(self, parts: Iterable[Snapshot]) -> None:
        """Begin the next interval of snapshots that `of` returned and the receiver has accepted."""
        for part in parts:
            if part.delta:
                before, totals = self._before[part.metric.name], self._next[part.metric.name]
                before.update((labels, totals[labels]) for labels, _ in part.items)


def _copy(value: Value) -> Value:
    if not isinstance(value, Distribution):
        return value
    copy = Distribution(value.bounds)
    copy.merge(value)
    return copy


def _since(before: Value | None, now: Value) -> Value:
    """Return the change of a total. A total that fell began again at 0."""
    if isinstance(now, Distribution):
        if not isinstance(before, Distribution) or sum(before.counts) > sum(now.counts):
            return now
        change = Distribution(now.bounds)
        change.counts = [new - old for new, old in zip(now.counts, before.counts, strict=True)]
        change.sum = now.sum - before.sum
        return change
    if before is None or isinstance(before, Distribution) or before > now:
        return now
    return now - before


def requests(
    snapshots: Iterable[Snapshot],
    *,
    process: Mapping[str, str],
    resource: Mapping[str, str],
    now_ns: int,
) -> Iterator[tuple[bytes, list[Snapshot]]]:
    """Yield ExportMetricsServiceRequest messages with all metrics, each with what it has.

    Args:
        snapshots: The metrics.
        process: The labels that each series has.
        resource: The attributes of the process that exports.
        now_ns: The end of the interval, in ns since the epoch.
    """
    metrics: list[bytes] = []
    parts: list[Snapshot] = []
    points = 0
    for snapshot in snapshots:
        items = snapshot.items
        for begin in range(0, len(items), POINTS):
            part = replace(snapshot, items=items[begin : begin + POINTS])
            if points + len(part.items) > POINTS and metrics:
                yield export_request(resource, metrics), parts
                metrics, parts, points = [], [], 0
            points += len(part.items)
            metrics.append(_metric(part, process, now_ns))
            parts.append(part)
    if metrics:
        yield export_request(resource, metrics), parts


def _metric(snapshot: Snapshot, process: Mapping[str, str], now_ns: int) -> bytes:
    """Encode a Metric: name = 1, description = 2, unit = 3, gauge = 5, sum = 7, histogram = 9."""
    metric = snapshot.metric
    head = text_field(1, metric.name) + text_field(2, metric.text) + text_field(3, metric.unit)
    times = fixed_field(2, snapshot.begin_ns) + fixed_field(3, now_ns)
    is_histogram = metric.kind is Kind.HISTOGRAM
    number = 9 if is_histogram else 7  # the field `attributes` of a data point
    own = b"".join(attribute(number, name, value) for name, value in process.items() if value)
    points = bytearray()
    for labels, value in snapshot.items:
        point = times + own
        for name, text in zip(metric.labels, labels, strict=True):
            if text:
                point += attribute(number, name, text)
        points += bytes_field(1, point + (_counts(value) if is_histogram else _number(value)))
    temporality = varint(2 << 3 | VARINT) + varint(DELTA if snapshot.delta else CUMULATIVE)
    if is_histogram:
        return head + bytes_field(9, bytes(points) + temporality)
    if metric.kind is Kind.COUNTER:
        monotonic = varint(3 << 3 | VARINT) + b"\x01"
        return head + bytes_field(7, bytes(points) + temporality + monotonic)
    return head + bytes_field(5, bytes(points))


def _number(value: Value) -> bytes:
    """Encode the value of a NumberDataPoint: as_double = 4, as_int = 6."""
    assert not isinstance(value, Distribution)
    return double_field(4, value) if isinstance(value, float) else fixed_field(6, int(value))


def _counts(value: Value) -> bytes:
    """Encode a HistogramDataPoint: count = 4, sum = 5, bucket_counts = 6, explicit_bounds = 7."""
    assert isinstance(value, Distribution)
    counts = list(value.counts)
    return b"".join(
        chain(
            (fixed_field(4, sum(counts)), double_field(5, value.sum)),
            (bytes_field(6, struct.pack(f"<{len(counts)}q", *counts)),),
            (bytes_field(7, struct.pack(f"<{len(value.bounds)}d", *value.bounds)),),
        )
    )
