"""The overview: messages that wait, dead letters, recent changes, and findings of the doctor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from aerobee_cli.doctor.checks import Finding
from aerobee_cli.doctor.cluster import Diagnosis, diagnose
from aerobee_cli.errors import CommandError
from aerobee_client.admin.descriptions import BrokerStatus
from aerobee_client.admin.stats import Stats
from aerobee_console.reading.audit import RecentChanges, recent_changes
from aerobee_console.reading.brokers import Waiting, waiting
from aerobee_console.reading.rates import DEFAULT_PERIOD, Chart, chart
from aerobee_console.reading.source import Answer, Asking, Source, gathered
from aerobee_wire.status import MqError

TOP = 10
# Checks look at every topic, so that a new visit within this time shows the last result.
CHECK_AGAIN_MS = 15_000
# A visit after this time does not show the last result: it may be wrong by now.
OLD_MS = 60_000
# A page does not wait longer than this for the checks. They continue, and the page that is read
# after their end has their result. With 10,000 topics, they take 2 s.
PATIENCE_S = 0.2
HOUR_MS, MINUTE_MS = 3_600_000, 60_000
HOURS_OF_DAY = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """The result of the checks. `findings` is None while no recent check has ended.

    `problem` is the reason if the checks themselves failed.
    """

    findings: tuple[Finding, ...] | None
    looked_at: tuple[str, ...]
    problem: str
    ended_at_ms: int | None


NO_CHECKUP = Checkup(findings=None, looked_at=(), problem="", ended_at_ms=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DayOfLetters:
    """The messages that were dead-lettered since a time about a day ago.

    `count` is None if no broker knows its number. `gaps` are the reasons why there may be more.
    """

    since_ms: int
    count: int | None
    gaps: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview(Answer):
    """The messages that wait in the cluster, and its problems.

    A count is None if no broker reported it. `changes` is None for a user who may not read audit
    logs.
    """

    brokers: int
    brokers_answered: int
    lag: int | None
    dead_letters: int | None
    day: DayOfLetters
    delayed: int | None
    in_flight: int | None
    half: int | None
    messages_in: int | None
    messages_out: int | None
    furthest_behind: tuple[tuple[str, int], ...]
    most_dead_letters: tuple[tuple[str, int], ...]
    charts: tuple[Chart, ...]
    changes: RecentChanges | None
    checkup: Checkup


class Doctor:
    """Runs the checks of `aerobee doctor` in a thread, at most one run at a time."""

    def __init__(
        self,
        namesrvs: Sequence[str],
        now_ms: Callable[[], int],
        check: Callable[[Sequence[str]], Diagnosis] = diagnose,
    ) -> None:
        self._namesrvs = tuple(namesrvs)
        self._now_ms = now_ms
        self._check = check
        self._running: asyncio.Task[None] | None = None
        self._last = NO_CHECKUP

    async def checkup(self) -> Checkup:
        """Return a result that is at most CHECK_AGAIN_MS old, if the checks end in PATIENCE_S.

        Otherwise return the last one, or none if it is older than OLD_MS.
        """
        if self._is_older(CHECK_AGAIN_MS):
            if self._running is None or self._running.done():
                self._running = asyncio.create_task(self._run())
            await asyncio.wait({self._running}, timeout=PATIENCE_S)
        return NO_CHECKUP if self._is_older(OLD_MS) else self._last

    def _is_older(self, age_ms: int) -> bool:
        """Return whether the last result is of this age or older, or there is none."""
        ended = self._last.ended_at_ms
        return ended is None or self._now_ms() - ended >= age_ms

    async def _run(self) -> None:
        findings: tuple[Finding, ...] | None = None
        looked_at: tuple[str, ...] = ()
        problem = ""
        try:
            found = await asyncio.to_thread(self._check, self._namesrvs)
        except (MqError, CommandError) as error:
            problem = str(error)
        else:
            findings, looked_at = tuple(found.findings), tuple(found.looked_at)
        self._last = Checkup(
            findings=findings, looked_at=looked_at, problem=problem, ended_at_ms=self._now_ms()
        )


async def overview(
    source: Source, doctor: Doctor, period: str = DEFAULT_PERIOD, *, audit: bool = True
) -> Overview:
    """Return the overview, with at most six calls to each broker, besides the checks.

    Args:
        source: The cluster.
        doctor: The checks.
        period: The period of a value in the charts: one of PERIODS.
        audit: Whether to read the audit logs.
    """
    asking = await source.ask()
    found: list[Any] = await gathered(
        asking.of(lambda silent: source.admin.broker_statuses(silent=silent)),
        waiting(source.admin, asking),
        _histories(source, asking, {period, "hour", "minute"}),
        doctor.checkup(),
        recent_changes(source) if audit else _nothing(),
    )
    statuses: dict[str, BrokerStatus] | None = found[0]
    sums: Waiting | None = found[1]
    stats: Mapping[str, Stats | None] = found[2]
    silent = asking.silent
    names = {broker.broker_name for broker in asking.brokers} | {s.broker_name for s in silent}
    return Overview(
        brokers=len(names),
        brokers_answered=len(statuses or ()),
        lag=sums.lag_by_group.total() if sums else None,
        dead_letters=sums.dead_letters_by_group.total() if sums else None,
        day=letters_of_day(statuses or {}, stats["hour"], stats["minute"], asking.at_ms),
        delayed=sums.delayed if sums else None,
        in_flight=sums.in_flight if sums else None,
        half=sums.half if sums else None,
        messages_in=_sum(statuses, "messages_in_total"),
        messages_out=_sum(statuses, "messages_out_total"),
        furthest_behind=tuple(sums.lag_by_group.most_common(TOP)) if sums else (),
        most_dead_letters=tuple(sums.dead_letters_by_group.most_common(TOP)) if sums else (),
        charts=_charts(stats[period]),
        changes=found[4],
        checkup=found[3],
        silent=silent,
        asked_at_ms=asking.at_ms,
    )


async def _nothing() -> None:
    """Return nothing, in place of a call."""


async def _histories(
    source: Source, asking: Asking, periods: Iterable[str]
) -> Mapping[str, Stats | None]:
    """Return the history of the brokers by period, with one call to each broker and period."""
    names = sorted(periods)
    found = await gathered(
        *(asking.merged(partial(source.admin.get_stats, period=name)) for name in names)
    )
    return dict(zip(names, found, strict=True))


def letters_of_day(
    statuses: Mapping[str, BrokerStatus],
    hours: Stats | None,
    minutes: Stats | None,
    now_ms: int,
) -> DayOfLetters:
    """Return how many messages were dead-lettered in the last 24 whole hours and since then.

    A broker that runs for less than that knows the number since its start.

    Args:
        statuses: The state of each broker that answered, by broker name.
        hours: The history of the brokers by hour; None if no broker answered.
        minutes: Their history by minute.
        now_ms: The time now, in milliseconds since the epoch.
    """
    end_ms = hours.end_timestamp_ms if hours else None
    hour_end_ms = end_ms or now_ms // HOUR_MS * HOUR_MS
    since_ms = hour_end_ms - HOURS_OF_DAY * HOUR_MS
    counts: list[int] = []
    young: list[str] = []
    incomplete: list[str] = []
    late = max(0, (minutes.end_timestamp_ms or 0) - hour_end_ms) // MINUTE_MS if minutes else 0
    for name, status in sorted(statuses.items()):
        if status.start_timestamp_ms > since_ms:
            counts.append(status.dead_letters_total)
            young.append(name)
            continue
        rates = _rates(hours, name, HOURS_OF_DAY)
        recent = _rates(minutes, name, late)
        known = [rate * HOUR_MS for rate in rates if rate is not None]
        known += [rate * MINUTE_MS for rate in recent if rate is not None]
        if known:
            counts.append(round(sum(known) / 1_000))
        if len(known) < HOURS_OF_DAY + late:
            incomplete.append(name)
    gaps = [
        f"{text} {', '.join(names)}"
        for text, names in (("only since the start of", young), ("not all hours of", incomplete))
        if names
    ]
    return DayOfLetters(since_ms=since_ms, count=sum(counts) if counts else None, gaps=tuple(gaps))


def _rates(stats: Stats | None, broker_name: str, count: int) -> Sequence[float | None]:
    """Return the last dead-lettered messages per second of a broker."""
    series = stats.brokers.by_broker.get(broker_name, {}) if stats else {}
    values = series.get("dead_lettered", ())
    return values[max(0, len(values) - count) :]


def _charts(stats: Stats | None) -> tuple[Chart, ...]:
    history = stats.brokers if stats else None
    flow = {"messages_in": "in", "messages_out": "out"}
    waits = {"lag": "lag"}
    return (
        chart("Messages per second", flow, stats, history),
        chart("Lag in messages", waits, stats, history),
    )


def _sum(statuses: dict[str, BrokerStatus] | None, name: str) -> int | None:
    return None if statuses is None else sum(getattr(each, name) for each in statuses.values())
