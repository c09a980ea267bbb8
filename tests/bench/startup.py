"""How long `aerobee up` takes to serve, and what its services weigh once they do."""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.measure import Result, resident_mb
from support.processes.command import children

ATTEMPTS = 5
# Resident, idle: the two that store and route, and everything with the proxy.
MEMORY_LIMITS_MB = {"up_memory": 150.0, "suite_memory": 200.0}
SERVICES = ("namesrv", "broker", "proxy")
HERE = Path(__file__).parent


@asynccontextmanager
async def started(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A process and the first line that it printed; stopped on leaving."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        line = (await process.stdout.readline()).decode().strip()
        if not line:
            raise RuntimeError(f"{arguments} printed nothing: exit code {await process.wait()}")
        yield process, line
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def weights(pid: int) -> dict[str, float]:
    """Resident MB of the services that the process `pid` started, by name, each with the processes
    that it started in turn."""
    weights = {}
    for child in children(pid):
        command = Path(f"/proc/{child}/cmdline").read_text()
        name = next(name for name in SERVICES if f"aerobee_{name}" in command)
        weights[name] = sum(map(resident_mb, [child, *children(child)]))
    return weights


async def results() -> list[Result]:
    """Start time of the suite against a bare grpc server's; memory against the limit."""
    ours, bare, alone, suite = [], [], [], []
    for _ in range(ATTEMPTS):
        start = time.perf_counter()
        async with started("-m", "bench.servers.echo"):
            bare.append(time.perf_counter() - start)
        with tempfile.TemporaryDirectory() as data:
            start = time.perf_counter()
            async with started("-m", "aerobee_cli", *up(data)) as (process, line):
                ours.append(time.perf_counter() - start)
                if not line.startswith("ready "):
                    raise RuntimeError(f"aerobee up said {line!r} instead of its ready line")
                weight = weights(process.pid)
                alone.append(weight["namesrv"] + weight["broker"])
                suite.append(sum(weight.values()))
    ready, base = statistics.median(ours), statistics.median(bare)
    note = f"median of {ATTEMPTS}, worst {max(ours):.2f} s; baseline: a bare grpc.aio server"
    return [
        Result("up_ready", "s", ready, base, ready / base, None, f"{note}; target: 2 s"),
        memory("up_memory", alone, "namesrv and broker"),
        memory("suite_memory", suite, "namesrv, broker and proxy"),
    ]


def up(data: str) -> tuple[str, ...]:
    """The arguments of `aerobee up` on free ports."""
    ports = (f"--{name}-port=0" for name in SERVICES)
    return ("up", "--data", data, *ports, "--console-port=0")


def memory(name: str, values: list[float], what: str) -> Result:
    limit, value = MEMORY_LIMITS_MB[name], statistics.median(values)
    note = f"resident, {what} together, idle; baseline: the limit"
    return Result(name, "MB", value, limit, value / limit, 1.0, note)
