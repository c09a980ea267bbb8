"""Encode metrics as requests of OTLP's MetricsService (opentelemetry.proto.collector.metrics.v1).

The few messages that metrics need are written here by field number, so that no generated code and
no package of OpenTelemetry is loaded. Every number is 8 bytes wide or a varint.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from aerobee_chassis.metrics.series import Distribution, Kind, Labels, Metric, Value

EXPORT = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
# Data points of one request: about 1 MB. Receivers accept at most 4 MiB by default.
POINTS = 5_000
SCOPE = b"aerobee"
DELTA, CUMULATIVE = 1, 2  # enum AggregationTemporality

# Wire types.
_VARINT, _FIXED64, _BYTES = 0, 1, 2


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _bytes(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _text(number: int, content: str) -> bytes:
    return _bytes(number, content.encode()) if content else b""


def _fixed(number: int, value: int) -> bytes:
    return _varint(number << 3 | _FIXED64) + struct.pack("<q", value)


def _double(number: int, value: float) -> bytes:
    return _varint(number << 3 | _FIXED64) + struct.pack("<d", value)


def _attribute(number: int, name: str, value: str) -> bytes:
    """Encode a KeyValue {key = 1, value = 2} whose AnyValue is a string {string_value = 1}."""
    return _bytes(number, _text(1, name) + _bytes(2, _text(1, value)))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The series of one metric at a time, as they are exported.

    With `delta`, the values are the changes since the begin of the interval.
    """

    metric: Metric
    items: Sequence[tuple[Labels, Value]]
    delta: bool = False


@dataclass(slots=True)
class Deltas:
    """Turns totals into changes since the last export that succeeded."""

    _before: dict[str, dict[Labels, Value]] = field(default_factory=dict)
    _next: dict[str, dict[Labels, Value]] = field(default_factory=dict)

    def of(self, collected: Iterable[tuple[Metric, list[tuple[Labels, Value]]]]) -> list[Snapshot]:
        """Return the metrics, with changes in place of the totals of counters and histograms."""
        self._next, found = {}, []
        for metric, items in collected:
            if metric.kind is Kind.GAUGE:
                found.append(Snapshot(metric, items))
                continue
            before = self._before.get(metric.name, {})
            totals = self._next[metric.name] = {labels: _copy(value) for labels, value in items}
            changed = [(labels, _since(before.get(labels), now)) for labels, now in totals.items()]
            found.append(Snapshot(metric, changed, delta=True))
        return found

    def exported(self) -> None:
        """Begin the next interval, because the result of `of` has arrived."""
        self._before = self._next


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
    begin_ns: int,
    now_ns: int,
) -> Iterator[bytes]:
    """Yield ExportMetricsServiceRequest messages with all metrics.

    Args:
        snapshots: The metrics.
        process: The labels that each series has.
        resource: The attributes of the process that exports.
        begin_ns: The begin of the interval, in ns since the epoch: the start of the process, or of
            the changes.
        now_ns: The end of the interval.
    """
    shared = b"".join(_attribute(1, name, value) for name, value in resource.items())
    # ResourceMetrics {resource = 1, scope_metrics = 2}, ScopeMetrics {scope = 1, metrics = 2}
    before = _bytes(1, shared)
    metrics: list[bytes] = []
    points = 0
    for snapshot in snapshots:
        items = snapshot.items
        for begin in range(0, len(items), POINTS):
            part = items[begin : begin + POINTS]
            if points + len(part) > POINTS and metrics:
                yield _request(before, metrics)
                metrics, points = [], 0
            points += len(part)
            metrics.append(_metric(snapshot, part, process, begin_ns, now_ns))
    if metrics:
        yield _request(before, metrics)


def _request(resource: bytes, metrics: list[bytes]) -> bytes:
    scope = _bytes(1, _bytes(1, SCOPE)) + b"".join(_bytes(2, metric) for metric in metrics)
    return _bytes(1, resource + _bytes(2, scope))


def _metric(
    snapshot: Snapshot,
    items: Sequence[tuple[Labels, Value]],
    process: Mapping[str, str],
    begin_ns: int,
    now_ns: int,
) -> bytes:
    """Encode a Metric: name = 1, description = 2, unit = 3, gauge = 5, sum = 7, histogram = 9."""
    metric = snapshot.metric
    head = _text(1, metric.name) + _text(2, metric.text) + _text(3, metric.unit)
    times = _fixed(2, begin_ns) + _fixed(3, now_ns)
    is_histogram = metric.kind is Kind.HISTOGRAM
    number = 9 if is_histogram else 7  # the field `attributes` of a data point
    own = b"".join(_attribute(number, name, value) for name, value in process.items() if value)
    points = bytearray()
    for labels, value in items:
        point = times + own
        for name, text in zip(metric.labels, labels, strict=True):
            if text:
                point += _attribute(number, name, text)
        points += _bytes(1, point + (_counts(value) if is_histogram else _number(value)))
    temporality = _varint(2 << 3 | _VARINT) + _varint(DELTA if snapshot.delta else CUMULATIVE)
    if is_histogram:
        return head + _bytes(9, bytes(points) + temporality)
    if metric.kind is Kind.COUNTER:
        monotonic = _varint(3 << 3 | _VARINT) + b"\x01"
        return head + _bytes(7, bytes(points) + temporality + monotonic)
    return head + _bytes(5, bytes(points))


def _number(value: Value) -> bytes:
    """Encode the value of a NumberDataPoint: as_double = 4, as_int = 6."""
    assert not isinstance(value, Distribution)
    return _double(4, value) if isinstance(value, float) else _fixed(6, int(value))


def _counts(value: Value) -> bytes:
    """Encode a HistogramDataPoint: count = 4, sum = 5, bucket_counts = 6, explicit_bounds = 7."""
    assert isinstance(value, Distribution)
    counts = list(value.counts)
    return b"".join(
        chain(
            (_fixed(4, sum(counts)), _double(5, value.sum)),
            (_bytes(6, struct.pack(f"<{len(counts)}q", *counts)),),
            (_bytes(7, struct.pack(f"<{len(value.bounds)}d", *value.bounds)),),
        )
    )


def rejection(answer: bytes) -> str:
    """Return the problem in an ExportMetricsServiceResponse, or "" if all points were accepted.

    The message has partial_success = 1 {rejected_data_points = 1, error_message = 2}.
    """
    partial = dict(_fields(answer)).get(1, b"")
    if not isinstance(partial, bytes):
        return ""
    fields = dict(_fields(partial))
    rejected, message = fields.get(1, 0), fields.get(2, b"")
    text = message.decode(errors="replace") if isinstance(message, bytes) else ""
    return f"{rejected!r} data points rejected: {text}" if rejected or text else ""


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, value) of the varints and byte fields of a message."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while at < len(message):
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        return value

    while at < len(message):
        tag = varint()
        if tag & 7 == _VARINT:
            yield tag >> 3, varint()
        elif tag & 7 == _BYTES:
            size = varint()
            yield tag >> 3, message[at : at + size]
            at += size
        else:  # no field of this message has another type
            return
