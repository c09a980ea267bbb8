"""The overview: messages that wait in the cluster, and the findings of `aerobee doctor`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aerobee_cli.doctor.checks import Finding
from aerobee_cli.doctor.cluster import Diagnosis, diagnose
from aerobee_cli.errors import CommandError
from aerobee_client.admin.descriptions import BrokerStatus
from aerobee_client.admin.stats import Stats
from aerobee_console.reading.history import DEFAULT_PERIOD, Chart, chart
from aerobee_console.reading.source import Answer, Source, gathered
from aerobee_console.reading.waiting import Waiting, waiting
from aerobee_wire.status import MqError

TOP = 10
# Checks look at every topic, so that a new visit within this time shows the last result.
CHECK_AGAIN_MS = 15_000
# A page does not wait longer than this for the checks. They continue.
PATIENCE_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """The result of the checks. `findings` is None while no check has ended yet.

    `problem` is the reason if the checks themselves failed.
    """

    findings: tuple[Finding, ...] | None
    looked_at: tuple[str, ...]
    problem: str
    ended_at_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview(Answer):
    """The messages that wait in the cluster, and its problems.

    A count is None if no broker reported it.
    """

    brokers: int
    brokers_answered: int
    lag: int | None
    dead_letters: int | None
    delayed: int | None
    in_flight: int | None
    half: int | None
    messages_in: int | None
    messages_out: int | None
    furthest_behind: tuple[tuple[str, int], ...]
    most_dead_letters: tuple[tuple[str, int], ...]
    charts: tuple[Chart, ...]
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
        self._last = Checkup(findings=None, looked_at=(), problem="", ended_at_ms=None)

    async def checkup(self) -> Checkup:
        """Return a result that is at most CHECK_AGAIN_MS old, if the checks end in PATIENCE_S."""
        ended = self._last.ended_at_ms
        if ended is None or self._now_ms() - ended >= CHECK_AGAIN_MS:
            if self._running is None or self._running.done():
                self._running = asyncio.create_task(self._run())
            await asyncio.wait({self._running}, timeout=PATIENCE_S)
        return self._last

    async def _run(self) -> None:
        findings: tuple[Finding, ...] | None = None
        looked_at: tuple[str, ...] = ()
        problem = ""
        try:
            found = await asyncio.to_thread(self._check, self._namesrvs)
        except (MqError, CommandError) as error:
            problem = str(error)
        else:
            findings, looked_at = tuple(found.problems), tuple(found.looked_at)
        self._last = Checkup(
            findings=findings, looked_at=looked_at, problem=problem, ended_at_ms=self._now_ms()
        )


async def overview(source: Source, doctor: Doctor, period: str = DEFAULT_PERIOD) -> Overview:
    """Return the overview, with three calls to each broker, besides the checks.

    Args:
        source: The cluster.
        doctor: The checks.
        period: The period of a value in the charts: one of PERIODS.
    """
    asking = await source.ask()
    found: list[Any] = await gathered(
        asking.of(lambda silent: source.admin.broker_statuses(silent=silent)),
        waiting(source.admin, asking),
        asking.merged(lambda: source.admin.get_stats(period=period)),
        doctor.checkup(),
    )
    statuses: dict[str, BrokerStatus] | None = found[0]
    sums: Waiting | None = found[1]
    silent = asking.silent
    names = {broker.broker_name for broker in asking.brokers} | {s.broker_name for s in silent}
    return Overview(
        brokers=len(names),
        brokers_answered=len(statuses or ()),
        lag=sums.lag_by_group.total() if sums else None,
        dead_letters=sums.dead_letters_by_group.total() if sums else None,
        delayed=sums.delayed if sums else None,
        in_flight=sums.in_flight if sums else None,
        half=sums.half if sums else None,
        messages_in=_sum(statuses, "messages_in_total"),
        messages_out=_sum(statuses, "messages_out_total"),
        furthest_behind=tuple(sums.lag_by_group.most_common(TOP)) if sums else (),
        most_dead_letters=tuple(sums.dead_letters_by_group.most_common(TOP)) if sums else (),
        charts=_charts(found[2]),
        checkup=found[3],
        silent=silent,
        asked_at_ms=asking.at_ms,
    )


def _charts(stats: Stats | None) -> tuple[Chart, ...]:
    history = stats.brokers if stats else None
    flow = {"messages_in": "in", "messages_out": "out"}
    waits = {"lag": "lag"}
    return (
        chart("Messages per second", flow, stats, history),
        chart("Lag", waits, stats, history),
    )


def _sum(statuses: dict[str, BrokerStatus] | None, name: str) -> int | None:
    return None if statuses is None else sum(getattr(each, name) for each in statuses.values())
