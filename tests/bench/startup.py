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

ATTEMPTS = 5
READY_TARGET_S = 2.0
MEMORY_TARGET_MB = 150.0
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


def children(pid: int) -> list[int]:
    return [int(item) for item in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def results() -> list[Result]:
    """Start time of the suite against a bare grpc server's; memory against the limit."""
    ours, bare, memory = [], [], []
    for _ in range(ATTEMPTS):
        start = time.perf_counter()
        async with started(str(HERE / "echo_server.py")):
            bare.append(time.perf_counter() - start)
        with tempfile.TemporaryDirectory() as data:
            up = (
                "up",
                "--data",
                data,
                "--namesrv-port",
                "0",
                "--broker-port",
                "0",
                "--proxy-port",
                "0",
            )
            start = time.perf_counter()
            async with started("-m", "aerobee_cli", *up) as (process, line):
                ours.append(time.perf_counter() - start)
                if not line.startswith("ready "):
                    raise RuntimeError(f"aerobee up said {line!r} instead of its ready line")
                memory.append(sum(resident_mb(pid) for pid in children(process.pid)))
    ready, base, weight = (statistics.median(values) for values in (ours, bare, memory))
    note = f"median of {ATTEMPTS}; worst {max(ours):.2f} s; baseline: a bare grpc.aio server"
    return [
        Result("up_ready", "s", ready, base, ready / base, READY_TARGET_S, note),
        Result(
            "up_memory",
            "MB",
            weight,
            MEMORY_TARGET_MB,
            weight / MEMORY_TARGET_MB,
            1.0,
            "resident, namesrv and broker together, idle; baseline: the limit",
        ),
    ]
