"""The history of figures: the content of a chart, from the rings of the brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aerobee_client.admin.stats import History, Stats

# Period of a value → length of the whole history.
PERIODS = {"second": "1 min", "minute": "2 h", "hour": "2 d"}
DEFAULT_PERIOD = "minute"


@dataclass(frozen=True, slots=True)
class Point:
    """The values of one period. `end_ms` is its end, in milliseconds since the epoch.

    A value is None if a broker did not report it.
    """

    end_ms: int
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """The history of some figures of the cluster, oldest first."""

    title: str
    labels: tuple[str, ...]
    points: tuple[Point, ...]


def chart(
    title: str, figures: Mapping[str, str], stats: Stats | None, history: History | None
) -> Chart:
    """Return a chart.

    Args:
        title: The title of the chart, with its unit.
        figures: The labels of the figures, by the name of the figure.
        stats: The answer of the brokers; None if no broker answered.
        history: The part of `stats` to show; None if no broker knows it.
    """
    labels = tuple(figures.values())
    if stats is None or history is None or stats.end_timestamp_ms is None:
        return Chart(title, labels, ())
    columns: Sequence[tuple[float | None, ...]] = [
        history.cluster.get(name, ()) for name in figures
    ]
    length = max(map(len, columns), default=0)
    padded = [(None,) * (length - len(column)) + tuple(column) for column in columns]
    end_ms, period_ms = stats.end_timestamp_ms, stats.period_ms
    points = (
        Point(end_ms - (length - 1 - index) * period_ms, values)
        for index, values in enumerate(zip(*padded, strict=True))
    )
    known = [point for point in points if any(value is not None for value in point.values)]
    return Chart(title, labels, tuple(known))
