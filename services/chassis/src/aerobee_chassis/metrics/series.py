"""Metrics: what each one is, its values by label, and all metrics of a process.

The event loop changes values, and an exporter reads them on another thread. Each read copies a
dictionary with one call, which is atomic. The module knows no format: see `exposition` and `otlp`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from threading import Lock
from typing import TypeVar

Labels = tuple[str, ...]  # the values of a metric's labels, in their order

# The label of the series that stands for all series beyond the limit, as OpenTelemetry names it.
OVERFLOW_LABEL = "otel_metric_overflow"


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """The declaration of a metric.

    Args:
        name: The name without a unit, as OTLP has it.
        kind: Its type.
        text: What it measures, in one line.
        labels: The names of its own labels. The labels of the process come before them.
        unit: "milliseconds", "seconds" or "bytes"; empty for numbers, and where the name ends with
            the unit already.
        buckets: The upper bounds of the buckets of a histogram.
        former: The name of an earlier release, which Prometheus still gets in this release.
    """

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    buckets: tuple[float, ...] = ()
    former: str = ""

    @property
    def exposed(self) -> str:
        """The name in Prometheus' text format, which ends with the unit."""
        unit = f"_{self.unit}"
        return self.name if not self.unit or self.name.endswith(unit) else self.name + unit


class Distribution:
    """The values of a histogram: how many are in each bucket, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    def merge(self, other: Distribution) -> None:
        """Add the values of a distribution with the same bounds."""
        self.counts = [own + each for own, each in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum


Value = float | Distribution
V = TypeVar("V", bound=Value)


class Series:
    """The values of a metric, by the values of its labels."""

    __slots__ = ("_hidden", "_index", "metric", "values")

    def __init__(self, metric: Metric, values: Mapping[Labels, Value] | None = None) -> None:
        self.metric = metric
        self.values: dict[Labels, Value] = dict(values or {})
        # Position of a label → its value → the labels of the series.
        self._index: dict[int, dict[str, set[Labels]]] = {}
        # Position of a label → its values whose series are hidden.
        self._hidden: dict[int, set[str]] = {}

    def add(self, amount: float, *labels: str) -> None:
        """Add to a counter."""
        before = self.values.get(labels)
        if before is None:
            before = self._added(labels, 0)
        assert not isinstance(before, Distribution)
        self.values[labels] = before + amount

    def set(self, value: float, *labels: str) -> None:
        """Set a gauge, or the total of a counter that is counted elsewhere."""
        if self._index and labels not in self.values:
            self._added(labels, value)
        self.values[labels] = value

    def observe(self, value: float, *labels: str, count: int = 1) -> None:
        """Add a value to a histogram."""
        found = self.values.get(labels)
        if found is None:
            found = self._added(labels, Distribution(self.metric.buckets))
        assert isinstance(found, Distribution)
        found.observe(value, count)

    def replace(self, values: Mapping[Labels, float]) -> None:
        """Replace all values, so that series that `values` lacks disappear."""
        self.values = dict(values)
        self._index, self._hidden = {}, {}

    def remove(self, label: str, value: str) -> None:
        """Remove the series whose label has this value.

        The first removal makes an index of the series by this label. The cost of a later one
        depends only on the number of removed series.
        """
        at = self.metric.labels.index(label)
        index = self._index.get(at)
        if index is None:
            index = self._index[at] = {}
            for labels in self.values:
                index.setdefault(labels[at], set()).add(labels)
        for labels in index.pop(value, ()):
            del self.values[labels]
            for position, other in self._index.items():
                if position != at:
                    other[labels[position]].discard(labels)
                    if not other[labels[position]]:
                        del other[labels[position]]

    def hide(self, label: str, value: str) -> None:
        """Leave out the series whose label has this value, until the next `replace`.

        Use it instead of `remove` for series that only `replace` changes. It examines none of them.
        """
        if self.values:
            self._hidden.setdefault(self.metric.labels.index(label), set()).add(value)

    def _added(self, labels: Labels, value: V) -> V:
        """Add a series, and return its value."""
        self.values[labels] = value
        for at, index in self._index.items():
            index.setdefault(labels[at], set()).add(labels)
        return value

    def items(self) -> list[tuple[Labels, Value]]:
        """Return a copy of the values, which another thread may iterate."""
        hidden = list(self._hidden.items())  # first: `replace` changes the values first
        found = list(self.values.items())
        for at, values in hidden:
            found = [each for each in found if each[0][at] not in values]
        return found


Source = Callable[[], Iterable[Series]]


class Registry:
    """All metrics of a process.

    Args:
        labels: The labels of the process, which each series has.
        limit: The highest number of series of a metric.
    """

    def __init__(self, labels: Mapping[str, str] | None = None, limit: int = 50_000) -> None:
        self.labels = dict(labels or {})
        self._limit = limit
        self._sources: list[Source] = []
        self._made: dict[Metric, Series] = {}
        self._overflows: dict[Metric, _Overflow] = {}
        self._limiting = Lock()  # readers on several threads share the overflows

    def register(self, source: Source) -> None:
        """Collect the series that `source` returns at each read, on the thread of the reader."""
        self._sources.append(source)

    def series(self, metric: Metric) -> Series:
        """Return the series of a metric, created at the first call.

        A counter without labels starts at 0.
        """
        if (known := self._made.get(metric)) is not None:
            return known
        made = self._made[metric] = Series(metric)
        if metric.kind is Kind.COUNTER and not metric.labels:
            made.set(0)
        self.register(lambda: (made,))
        return made

    def collect(self) -> Iterator[tuple[Metric, list[tuple[Labels, Value]]]]:
        """Yield each metric with its series."""
        for source in list(self._sources):
            for series in source():
                items = series.items()
                metric = series.metric
                if len(items) <= self._limit and metric not in self._overflows:
                    yield metric, items
                elif metric.kind is Kind.GAUGE:
                    # The others are left out, because a sum of gauges need not mean anything.
                    kept = items[: self._limit]
                    yield _limited(metric), [((*labels, ""), value) for labels, value in kept]
                else:
                    with self._limiting:
                        overflow = self._overflows.setdefault(metric, _Overflow(metric))
                        limited = overflow.limited(items, self._limit)
                    yield _limited(metric), limited


def _limited(metric: Metric) -> Metric:
    """Return a metric with the label of the overflow."""
    return replace(metric, labels=(*metric.labels, OVERFLOW_LABEL))


class _Overflow:
    """The series of a counter or histogram with too many of them, and what the others sum up to.

    The sum never falls, because Prometheus takes a fall for a restart: a series that is summed up
    stays so, and still counts after its removal.
    """

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._kept: set[Labels] = set()
        self._summed: dict[Labels, Value] = {}
        self._ended_number = 0.0  # of series that were removed, or began again
        self._ended = Distribution(metric.buckets)

    def limited(self, items: list[tuple[Labels, Value]], limit: int) -> list[tuple[Labels, Value]]:
        """Return at most `limit` of the series, and the sum of the others."""
        present = dict(items)
        self._kept &= present.keys()
        for labels in self._summed.keys() - present.keys():
            self._end(self._summed.pop(labels))
        for labels, value in items:
            if labels in self._kept:
                continue
            before = self._summed.get(labels)
            if before is None and len(self._kept) < limit:
                self._kept.add(labels)
                continue
            if before is not None and _size(before) > _size(value):
                self._end(before)
            self._summed[labels] = value
        kept: list[tuple[Labels, Value]] = [
            ((*labels, ""), value) for labels, value in items if labels in self._kept
        ]
        return [*kept, (("",) * len(self._metric.labels) + ("true",), self._total())]

    def _end(self, value: Value) -> None:
        if isinstance(value, Distribution):
            self._ended.merge(value)
        else:
            self._ended_number += value

    def _total(self) -> Value:
        if self._metric.kind is Kind.COUNTER:
            numbers = (each for each in self._summed.values() if not isinstance(each, Distribution))
            return self._ended_number + sum(numbers)
        total = Distribution(self._metric.buckets)
        for each in (self._ended, *self._summed.values()):
            assert isinstance(each, Distribution)
            total.merge(each)
        return total


def _size(value: Value) -> float:
    return sum(value.counts) if isinstance(value, Distribution) else value
