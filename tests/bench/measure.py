"""How the benchmarks measure: interleaved rounds of ours and a baseline, so that noise hits both.

These machines are shared: a figure by itself says little, the ratio inside one run says much.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

Operation = Callable[[], Awaitable[int]]  # does one call, returns the messages that it moved

ROUNDS = 5
ROUND_S = 1.2


class CannotMeasure(Exception):
    """A suite needs what this machine or user does not have."""


@dataclass(frozen=True)
class Result:
    """`ratio` is ours over baseline, of the medians of the rounds."""

    name: str
    unit: str
    ours: float
    baseline: float
    ratio: float
    target: float | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


async def rate(operation: Operation, in_flight: int, seconds: float = ROUND_S) -> float:
    """Messages a second of `operation` with `in_flight` calls at a time."""
    deadline = time.perf_counter() + seconds
    moved = 0

    async def worker() -> None:
        nonlocal moved
        while time.perf_counter() < deadline:
            # Not `moved += await …`: that reads before the wait what others change during it.
            count = await operation()
            moved += count

    start = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return moved / (time.perf_counter() - start)


async def compare(
    name: str,
    ours: Operation,
    baseline: Operation,
    *,
    in_flight: int,
    target: float | None,
    note: str,
    baseline_in_flight: int | None = None,
    rounds: int = ROUNDS,
) -> Result:
    """Rates of both in turn, `rounds` times after one round to warm up each. A ratio near its
    target needs more rounds than the few that show a factor."""
    other = baseline_in_flight or in_flight
    await rate(ours, in_flight, ROUND_S / 2)
    await rate(baseline, other, ROUND_S / 2)
    pairs = [(await rate(ours, in_flight), await rate(baseline, other)) for _ in range(rounds)]
    our_median = statistics.median(pair[0] for pair in pairs)
    base_median = statistics.median(pair[1] for pair in pairs)
    ratio = our_median / base_median
    return Result(name, "messages/s", our_median, base_median, ratio, target, note)


async def median_ms(call: Callable[[], Awaitable[object]], count: int) -> float:
    """Milliseconds of `call`, one after the other; the median of `count`."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        await call()
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1_000


def resident_mb(pid: int) -> float:
    """Resident memory of a process in MB (10^6 bytes), as the kernel counts it."""
    return _mb(Path(f"/proc/{pid}/status"), "VmRSS:")


def private_mb(pid: int) -> float:
    """Memory in MB that a process has written, and that no other process shares."""
    return _mb(Path(f"/proc/{pid}/smaps_rollup"), "Private_Dirty:")


def _mb(file: Path, field: str) -> float:
    for line in file.read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"no {field} in {file}: the process is gone")
