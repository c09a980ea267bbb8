"""What a console costs: its memory at the large size, and sends while ten visitors watch pages.

Real processes: three brokers with the tables of bench.console, and `aerobee up`.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import grpc
from aerobee.broker.v1 import client_pb2
from aerobee.broker.v1.client_pb2 import HeartbeatRequest

from aerobee_broker.metadata.subscription_groups import SubscriptionGroup, SubscriptionGroups
from aerobee_broker.metadata.topics import TopicConfig, Topics
from aerobee_chassis.clock import SystemClock
from aerobee_client import AsyncAdminClient, AsyncProducer
from aerobee_wire.checked_json import encode
from bench.clients.producers import QUEUES, TOPIC, single
from bench.console import BROKERS, CLIENTS, GROUPS, LIMIT_KB, LIMIT_MS, PAGES, TOPICS
from bench.console import QUEUES as QUEUES_OF
from bench.measure import Result, rate, resident_mb
from bench.startup import SERVICES, started
from support.clock.polling import until
from support.processes.command import children
from support.processes.service import ServiceProcess, named_broker, namesrv_process
from support.stubs import Stub

MEMORY_LIMITS_MB = {"console_memory": 120.0, "up_unvisited_memory": 200.0}
LEAST_THROUGHPUT, MOST_P99 = 0.95, 1.3
IN_FLIGHT = 64
ROUNDS, ROUND_S = 9, 4.0
AT_ONCE = 64  # heartbeats
WATCHED = ("/", "/topics", "/topics?sort=lag", "/groups", "/groups?sort=lag", "/clients",
           "/brokers", f"/topics/{TOPIC}", "/dead-letters", "/delayed")  # fmt: skip
WATCHED_LARGE = (*WATCHED[:7], "/topics/topic-17", "/groups/group-17", "/dead-letters")


async def results() -> list[Result]:
    return [await large(), *await beside_sends()]


# ---- the large size ----


def fill(config: Path, queues: int) -> None:
    """Write the tables of a broker before its first start."""
    topics, groups = Topics(SystemClock()), SubscriptionGroups(SystemClock())
    for number in range(TOPICS):
        topics.put(TopicConfig(f"topic-{number}", queues, queues))
    for number in range(GROUPS):
        groups.put(SubscriptionGroup(f"group-{number}"))
    config.mkdir(parents=True)
    (config / "topics.json").write_bytes(encode(topics.to_json()))
    (config / "subscriptionGroup.json").write_bytes(encode(groups.to_json()))


@contextlib.contextmanager
def large_cluster(data: Path) -> Iterator[tuple[str, list[ServiceProcess]]]:
    """Yield the name server and the brokers."""
    with ExitStack() as stack:
        namesrv = stack.enter_context(namesrv_process(data / "namesrv"))
        brokers = []
        for name in BROKERS:
            fill(data / name / "broker" / "store" / "config", QUEUES_OF[name])
            process = named_broker(data, name, namesrv=namesrv.address)
            brokers.append(stack.enter_context(process))
        yield namesrv.address, brokers


async def connect_clients(address: str) -> None:
    free = asyncio.Semaphore(AT_ONCE)
    async with grpc.aio.insecure_channel(address) as channel:
        stub = Stub(client_pb2, channel)

        async def beat(number: int) -> None:
            given = HeartbeatRequest(client_id=f"client-{number}", language="PYTHON", version="1")
            consumer = given.consumers.add(consumer_group=f"group-{number % GROUPS}")
            consumer.subscriptions.add(topic=f"topic-{number % TOPICS}", expression="*")
            async with free:
                await stub.Heartbeat(given, timeout=60)

        await asyncio.gather(*map(beat, range(CLIENTS)))


async def get(address: str, page: str) -> bytes:
    """Return the body of a page."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {page} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise RuntimeError(f"{page}: {head.decode()}")
    return body


async def large() -> Result:
    """Return the memory of a console after visits of each page, while ten visitors watch."""
    with tempfile.TemporaryDirectory() as data, large_cluster(Path(data)) as (namesrv, brokers):
        await asyncio.gather(*(connect_clients(each.address) for each in brokers))
        command = ("--port", "0", "--namesrv", namesrv)
        with ServiceProcess("aerobee_console", *command) as console:
            await until(lambda: _is_whole(console.address), timeout_s=120)
            await visit(console.address)
            async with watching(console.address, WATCHED_LARGE):
                await asyncio.sleep(ROUND_S * 4)
                memory = resident_mb(console.pid)
    limit = MEMORY_LIMITS_MB["console_memory"]
    note = "resident, after each page, with ten live pages at the large size; baseline: the limit"
    return Result("console_memory", "MB", memory, limit, memory / limit, 1.0, note)


async def _is_whole(address: str) -> bool:
    return b"Not complete" not in await get(address, "/topics")


async def visit(address: str) -> None:
    """Open each page, and print how long it took. The brokers are processes of their own here."""
    for page in PAGES:
        await get(address, page)
        start = time.perf_counter()
        body = await get(address, page)
        took_ms = 1_000 * (time.perf_counter() - start)
        late = " late" if took_ms > LIMIT_MS or len(body) > 1_024 * LIMIT_KB else ""
        print(f"{page}: {took_ms:.0f} ms, {len(body) / 1_024:.0f} KB{late}", file=sys.stderr)


# ---- visitors ----


@asynccontextmanager
async def watching(address: str, pages: tuple[str, ...]) -> AsyncIterator[None]:
    """Keep a live page open for each visitor."""
    host, port = address.split(":")
    writers, readers = [], []
    for page in pages:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"GET /live?page={quote(page, safe='')} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode()
        )
        writers.append(writer)
        readers.append(asyncio.create_task(_drain(reader)))
    try:
        yield
    finally:
        for writer in writers:
            writer.close()
        for task in readers:
            task.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


async def beside_sends() -> list[Result]:
    """Return the memory of `aerobee up` before a visit, and sends with and without visitors."""
    with tempfile.TemporaryDirectory() as data:
        ports = (f"--{name}-port=0" for name in SERVICES)
        command = ("-m", "aerobee_cli", "up", "--data", data, *ports, "--console-port=0")
        async with started(*command) as (process, line):
            assert process.stdout is not None
            namesrv = dict(item.split("=") for item in line.split()[1:])["namesrv"]
            console = await console_of(process.stdout)
            await asyncio.sleep(ROUND_S)
            unvisited = sum(map(proportional_mb, everything(process.pid)))
            async with AsyncAdminClient(namesrv) as admin:
                await admin.create_topic(TOPIC, queues=QUEUES)
            async with AsyncProducer(namesrv=namesrv) as producer:
                sends = await watched(producer, console)
    limit = MEMORY_LIMITS_MB["up_unvisited_memory"]
    return [
        Result(
            "up_unvisited_memory", "MB", unvisited, limit, unvisited / limit, 1.0,
            "all processes of `aerobee up` with its port of the console, shared pages in parts; "
            "baseline: the limit",
        ),
        *sends,
    ]  # fmt: skip


async def console_of(output: asyncio.StreamReader) -> str:
    """Return the address of the console from the output of `aerobee up`."""
    while line := (await output.readline()).decode():
        if line.startswith("console http://"):
            return line.split()[1].removeprefix("http://")
    raise RuntimeError("aerobee up has no console")


def proportional_mb(pid: int) -> float:
    """Return the memory of a process in MB. A page that processes share counts in parts."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"no Pss for process {pid}: it is gone")


def everything(pid: int) -> list[int]:
    """Return a process and all that it started."""
    found = [pid]
    for each in found:
        found += [child for child in children(each) if child not in found]
    return found


async def watched(producer: AsyncProducer, console: str) -> list[Result]:
    send = single(producer)
    latencies: list[float] = []

    async def timed() -> int:
        began = time.perf_counter()
        count = await send()
        latencies.append(time.perf_counter() - began)
        return count

    async def measured() -> tuple[float, float]:
        """Return messages a second, and the 99th percentile in milliseconds."""
        latencies.clear()
        messages = await rate(timed, IN_FLIGHT, ROUND_S)
        return messages, 1_000 * statistics.quantiles(latencies, n=100)[98]

    await get(console, "/")  # the first visitor starts the console
    await measured()
    with_visitors, without = [], []
    for _ in range(ROUNDS):
        async with watching(console, WATCHED):
            await asyncio.sleep(1)
            with_visitors.append(await measured())
        await asyncio.sleep(1)
        without.append(await measured())
    ours = [statistics.median(column) for column in zip(*with_visitors, strict=True)]
    bare = [statistics.median(column) for column in zip(*without, strict=True)]
    note = f"{IN_FLIGHT} sends of 1 KiB at a time while ten visitors watch; baseline: no visitor"
    return [
        Result("sends_watched", "messages/s", ours[0], bare[0], ours[0] / bare[0],
               LEAST_THROUGHPUT, note),
        Result("sends_watched_p99", "ms", ours[1], bare[1], ours[1] / bare[1], MOST_P99, note),
    ]  # fmt: skip
