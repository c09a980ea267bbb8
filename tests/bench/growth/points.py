"""Points of a curve: what a message costs as one quantity grows, with the same broker program.

The cost is the processor time of the broker, as the scheduler counts it. It depends less on other
work of the machine than wall time does.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence

from bench.measure import Operation, Result, rate
from bench.profiles.threads import usage


def cpu_s(pid: int) -> float:
    """Return the processor time of a process whose threads do not end meanwhile."""
    return sum(thread.cpu_s for thread in usage(pid).values())


async def cost_us(
    pid: int, operation: Operation, in_flight: int, seconds: float, idle: float = 0.0
) -> float:
    """Return the µs of a process for each message that `operation` moves in `seconds`.

    `idle` is the share of a processor that the process needs without these messages.
    """
    moved = 0

    async def counted() -> int:
        nonlocal moved
        count = await operation()
        moved += count
        return count

    before, began = cpu_s(pid), time.perf_counter()
    await rate(counted, in_flight, seconds)
    elapsed = time.perf_counter() - began
    return (cpu_s(pid) - before - idle * elapsed) / moved * 1e6


async def idle_share(pid: int, seconds: float) -> float:
    """Return the share of a processor that a process needs now."""
    before, began = cpu_s(pid), time.perf_counter()
    await asyncio.sleep(seconds)
    return (cpu_s(pid) - before) / (time.perf_counter() - began)


def curve(
    name: str,
    costs: Mapping[int, Sequence[float]],
    base: Sequence[float],
    *,
    unit: str,
    limit: float,
    note: str,
) -> list[Result]:
    """Return a row for each point.

    Its ratio is the median of the ratios to `base`, which was measured in turns with the points.
    """
    return [
        Result(
            f"{name}_{x}", unit, statistics.median(values), statistics.median(base),
            statistics.median(one / other for one, other in zip(values, base, strict=True)),
            limit, f"{note}; the target is a limit",
        )
        for x, values in costs.items()
    ]  # fmt: skip
