"""The history of some figures: rings of the last 60 seconds, 120 minutes and 48 hours.

The module knows neither clocks nor topics. The caller records values once a second, and passes the
number of the second. A value that was not recorded is NaN.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from enum import Enum
from math import isnan, nan
from typing import NamedTuple


class Ring(NamedTuple):
    """The last `points` values, one for each `seconds`. `begin` is its place among the rings."""

    seconds: int
    points: int
    begin: int


SECONDS = Ring(1, 60, 0)
MINUTES = Ring(60, 120, 60)
HOURS = Ring(3_600, 48, 180)
POINTS = 228  # of one figure, in all rings: 912 bytes
assert HOURS.begin + HOURS.points == POINTS

# After a longer gap, such as that of a suspended machine, no value of the rings is known.
MAX_GAP = 60
RATE_SECONDS = 10


class Rollup(Enum):
    """The rule that computes a minute or an hour from the values of its seconds or minutes."""

    MEAN = 1  # a rate
    LAST = 2  # a level, such as a lag
    GIVEN = 3  # it does not follow: the caller calls `give`, such as for a percentile


class History:
    """The rings of some figures of one subject.

    Args:
        rollups: How each figure is summarized.
    """

    __slots__ = ("_last", "_rollups", "_still", "_values")

    def __init__(self, rollups: Sequence[Rollup]) -> None:
        self._rollups = rollups
        self._values = array("f", [nan]) * (POINTS * len(rollups))
        self._last: tuple[int, Sequence[float]] | None = None  # the last second and its values
        # Seconds in which no value has changed. After 60 s, the ring of seconds is constant.
        self._still = 0

    @property
    def figures(self) -> int:
        return len(self._rollups)

    @property
    def still_seconds(self) -> int:
        """The number of seconds since a value changed."""
        return self._still

    @property
    def latest(self) -> Sequence[float]:
        """The values of the last second that is recorded."""
        return [nan] * len(self._rollups) if self._last is None else self._last[1]

    def record(self, second: int, values: Sequence[float]) -> None:
        """Record the values of one second.

        If seconds before it were not recorded, they get the same values, because each value is
        the mean of the time since the last record. After more than `MAX_GAP` seconds, all values
        become unknown instead. A second that is already recorded is ignored.

        Args:
            second: The number of the second. Numbers increase, and minutes and hours begin at
                multiples of 60 and 3,600.
            values: The value of each figure.
        """
        first = second
        if self._last is not None:
            last, before = self._last
            if second <= last:
                return
            if second - last > MAX_GAP:
                self._values = array("f", [nan]) * len(self._values)
                self._still = 0
            else:
                first = last + 1
                self._still = self._still + second - last if values == before else 0
        for each in range(first, second + 1):
            self._record(each, values)
        self._last = second, values

    def values(self, figure: int, ring: Ring) -> list[float]:
        """Return the values of a figure, oldest first. The last one is the latest complete one.

        A figure without a record has only NaN.
        """
        if self._last is None:
            return [nan] * ring.points
        # The latest period that has ended: its last second is recorded.
        latest = (self._last[0] + 1) // ring.seconds - 1
        start = figure * POINTS + ring.begin
        return [
            self._values[start + number % ring.points]
            for number in range(latest - ring.points + 1, latest + 1)
        ]

    def rate(self, figure: int) -> float | None:
        """Return the mean of the last 10 seconds, or of fewer if no more are known.

        None if no second is known.
        """
        if self._last is None:
            return None
        start, end = figure * POINTS, self._last[0] + 1
        return mean(
            self._values[start + second % SECONDS.points]
            for second in range(end - RATE_SECONDS, end)
        )

    def assume_idle(self, first: int, last: int) -> None:
        """Set the rates of the seconds from `first` to `last` to 0, before the first record.

        Without that, the first minute of a subject would be the mean of its active seconds only.
        """
        for figure, rollup in enumerate(self._rollups):
            if rollup is not Rollup.MEAN:
                continue
            for second in range(max(first, last - SECONDS.points + 1), last + 1):
                self.give(figure, SECONDS, second, 0)
            for ring in (MINUTES, HOURS):
                ended = (last + 1) // ring.seconds
                for number in range(max(first // ring.seconds, ended - ring.points), ended):
                    self.give(figure, ring, number * ring.seconds, 0)

    def give(self, figure: int, ring: Ring, second: int, value: float) -> None:
        """Set the value of the second, minute or hour that contains `second`."""
        at = second // ring.seconds % ring.points
        self._values[figure * POINTS + ring.begin + at] = value

    def _record(self, second: int, values: Sequence[float]) -> None:
        if self._still < SECONDS.points:
            at, own = second % SECONDS.points, self._values
            for value in values:
                own[at] = value
                at += POINTS
        if (second + 1) % MINUTES.seconds == 0:
            self._roll_up(second, SECONDS, MINUTES)
            if (second + 1) % HOURS.seconds == 0:
                self._roll_up(second, MINUTES, HOURS)

    def _roll_up(self, second: int, source: Ring, target: Ring) -> None:
        """Summarize the period of `target` that ends with `second`."""
        last, count = second // source.seconds, target.seconds // source.seconds
        for figure, rollup in enumerate(self._rollups):
            start = figure * POINTS + source.begin
            if rollup is Rollup.GIVEN:
                value = nan
            elif rollup is Rollup.LAST:
                value = self._values[start + last % source.points]
            else:
                known = mean(
                    self._values[start + number % source.points]
                    for number in range(last - count + 1, last + 1)
                )
                value = nan if known is None else known
            self.give(figure, target, second, value)


def mean(values: Iterable[float]) -> float | None:
    """Return the mean of the values that are known (not NaN), or None if none is."""
    known = [value for value in values if not isnan(value)]
    return sum(known) / len(known) if known else None
