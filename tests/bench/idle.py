"""Processor time and wake-ups of `aerobee up` with name server, broker and proxy, without clients.

A wake-up is a voluntary context switch: a thread that waited runs, and waits again. The time is the
scheduler's, in nanoseconds, because the ticks of /proc/PID/stat miss work shorter than a tick.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Result
from bench.startup import started, up
from support.processes.command import children

SETTLE_S = 10.0
MEASURE_S = 30.0
CPU_LIMIT_PERCENT = 1.0  # of a core, all processes together
WAKEUPS_LIMIT = 3.0  # a second, of each event loop


@dataclass(frozen=True)
class Usage:
    """What one thread has used since its start, or uses in a second."""

    wakeups: float
    cpu_s: float


def usage(pids: list[int]) -> dict[tuple[int, int], Usage]:
    """Return the usage of every thread by process and thread id."""
    found = {}
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            lines = (thread / "status").read_text().splitlines()
            (waits,) = (line.split()[1] for line in lines if line.startswith("voluntary_ctxt"))
            nanoseconds = int((thread / "schedstat").read_text().split()[0])
            found[pid, int(thread.name)] = Usage(int(waits), nanoseconds / 1e9)
    return found


async def measured(pids: list[int]) -> dict[tuple[int, int], Usage]:
    """Return the wake-ups and the processor time a second of every thread, while it is idle."""
    await asyncio.sleep(SETTLE_S)
    before = usage(pids)
    await asyncio.sleep(MEASURE_S)
    after = usage(pids)
    return {
        key: Usage(
            (after[key].wakeups - before[key].wakeups) / MEASURE_S,
            (after[key].cpu_s - before[key].cpu_s) / MEASURE_S,
        )
        for key in before.keys() & after.keys()
    }


async def results() -> list[Result]:
    async with started("-m", "bench.servers.echo") as (bare, _):
        of_bare = await measured([bare.pid])
    with tempfile.TemporaryDirectory() as data:
        async with started("-m", "aerobee_cli", *up(data)) as (process, _):
            pids = [process.pid, *children(process.pid)]
            for child in pids[1:]:
                pids += [each for each in children(child) if each not in pids]
            found = await measured(pids)
    cpu_percent = 100 * sum(thread.cpu_s for thread in found.values())
    loops = max(found[pid, pid].wakeups for pid in pids)
    whole = {
        pid: sum(thread.wakeups for (owner, _), thread in found.items() if owner == pid)
        for pid in pids
    }
    most, bare_most = max(whole.values()), sum(thread.wakeups for thread in of_bare.values())
    return [
        Result(
            "idle_cpu",
            "% of a core",
            cpu_percent,
            CPU_LIMIT_PERCENT,
            cpu_percent / CPU_LIMIT_PERCENT,
            1.0,
            f"`aerobee up` with name server, broker, proxy, {MEASURE_S:g} s; baseline: the limit",
        ),
        Result(
            "idle_loop_wakeups",
            "a second",
            loops,
            WAKEUPS_LIMIT,
            loops / WAKEUPS_LIMIT,
            1.0,
            "of the event loop of the process with the most; baseline: the limit",
        ),
        Result(
            "idle_wakeups",
            "a second",
            most,
            bare_most,
            most / bare_most,
            None,
            "all threads of the process with the most; baseline: a bare grpc.aio server",
        ),
    ]
