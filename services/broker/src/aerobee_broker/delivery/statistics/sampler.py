"""Samples the counters of the broker once a second, and keeps their history.

Counting a message does not touch this module: a sample reads the totals that `BrokerMetrics` keeps.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import isnan, nan

from aerobee_broker.delivery.statistics.history import (
    HOURS,
    MINUTES,
    RATE_SECONDS,
    History,
    Ring,
    Rollup,
)
from aerobee_broker.delivery.statistics.latency import Histogram, SendLatency
from aerobee_broker.metrics import BrokerMetrics, Traffic
from aerobee_chassis.clock import Clock

SECOND_MS = 1_000
# Figures of all subjects together. With their rings of 912 bytes, they take less than 10 MB.
MAX_FIGURES = 8_200
# A subject whose values have not changed for this long gives way to an active one.
STILL_SECONDS = 60
SLICE = 200  # subjects sampled, or lags computed, before other work runs: about 1 ms
# The part of the time that the computation of lags may take, as 1 / n.
LAG_SHARE = 50


class Kind(IntEnum):  # the hash of another Enum is computed in Python, for each look-up
    BROKER = 0
    TOPIC = 1
    GROUP = 2


# The figures of each kind, in the order of their values. Rates are per second.
FIGURES: Mapping[Kind, tuple[str, ...]] = {
    Kind.BROKER: (
        "messages_in",
        "bytes_in",
        "messages_out",
        "bytes_out",
        "dead_lettered",
        "redelivered",
        "lag",
        "send_latency_p50_ms",
        "send_latency_p99_ms",
    ),
    Kind.TOPIC: ("messages_in", "bytes_in", "messages_out", "bytes_out"),
    Kind.GROUP: ("messages_out", "bytes_out", "dead_lettered", "redelivered", "lag"),
}
# Every other figure is a rate.
_NO_RATES = {
    "lag": Rollup.LAST,
    "send_latency_p50_ms": Rollup.GIVEN,
    "send_latency_p99_ms": Rollup.GIVEN,
}
_ROLLUPS = {
    kind: [_NO_RATES.get(name, Rollup.MEAN) for name in figures]
    for kind, figures in FIGURES.items()
}
_IDLE = (0.0,) * 8  # rates of a subject whose counters did not change
_MESSAGES = ("messages_in", "messages_out")
_PERCENTILES = {"send_latency_p50_ms": 0.5, "send_latency_p99_ms": 0.99}
Key = tuple[Kind, str]
Totals = tuple[int, ...]  # counters since the start of the process
Levels = tuple[float, ...]  # values that can fall, such as a lag


@dataclass(slots=True)
class _Subject:
    history: History
    totals: Totals
    levels: Levels


@dataclass(slots=True, eq=False)
class Sampler:
    """Keeps the history of the broker, and of its active topics and groups.

    Args:
        metrics: The counters.
        lags: Yields (group, topic, lag) for each topic in which a group has offsets.
        clock: The clock.
    """

    metrics: BrokerMetrics
    lags: Callable[[], Iterator[tuple[str, str, int]]]
    clock: Clock
    send_latency: SendLatency = field(default_factory=SendLatency)
    max_figures: int = MAX_FIGURES
    # Group → messages that it has not consumed, as last computed. None until then.
    lag_of: dict[str, int] | None = field(default=None, init=False)
    _subjects: dict[Key, _Subject] = field(default_factory=dict, init=False)
    # The last values of subjects that have counted something and have no history.
    _without: dict[Key, tuple[Totals, Levels]] = field(default_factory=dict, init=False)
    # Subjects that have no history, because there is no room, and their last active second. They
    # stay for the 10 s of a rate.
    _omitted: dict[Key, int] = field(default_factory=dict, init=False)
    # Subjects that gave way to others, or found no room: their earlier values are unknown.
    _dropped: set[Key] = field(default_factory=set, init=False)
    _figures: int = field(default=0, init=False)
    _origin_ms: int = field(init=False)  # wall clock at monotonic 0
    _second: int | None = field(default=None, init=False)  # the last second sampled
    _first: int = field(default=0, init=False)  # the first second that is recorded
    _has_rates: bool = field(default=False, init=False)  # False until the second sample
    _next_lags_ms: int = field(default=0, init=False)  # monotonic
    # The times of sends in the present minute and hour.
    _latencies: dict[Ring, Histogram] = field(
        default_factory=lambda: {MINUTES: Histogram(), HOURS: Histogram()}, init=False
    )
    _sampled: asyncio.Event = field(default_factory=asyncio.Event, init=False)  # of the next sample
    _is_closed: bool = field(default=False, init=False)
    # Subjects that may be dropped in this sample; None if they are not collected yet.
    _still: list[Key] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        # Seconds follow the monotonic clock, so that a step of the wall clock loses no history.
        self._origin_ms = self.clock.now_ms() - self.clock.monotonic_ms()

    # ---- results ----

    @property
    def end_timestamp_ms(self) -> int | None:
        """The end of the last second sampled, in ms since the epoch. None before the first."""
        return None if self._second is None else (self._second + 1) * SECOND_MS

    @property
    def omitted(self) -> int:
        """The number of subjects without a history that were active in the last 10 s.

        There is no room for them.
        """
        return len(self._omitted)

    def history(self, kind: Kind, name: str = "") -> History | None:
        """Return the history of a subject, or None if it has none."""
        subject = self._subjects.get((kind, name))
        return None if subject is None else subject.history

    def rate(self, kind: Kind, name: str, figure: str) -> float | None:
        """Return the mean of a figure per second, over the last 10 s.

        0 for a subject that was never active. None if it is not known yet.
        """
        history = self.history(kind, name)
        if history is not None:
            return history.rate(FIGURES[kind].index(figure))
        return 0.0 if self._has_rates and (kind, name) not in self._omitted else None

    def values(self, kind: Kind, name: str, figure: str, ring: Ring) -> list[float]:
        """Return the values of a figure, oldest first. NaN stands for an unknown value.

        While a subject is not active, its rates are 0 in the time that the broker has recorded.
        """
        history, whole = self.history(kind, name), self.history(Kind.BROKER)
        if history is not None:
            return history.values(FIGURES[kind].index(figure), ring)
        if whole is None or figure in _NO_RATES or (kind, name) in self._dropped:
            return [nan] * ring.points
        return [value if isnan(value) else 0.0 for value in whole.values(0, ring)]

    def latest(self, kind: Kind, name: str) -> Sequence[float]:
        """Return the value of each figure in the last second sampled. NaN if it is unknown."""
        history = self.history(kind, name)
        if history is not None:
            return history.latest
        idle = 0.0 if self._has_rates and (kind, name) not in self._omitted else nan
        levels = {"lag": self._lag(name)} | dict.fromkeys(_PERCENTILES, nan)
        return [levels.get(figure, idle) for figure in FIGURES[kind]]

    def busiest(self, kind: Kind, count: int) -> list[str]:
        """Return the names of the subjects with the most messages in the last second, sorted.

        Among those with the same number of messages, groups with a larger lag come first.
        """
        figures = FIGURES[kind]
        messages = [figures.index(each) for each in _MESSAGES if each in figures]
        lag = figures.index("lag") if "lag" in figures else messages[0]

        def order(values: Sequence[float]) -> tuple[float, float]:
            known = [0.0 if isnan(value) else value for value in values]
            return -sum(known[each] for each in messages), -known[lag]

        found = (
            (order(subject.history.latest), name)
            for (of, name), subject in self._subjects.items()
            if of is kind
        )
        return [name for _, name in heapq.nsmallest(count, found)]

    # ---- work ----

    async def sample(self) -> None:
        """Record the values of the second that has ended. Called once a second.

        The first sample only reads the totals: the counters may be older than this object.
        """
        second = (self._origin_ms + self.clock.monotonic_ms()) // SECOND_MS - 1
        if self._second is not None and second <= self._second:
            return
        elapsed = 1 if self._second is None else second - self._second
        self._has_rates = self._second is not None
        if self._second is None:
            self._first = second + 1
        self._still = None
        behind = [group for group, lag in (self.lag_of or {}).items() if lag]
        # A group whose topics are all deleted still has a history.
        recorded = [name for kind, name in self._subjects if kind is Kind.GROUP]
        groups = _Groups(self.metrics.dead_lettered_by, (*behind, *recorded))
        metrics = self.metrics
        for number, topic in enumerate({*metrics.stored_by, *metrics.delivered_by}, 1):
            delivered = metrics.delivered_by.get(topic)
            totals: Totals = (*_sum(metrics.stored_by.get(topic)), *_sum(delivered))
            if delivered:
                groups.add(delivered)
            key = (Kind.TOPIC, topic)
            # Most topics are idle, also where there are many.
            if (unchanged := self._without.get(key)) is None or unchanged[0] != totals:
                self._record(key, second, elapsed, totals)
            if number % SLICE == 0:
                await asyncio.sleep(0)
        for number, (group, totals) in enumerate(groups.totals(), 1):
            self._record((Kind.GROUP, group), second, elapsed, totals, self._lag(group))
            if number % SLICE == 0:
                await asyncio.sleep(0)
        lag = nan if self.lag_of is None else sum(self.lag_of.values())
        latencies = self.send_latency.take(elapsed)
        percentiles = [latencies.percentile(part) for part in _PERCENTILES.values()]
        totals = (
            metrics.messages_in,
            metrics.bytes_in,
            metrics.messages_out,
            metrics.bytes_out,
            metrics.dead_letters,
            metrics.redelivered,
        )
        self._record((Kind.BROKER, ""), second, elapsed, totals, lag, *percentiles)
        self._summarize(latencies, second)
        self._omitted = {
            key: last for key, last in self._omitted.items() if last > second - RATE_SECONDS
        }
        self._second = second
        self._sampled.set()
        self._sampled = asyncio.Event()

    def _summarize(self, latencies: Histogram, second: int) -> None:
        """Compute the percentiles of the minute and hour that ended with or before `second`."""
        history = self.history(Kind.BROKER)
        for ring, collected in self._latencies.items():
            collected.merge(latencies)
            end = (second + 1) // ring.seconds * ring.seconds - 1
            if self._second is None or history is None or end <= self._second:
                continue
            for name, part in _PERCENTILES.items():
                figure = FIGURES[Kind.BROKER].index(name)
                history.give(figure, ring, end, collected.percentile(part))
            self._latencies[ring] = Histogram()

    async def next_sample(self) -> bool:
        """Wait for the next sample. Return False if the broker stops."""
        await self._sampled.wait()
        return not self._is_closed

    def close(self) -> None:
        """End every wait for a sample, so that the broker can stop."""
        self._is_closed = True
        self._sampled.set()

    async def measure_lags(self) -> None:
        """Compute the lag of each group. Called once a second.

        If a computation took long, the next calls do nothing, so that at most a fiftieth of the
        time is spent.
        """
        begin_ms, lags = self.clock.monotonic_ms(), dict[str, int]()
        if begin_ms < self._next_lags_ms:
            return
        for number, (group, _, lag) in enumerate(self.lags(), 1):
            lags[group] = lags.get(group, 0) + lag
            if number % SLICE == 0:
                await asyncio.sleep(0)
        self.lag_of = lags
        end_ms = self.clock.monotonic_ms()
        self._next_lags_ms = end_ms + (end_ms - begin_ms) * LAG_SHARE

    def forget(self, kind: Kind, name: str) -> None:
        """Drop the history of a deleted topic or group, and its counters."""
        if kind is Kind.TOPIC:
            self.metrics.forget_topic(name)
        elif kind is Kind.GROUP:
            self.metrics.forget_group(name)
            if self.lag_of is not None:
                self.lag_of.pop(name, None)
        self._drop((kind, name))
        self._omitted.pop((kind, name), None)
        self._without.pop((kind, name), None)
        self._dropped.discard((kind, name))

    def _drop(self, key: Key) -> None:
        subject = self._subjects.pop(key, None)
        if subject is not None:
            self._figures -= subject.history.figures

    def _lag(self, group: str) -> float:
        return nan if self.lag_of is None else self.lag_of.get(group, nan)

    def _record(self, key: Key, second: int, elapsed: int, totals: Totals, *levels: float) -> None:
        """Record the growth of `totals` per second, and the values of `levels`."""
        if not self._has_rates:
            self._without[key] = totals, levels
            return
        subject = self._subjects.get(key) or self._begin(key, second, elapsed, totals, levels)
        if subject is None:
            return
        if totals == subject.totals:
            rates = _IDLE[: len(totals)]
        else:
            grown = zip(totals, subject.totals, strict=True)
            # A total falls when a topic or group of it is deleted: the growth is unknown.
            rates = tuple(
                (now - before) / elapsed if now >= before else nan for now, before in grown
            )
        subject.totals, subject.levels = totals, levels
        subject.history.record(second, rates + levels if levels else rates)

    def _begin(
        self, key: Key, second: int, elapsed: int, totals: Totals, levels: Levels
    ) -> _Subject | None:
        """Return a new subject, or None if it is not active or there is no room."""
        before = self._without.get(key)
        if before == (totals, levels) and key[0] is not Kind.BROKER:
            return None
        rollups = _ROLLUPS[key[0]]
        if not self._has_room(len(rollups)):
            self._without[key] = totals, levels
            self._omitted[key] = second
            self._dropped.add(key)
            return None
        self._without.pop(key, None)
        self._omitted.pop(key, None)
        counted = before[0] if before is not None else (0,) * len(totals)
        subject = _Subject(History(rollups), counted, levels)
        if key not in self._dropped:
            subject.history.assume_idle(self._first, second - elapsed)
        self._subjects[key] = subject
        self._figures += len(rollups)
        return subject

    def _has_room(self, figures: int) -> bool:
        """Return whether another `figures` fit. Drops the subjects that are still for longest."""
        while self._figures + figures > self.max_figures:
            if self._still is None:
                self._still = self._still_subjects()
            if not self._still:
                return False
            key = self._still.pop()
            dropped = self._subjects[key]
            self._drop(key)
            self._dropped.add(key)
            self._without[key] = dropped.totals, dropped.levels
        return True

    def _still_subjects(self) -> list[Key]:
        """Return the subjects that may be dropped, the one that is still for longest last."""
        still = [
            (subject.history.still_seconds, key[1], key)
            for key, subject in self._subjects.items()
            if subject.history.still_seconds >= STILL_SECONDS and key[0] is not Kind.BROKER
        ]
        return [key for _, _, key in sorted(still, key=lambda each: each[:2])]


class _Groups:
    """Adds up the totals of groups over topics."""

    def __init__(self, dead_lettered: Mapping[str, int], others: Iterable[str]) -> None:
        """Create an empty sum. `others` has groups that may have no deliveries."""
        self._dead_lettered = dead_lettered
        self._delivered = {group: [0, 0, 0] for group in (*dead_lettered, *others)}

    def add(self, delivered: Mapping[str, Traffic]) -> None:
        for group, traffic in delivered.items():
            total = self._delivered.setdefault(group, [0, 0, 0])
            total[0] += traffic.messages
            total[1] += traffic.size
            total[2] += traffic.redelivered

    def totals(self) -> list[tuple[str, Totals]]:
        """Return the totals of each group: messages, bytes, dead letters, redelivered messages."""
        return [
            (group, (messages, size, self._dead_lettered.get(group, 0), redelivered))
            for group, (messages, size, redelivered) in self._delivered.items()
        ]


def _sum(traffic: Mapping[str, Traffic] | None) -> tuple[int, int]:
    """Return the messages and bytes of all `traffic`."""
    messages = size = 0
    if traffic is not None:
        for each in traffic.values():
            messages += each.messages
            size += each.size
    return messages, size
