"""Compute the coordinates and labels of the charts in a report.

A template draws the charts. Bars have horizontal coordinates in percent, so that they follow the
width of the page. The timeline has fixed coordinates of its own. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from aerobee_spark.report.data.buckets import DAY, HOUR, MINUTE, SECOND
from aerobee_spark.report.formats import moment

MOST_BARS = 16

# The size and the margins of the timeline.
WIDTH, HEIGHT = 1000, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 12, 30
MOST_X_LABELS = 7
MOST_Y_STEPS = 5


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: float
    # The start and the length of the bar in percent of the width of the chart.
    x: float
    width: float
    # The value in percent of the sum of all values. None if the values are not parts of a whole.
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    bars: list[Bar]
    # The number and the sum of the values that are not drawn.
    hidden: int = 0
    hidden_sum: float = 0
    # The position of the value 0 in percent of the width of the chart.
    zero: float = 0


def bars(values: Mapping[str, float], *, parts: bool = True) -> Bars:
    """Return a bar chart with one bar for each value, in the order of `values`.

    If the values are `parts` of a whole, only the first MOST_BARS values are drawn. Otherwise, all
    values are drawn, and bars of negative values extend to the left.
    """
    shown = list(values.items())[: MOST_BARS if parts else None]
    low = min([0, *(value for _, value in shown)])
    high = max([0, *(value for _, value in shown)])
    span = (high - low) or 1
    whole = sum(values.values()) or 1
    drawn = [
        Bar(
            label,
            value,
            100 * (min(value, 0) - low) / span,
            100 * abs(value) / span,
            100 * value / whole if parts else None,
        )
        for label, value in shown
    ]
    hidden = list(values.values())[len(shown) :]
    return Bars(drawn, len(hidden), sum(hidden), 100 * (0 - low) / span)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the timeline, which shows one bucket.

    The lower part shows dead letters and the upper part shows retries. `y` increases downwards.
    """

    x: float
    width: float
    dead_letters: int
    retries: int
    dead_y: float
    dead_height: float
    retry_y: float
    retry_height: float
    label: str


@dataclass(frozen=True, slots=True)
class Tick:
    position: float
    label: str


@dataclass(frozen=True, slots=True)
class Timeline:
    columns: list[Column]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    # The bucket with the most dead letters. Without dead letters, the bucket with the most retries.
    peak: Column
    # The name of the time zone of the labels.
    zone: str

    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    bottom: int = HEIGHT - BOTTOM


def timeline(buckets: Sequence[Mapping[str, Any]], bucket_ms: int) -> Timeline | None:
    """Return the timeline of the buckets, or None without buckets.

    `buckets` lists only buckets with messages. The timeline has empty space for the others.
    """
    if not buckets:
        return None
    zone = UTC if bucket_ms >= DAY else None  # a bucket of a day begins at midnight UTC
    first, last = buckets[0]["start_ms"], buckets[-1]["start_ms"]
    count = (last - first) // bucket_ms + 1
    slot = (WIDTH - LEFT - RIGHT) / max(count, 6)  # limits the width of the columns of few buckets
    most = max(each["dead_letters"] + each["retries"] for each in buckets)
    step = nice_step(most)
    top = -(-most // step) * step
    scale = (HEIGHT - TOP - BOTTOM) / top
    columns = [
        _column(each, (each["start_ms"] - first) // bucket_ms, slot, scale, zone)
        for each in buckets
    ]
    every = -(-count // MOST_X_LABELS)
    x_ticks = [
        Tick(LEFT + (i + 0.5) * slot, time_label(first + i * bucket_ms, bucket_ms, last - first))
        for i in range(0, count, every)
    ]
    y_ticks = [
        Tick(HEIGHT - BOTTOM - value * scale, f"{value:,}") for value in range(0, top + 1, step)
    ]
    peak = max(columns, key=lambda column: (column.dead_letters, column.retries))
    zone_name = datetime.fromtimestamp(first / 1000, UTC).astimezone(zone).strftime("%Z")
    return Timeline(columns, x_ticks, y_ticks, peak, zone_name)


def _column(
    bucket: Mapping[str, Any], position: int, slot: float, scale: float, zone: tzinfo | None
) -> Column:
    dead, retries = bucket["dead_letters"], bucket["retries"]
    dead_height, retry_height = dead * scale, retries * scale
    floor = HEIGHT - BOTTOM
    gap = min(slot * 0.18, 6)
    return Column(
        LEFT + position * slot + gap / 2,
        slot - gap,
        dead,
        retries,
        floor - dead_height,
        dead_height,
        floor - dead_height - retry_height,
        retry_height,
        moment(bucket["start"], zone),
    )


def nice_step(most: int) -> int:
    """Return the distance of the labels on the y axis, for values up to `most`.

    It is the smallest of 1, 2, 5, 10, 20, … with which MOST_Y_STEPS steps reach `most`.
    """
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power * MOST_Y_STEPS >= most:
                return factor * power
        power *= 10


def time_label(ms: int, bucket_ms: int, span_ms: int) -> str:
    """Return the label of a time on the x axis: a date in UTC, or a local time.

    The label is short if the bucket width and the time span of the axis allow it.
    """
    at = datetime.fromtimestamp(ms / 1000, UTC)
    if bucket_ms >= DAY:
        return at.strftime("%Y-%m-%d")
    clock = "%H:%M" if bucket_ms >= MINUTE else "%H:%M:%S"
    if span_ms >= 20 * HOUR:
        clock = f"%m-%d {clock}"
    text = at.astimezone().strftime(clock)
    return f"{text}.{ms % SECOND // 100}" if bucket_ms < SECOND else text
