"""Measures how long sends take, from the request to the answer, and estimates percentiles.

At high rates, only a part of the sends is measured, each with the weight of the others.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from math import log, nan

LOWEST_MS = 0.01
# Each bucket is a tenth wider than the one before, so a percentile is at most 5 % wrong.
STEP = 1.1
BUCKETS = 170  # up to 100 s
MEASURED_PER_S = 256


class Histogram:
    """Counts of times in logarithmic buckets."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts = [0] * BUCKETS

    def add(self, milliseconds: float, weight: int = 1) -> None:
        bucket = 0
        if milliseconds > LOWEST_MS:
            bucket = min(int(log(milliseconds / LOWEST_MS, STEP)), BUCKETS - 1)
        self._counts[bucket] += weight

    def merge(self, other: Histogram) -> None:
        self._counts = [own + each for own, each in zip(self._counts, other._counts, strict=True)]

    def percentile(self, part: float) -> float:
        """Return the time in ms that `part` (0 to 1) of the times do not exceed. NaN if empty."""
        sums = list(accumulate(self._counts))
        if not sums[-1]:
            return nan
        bucket = bisect_left(sums, part * sums[-1])
        return float(LOWEST_MS * STEP ** (bucket + 0.5))


@dataclass(slots=True, eq=False)
class SendLatency:
    """The times of the sends since the last call of `take`."""

    _histogram: Histogram = field(default_factory=Histogram, init=False)
    _sends: int = field(default=0, init=False)
    _stride: int = field(default=1, init=False)  # one of this many sends is measured

    def begin(self) -> float:
        """Return the start time of a send that is measured, or 0."""
        self._sends += 1
        return 0.0 if self._sends % self._stride else asyncio.get_running_loop().time()

    def end(self, begin: float) -> None:
        """Count a send that has succeeded. `begin` is the result of `begin`."""
        if begin:
            duration_ms = (asyncio.get_running_loop().time() - begin) * 1_000
            self._histogram.add(duration_ms, self._stride)

    def take(self, seconds: int) -> Histogram:
        """Return the times since the last call, which was `seconds` ago, and begin again."""
        taken, self._histogram = self._histogram, Histogram()
        self._stride = max(1, self._sends // (MEASURED_PER_S * seconds))
        self._sends = 0
        return taken
