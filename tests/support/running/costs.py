"""What each test file costs: its duration, and the processor time of it and of its processes.

`pytest --costs` writes them into `FILE`, the most expensive first. The schedule reads them there.
"""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

import pytest

from support.running.late import Step

FILE = Path(__file__).parents[2] / "costs.tsv"
LEAST_S = 1.0  # of what is written
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """Seconds: from the first test to the last, and of processors."""

    duration_s: float = 0.0
    cpu_s: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.duration_s + other.duration_s, self.cpu_s + other.cpu_s)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.duration_s - other.duration_s, self.cpu_s - other.cpu_s)

    @property
    def is_mostly_waiting(self) -> bool:
        """Whether it leaves more than half of a processor to others."""
        return self.cpu_s < self.duration_s / 2


def read() -> dict[str, Cost]:
    """Return the costs by file, as they were written last."""
    rows = (line.split("\t") for line in FILE.read_text(encoding="utf-8").splitlines())
    return {path: Cost(float(duration), float(cpu)) for duration, cpu, path in rows}


class Measure:
    """A plugin of pytest, in each worker of pytest-xdist and in its controller."""

    def __init__(self) -> None:
        self._costs: defaultdict[str, Cost] = defaultdict(Cost)
        self._before: Cost | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if isinstance(item, Step):
            return (yield)  # the tests in it are measured
        before = self._before or _now()
        try:
            return (yield)
        finally:
            self._before = _now()
            self._costs[item.nodeid.partition("::")[0]] += self._before - before

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        for path, cost in getattr(node, "workeroutput", {}).get("costs", ()):
            self._costs[path] += Cost(*cost)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        of_worker = getattr(session.config, "workeroutput", None)
        if of_worker is None:
            _write(self._costs)
        else:
            of_worker["costs"] = [(path, astuple(cost)) for path, cost in self._costs.items()]


def _write(costs: Mapping[str, Cost]) -> None:
    known = sorted(({**read(), **costs}).items(), key=lambda each: -each[1].duration_s)
    rows = (
        f"{cost.duration_s:.1f}\t{cost.cpu_s:.1f}\t{path}\n"
        for path, cost in known
        if cost.duration_s > LEAST_S and (FILE.parents[1] / path).exists()
    )
    FILE.write_text("".join(rows), encoding="utf-8")


def _now() -> Cost:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu_s = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    return Cost(time.monotonic(), cpu_s + sum(_descendants()) / TICKS)


def _descendants() -> Iterable[int]:
    """Ticks of each process below this one, and of those that it has waited for."""
    ticks: dict[int, int] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            children[int(fields[1])].append(int(folder.name))
            ticks[int(folder.name)] = sum(map(int, fields[11:15]))
    below = children[os.getpid()]
    for pid in below:  # grows
        below += children[pid]
        yield ticks[pid]
