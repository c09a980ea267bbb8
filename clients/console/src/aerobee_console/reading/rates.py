"""Read the rates of the brokers: their history as charts, and the live rates of pages."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from aerobee_client.admin.stats import MAX_NAMES, History, Sample, Stats, StatsSample
from aerobee_console.reading.source import Source
from aerobee_wire.status import MqError

# ---- history ----
#
# The history of figures: the content of a chart, from the rings of the brokers.


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


# ---- watch ----
#
# Watch the rates of the brokers: one stream to each broker, for all visitors together.
#
# The stream is open while a visitor looks at a page. It reports the topics and groups on the pages.


RATE_SAMPLES = 10  # the rates of lists are over the last 10 s
RETRY_S = 1.0
REOPEN_S = 2.0  # the least time between two changes of the names

log = logging.getLogger(__name__)

TOPIC, GROUP = "topic", "group"
Subject = tuple[str, str]  # (TOPIC or GROUP, its name)
Rates = Mapping[str, float]  # figure → messages per second


@dataclass(eq=False, slots=True)
class Watcher:
    """A page that a visitor looks at, and the topics and groups that it shows."""

    subjects: frozenset[Subject] = frozenset()


@dataclass(eq=False)
class Watch:
    """The shared stream.

    Args:
        source: The cluster.
    """

    source: Source
    rates: dict[Subject, Rates] = field(default_factory=dict, init=False)
    _watchers: set[Watcher] = field(default_factory=set, init=False)
    _recent: dict[Subject, deque[Mapping[str, float | None]]] = field(
        default_factory=dict, init=False
    )
    _arrived: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Watcher]:
        """Yield a watcher. The stream is open until the last one ends."""
        watcher = Watcher()
        self._watchers.add(watcher)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)
            if not self._watchers:
                await self._close()

    async def arrival(self) -> None:
        """Wait for the values of the next second."""
        await self._arrived.wait()

    async def _close(self) -> None:
        task, self._task = self._task, None
        self.rates.clear()
        self._recent.clear()
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        failing = False
        while True:
            try:
                await self._read(self._wanted())
                failing = False
                continue
            except MqError:  # the pages name what does not answer
                pass
            except Exception:
                if not failing:  # once, because each try may fail until the cause is gone
                    log.exception("the rates cannot be read")
                failing = True
            self.rates.clear()
            self._recent.clear()
            await asyncio.sleep(RETRY_S)

    async def _read(self, subjects: frozenset[Subject]) -> None:
        """Read samples until pages show other topics or groups."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + REOPEN_S
        samples = self.source.admin.watch_stats(
            topics=_names(subjects, TOPIC), groups=_names(subjects, GROUP)
        )
        async with aclosing(samples):
            async for sample in samples:
                self._add(sample, subjects)
                if self._wanted() != subjects and loop.time() >= until_s:
                    return

    def _wanted(self) -> frozenset[Subject]:
        """Return the topics and groups of all pages, as far as a broker accepts them."""
        every = {subject for watcher in self._watchers for subject in watcher.subjects}
        return frozenset(sorted(every)[:MAX_NAMES])

    def _add(self, sample: StatsSample, subjects: Iterable[Subject]) -> None:
        known: dict[str, Mapping[str, Sample]] = {TOPIC: sample.topics, GROUP: sample.groups}
        recent, self._recent = self._recent, {}
        self.rates.clear()
        for subject in subjects:
            kind, name = subject
            values = recent.get(subject) or deque(maxlen=RATE_SAMPLES)
            self._recent[subject] = values
            found = known[kind].get(name)
            values.append(found.cluster if found else {})
            self.rates[subject] = _means(values)
        self._arrived.set()
        self._arrived = asyncio.Event()


def _names(subjects: Iterable[Subject], kind: str) -> list[str]:
    return sorted(name for each, name in subjects if each == kind)


def _means(values: deque[Mapping[str, float | None]]) -> Rates:
    """Return the means of the figures that are known in each of the last 10 seconds."""
    if len(values) < RATE_SAMPLES:
        return {}
    means: dict[str, float] = {}
    for figure in ("messages_in", "messages_out"):
        found = [each.get(figure) for each in values]
        known = [value for value in found if value is not None]
        if len(known) == len(found):
            means[figure] = sum(known) / len(known)
    return means
