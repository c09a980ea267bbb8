"""Write the tables of metrics into docs/metrics.md, between their marks.

    .venv/bin/python docs/metrics.py

RocketMQ's metrics are in `rocketmq_metrics.toml`, and those of the services in their code. A unit
test fails if the page has other tables, or if a metric of RocketMQ differs without a reason.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from aerobee_broker import declared_metrics
from aerobee_chassis.metrics import process
from aerobee_chassis.metrics.series import Metric
from aerobee_chassis.rpc.in_flight import in_flight_metrics
from aerobee_namesrv import metrics as namesrv_metrics
from aerobee_proxy import metrics as proxy_metrics

PAGE = Path(__file__).with_name("metrics.md")
CONTRACT = Path(__file__).with_name("rocketmq_metrics.toml")
BEGIN, END = "<!-- {}: begin -->", "<!-- {}: end -->"
THEIRS = "rocketmq_"


class Expected(NamedTuple):
    """A metric of RocketMQ, as its exporters write it.

    Attributes:
        type: "gauge", "counter" or "histogram".
        labels: The labels besides those of the process.
        unit: The unit; empty for numbers.
        differs: How ours differs; empty if it does not.
        missing: Why there is none here; empty if there is one.
    """

    type: str
    labels: tuple[str, ...]
    unit: str = ""
    differs: str = ""
    missing: str = ""


def contract() -> Mapping[str, Expected]:
    """Return RocketMQ's metrics, by name."""
    table = tomllib.loads(CONTRACT.read_text(encoding="utf-8"))
    return {
        name: Expected(**{**row, "labels": tuple(row["labels"].split())})
        for name, row in table.items()
    }


def _declared(module: object) -> Iterator[Metric]:
    for value in vars(module).values():
        if isinstance(value, Metric):
            yield value
        elif isinstance(value, dict):
            yield from (each for each in value.values() if isinstance(each, Metric))


def services() -> Mapping[str, list[Metric]]:
    """Return all metrics, by the kind of process that serves them."""
    broker = [*_declared(declared_metrics), *in_flight_metrics("aerobee_")]
    return {
        "each process": list(_declared(process)),
        "broker": broker,
        "proxy": [*_declared(proxy_metrics), *in_flight_metrics(proxy_metrics.PREFIX)],
        "name server": [*_declared(namesrv_metrics), *in_flight_metrics(namesrv_metrics.PREFIX)],
    }


def all_metrics() -> Mapping[str, Metric]:
    """Return all metrics by their names in Prometheus, without the former names."""
    return {each.exposed: each for each in chain.from_iterable(services().values())}


def _labels(labels: tuple[str, ...]) -> str:
    return ", ".join(f"`{label}`" for label in labels)


def _served() -> Iterator[str]:
    yield "| metric of RocketMQ | type | further labels | meaning | differs |\n"
    yield "|---|---|---|---|---|\n"
    ours = {metric.name: metric for metric in services()["broker"]}
    for name, expected in contract().items():
        if not expected.missing:
            metric = ours[name]
            cells = (metric.kind.value, _labels(metric.labels), metric.text, expected.differs)
            yield f"| `{metric.exposed}` | {' | '.join(cells)} |\n"


def _missing() -> Iterator[str]:
    yield "| metric of RocketMQ | why there is none |\n|---|---|\n"
    for name, expected in contract().items():
        if expected.missing:
            yield f"| `{name}` | {expected.missing} |\n"


def _own() -> Iterator[str]:
    yield "| metric | process | type | further labels | meaning |\n|---|---|---|---|---|\n"
    for service, metrics in services().items():
        for metric in metrics:
            if not metric.name.startswith(THEIRS):
                cells = (service, metric.kind.value, _labels(metric.labels), metric.text)
                yield f"| `{metric.exposed}` | {' | '.join(cells)} |\n"


def _former() -> Iterator[str]:
    yield "| former name | name |\n|---|---|\n"
    for metric in chain.from_iterable(services().values()):
        if metric.former:
            yield f"| `{metric.former}` | `{metric.exposed}` |\n"


TABLES = {"served": _served, "missing": _missing, "own": _own, "former": _former}


def rewritten(page: str) -> str:
    """Return the page with the tables of the code. Raise SystemExit if a mark is missing."""
    for name, rows in TABLES.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, found, rest = page.partition(begin)
        _, ends, after = rest.partition(end)
        if not found or not ends:
            raise SystemExit(f"{PAGE.name} lacks the marks: add the lines {begin} and {end}")
        page = f"{before}{begin}\n\n{''.join(rows())}\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
