"""A consumer that is a day behind: what producers notice while it reads files that are not cached.

Real processes, synchronous flush. The consumer is a push consumer in a process of its own, which
reads as fast as it can. Before each of its turns, the kernel drops the files from its cache. In
other turns they stay in the cache, which shows the part of the processors.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
from pathlib import Path

import grpc

from bench.measure import Result
from bench.proxy import Load
from bench.replication.catch_up import latencies, quiet
from bench.replication.full_tables import in_parts
from bench.servers.echo import OPTIONS
from bench.startup import started
from bench.telemetry import stub_of
from bench.throughput import ingest
from support.processes.service import ServiceProcess, broker_process, namesrv_process
from support.stubs import Stub

BEHIND_MIB = int(os.environ.get("GROWTH_COLD_MIB", "3072"))
ROUNDS = 5
ROUND_S = 6.0
LIMIT = 1.5


async def fill(stub: Stub) -> None:
    await in_parts(BEHIND_MIB << 10, ingest(stub))


def drop_cache(folder: Path) -> None:
    """Drop the files of a log from the cache of the kernel."""
    for path in sorted(folder.iterdir()):
        if path.name.isdigit():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def read_mib(process: ServiceProcess) -> float:
    """Return what a process has read from the disk."""
    for line in Path(f"/proc/{process.pid}/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1]) / (1 << 20)
    raise RuntimeError("the kernel does not count what a process reads")


async def results() -> list[Result]:
    with (
        tempfile.TemporaryDirectory(prefix="aerobee-bench-") as folder,
        quiet() as stack,
    ):
        namesrv = stack.enter_context(namesrv_process(Path(folder, "namesrv")))
        broker = stack.enter_context(broker_process(Path(folder), namesrv=namesrv.address))
        log = Path(folder, "broker", "store", "commitlog")
        async with stub_of(broker) as stub:
            await fill(stub)
        async with (
            grpc.aio.insecure_channel(broker.address, options=OPTIONS) as channel,
            started("-m", "bench.profiles.client", namesrv.address, "push") as (process, _),
        ):
            return await measured(channel, Load(process), broker, log)


async def measured(
    channel: grpc.aio.Channel, consumer: Load, broker: ServiceProcess, log: Path
) -> list[Result]:
    without: list[float] = []
    cold: list[float] = []
    warm: list[float] = []
    rates, read = [], []
    await consumer.rate(1, ROUND_S)  # another group each time, from the first message on
    for turn in range(ROUNDS + 1):
        for found, reads, is_cold in (
            (without, False, False), (cold, True, True), (warm, True, False),
        ):  # fmt: skip
            if is_cold:
                await asyncio.to_thread(drop_cache, log)
            before = read_mib(broker)
            if reads:
                task = asyncio.create_task(consumer.rate(1, ROUND_S))
                p99 = quantile(await latencies(channel, asyncio.shield(task)))
                rate = await task
            else:
                p99, rate = quantile(await latencies(channel, asyncio.sleep(ROUND_S))), 0.0
            if turn:
                found.append(p99)
                if is_cold:
                    rates.append(rate)
                    read.append(read_mib(broker) - before)
    ours, warm_ms, base = map(statistics.median, (cold, warm, without))
    note = (
        f"p99 of paced sends while a consumer reads {statistics.median(read):,.0f} MiB from the "
        f"disk in {ROUND_S:g} s, {statistics.median(rates):,.0f} messages/s"
    )
    return [
        Result("growth_cold_send_p99", "ms", ours, base, ours / base, LIMIT,
               f"{note}; baseline: without it; the target is a limit"),
        Result("growth_warm_send_p99", "ms", warm_ms, base, warm_ms / base, None,
               "the same while it reads files in the cache; baseline: without it"),
        Result("growth_cold_against_warm_p99", "ms", ours, warm_ms, ours / warm_ms, None,
               f"{note}; baseline: it reads files in the cache"),
    ]  # fmt: skip


def quantile(milliseconds: list[float]) -> float:
    return statistics.quantiles(milliseconds, n=100)[98]


if __name__ == "__main__":
    print(asyncio.run(results()), file=sys.stderr)
