"""Write metrics in Prometheus' text format (version 0.0.4).

The writer keeps the text of each series' labels between two scrapes, because most series stay: a
scrape of 100,000 series then takes a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, isnan

from aerobee_chassis.metrics.series import Distribution, Kind, Labels, Metric, Registry, Value

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LINES = 512  # of one piece of text: the interpreter lock is held for less than 1 ms each


class Exposition:
    """Writes all metrics of a registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._process = _pairs(tuple(registry.labels), tuple(registry.labels.values()))
        # Name of a metric → labels → their text. Holds only what the last scrape wrote.
        self._texts: dict[str, dict[Labels, str]] = {}

    def write(self) -> Iterator[bytes]:
        """Yield the text of all metrics in pieces."""
        texts: dict[str, dict[Labels, str]] = {}
        for metric, items in self._registry.collect():
            known = self._texts.get(metric.name, {})
            kept = texts.setdefault(metric.name, {})
            # A histogram has a line for each bucket and the infinite one, its sum and its count.
            is_histogram = metric.kind is Kind.HISTOGRAM
            count = max(1, LINES // (len(metric.buckets) + 3)) if is_histogram else LINES
            named = [(metric.exposed, metric.text)]
            if metric.former:
                named.append((metric.former, f"Deprecated, use {metric.exposed}. {metric.text}"))
            for name, text in named:
                head = f"# HELP {name} {_escaped(text)}\n# TYPE {name} {metric.kind.value}\n"
                yield head.encode()
                for begin in range(0, len(items), count):
                    part = items[begin : begin + count]
                    for labels, _ in part:
                        if labels not in kept:
                            kept[labels] = known.get(labels) or self._labels(metric, labels)
                    yield "".join(_lines(name, metric.kind, part, kept)).encode()
        self._texts = texts

    def _labels(self, metric: Metric, values: Labels) -> str:
        return ",".join(filter(None, (self._process, _pairs(metric.labels, values))))


def _lines(
    name: str, kind: Kind, items: list[tuple[Labels, Value]], texts: dict[Labels, str]
) -> Iterator[str]:
    if kind is not Kind.HISTOGRAM:
        for labels, value in items:
            text = texts[labels]
            yield f"{name}{{{text}}} {_number(value)}\n" if text else f"{name} {_number(value)}\n"
        return
    for labels, value in items:
        assert isinstance(value, Distribution)
        text, counts, total = texts[labels], list(value.counts), 0
        before = f"{text}," if text else ""
        for bound, count in zip((*value.bounds, inf), counts, strict=True):
            total += count
            yield f'{name}_bucket{{{before}le="{_number(bound)}"}} {total}\n'
        own = f"{{{text}}}" if text else ""
        yield f"{name}_sum{own} {_number(value.sum)}\n{name}_count{own} {total}\n"


def _number(value: Value) -> str:
    assert not isinstance(value, Distribution)
    if isinstance(value, float):
        if isnan(value):
            return "NaN"
        if value in (inf, -inf):
            return "+Inf" if value > 0 else "-Inf"
    return repr(value + 0)  # + 0 makes a number of a bool


def _pairs(names: tuple[str, ...], values: Labels) -> str:
    return ",".join(
        f'{name}="{_escaped(value, quotes=True)}"'
        for name, value in zip(names, values, strict=True)
        if value
    )


def _escaped(text: str, *, quotes: bool = False) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quotes else text
