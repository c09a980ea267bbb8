"""What metrics, scrapes and spans cost brokers and proxies: one that has them, beside one without.

Real processes with synchronous flush. Rounds of both alternate, so that noise hits both.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
from aerobee.broker.v1 import admin_pb2, message_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_broker.metadata.topics import TopicConfig, Topics
from aerobee_chassis.clock import SystemClock
from aerobee_wire.checked_json import encode
from bench.measure import Operation, Result, compare
from bench.proxy import IN_FLIGHT as UNARY_IN_FLIGHT
from bench.proxy import Load, load, medians
from bench.servers.echo import OPTIONS
from bench.startup import started
from bench.throughput import BATCH, BODY, IN_FLIGHT, QUEUES, TOPIC, ingest
from support.processes.service import (
    ServiceProcess,
    broker_process,
    namesrv_process,
    proxy_process,
)
from support.stubs import Stub

METRICS = ("--set", "metricsExporterType=PROM", "--set", "metricsPromExporterPort=0")
SAMPLED = 0.01
TOPICS = 10_000
SCRAPE_S = 5.0  # between two scrapes
SCRAPE_ROUND_S = 15.0  # three scrapes
SCRAPE_ROUNDS = 4
ROUNDS = 9  # the differences are small


def broker(data: str, name: str, *arguments: str, namesrv: str = "") -> ServiceProcess:
    return broker_process(Path(data) / name, *arguments, namesrv=namesrv)


@asynccontextmanager
async def stub_of(process: ServiceProcess) -> AsyncIterator[Stub]:
    """Connect to a broker, and create the topic."""
    async with grpc.aio.insecure_channel(process.address, options=OPTIONS) as channel:
        topic = namesrv_pb2.TopicConfig(
            topic=TOPIC, read_queue_count=QUEUES, write_queue_count=QUEUES, permission=6
        )
        admin = Stub(admin_pb2, channel)
        await admin.PutTopic(admin_pb2.PutTopicRequest(topic=topic))
        yield Stub(message_pb2, channel)


async def beside(
    name: str,
    arguments: Sequence[str],
    operation: Callable[[Stub], Operation],
    *,
    target: float,
    note: str,
) -> Result:
    """Compare an operation at a broker with further arguments, and at one without."""
    with tempfile.TemporaryDirectory() as data:
        async with AsyncExitStack() as stack:
            brokers = [
                stack.enter_context(broker(data, each, *further))
                for each, further in (("ours", arguments), ("baseline", ()))
            ]
            stubs = [await stack.enter_async_context(stub_of(each)) for each in brokers]
            return await compare(
                name, *map(operation, stubs), in_flight=IN_FLIGHT, target=target, rounds=ROUNDS,
                note=f"{BATCH} x 1 KiB, {IN_FLIGHT} in flight; {note}",
            )  # fmt: skip


def traced(share: float) -> Callable[[Stub], Operation]:
    """Return an operation that sends batches, of which a share of the messages is sampled."""
    every = round(1 / share) if share else 0

    def of(stub: Stub) -> Operation:
        numbers, turn = itertools.count(), itertools.count()

        async def send() -> int:
            strings = []
            for _ in range(BATCH):
                number = next(numbers)
                flag = every and number % every == 0
                strings.append(
                    b"UNIQ_KEY\x01%032X\x02traceparent\x0100-%032x-%016x-%02x\x02"
                    % (number, number + 1, number + 1, bool(flag))
                )
            batch = message_pb2.MessageBatch(
                topic=TOPIC,
                queue_id=next(turn) % QUEUES,
                body_sizes=[len(BODY)] * BATCH,
                bodies=BODY * BATCH,
                properties_sizes=[len(string) for string in strings],
                properties=b"".join(strings),
            )
            response = await stub.Send(message_pb2.SendRequest(producer_group="b", batch=batch))
            return len(response.batch_result.physical_offsets)

        return send

    return of


# ---- a unary send through proxy and broker ----


async def unary() -> Result:
    with tempfile.TemporaryDirectory() as data:
        async with AsyncExitStack() as stack:
            loads: list[Load] = []
            for name, arguments in (("ours", METRICS), ("baseline", ())):
                namesrv = stack.enter_context(namesrv_process(Path(data) / f"{name}-namesrv"))
                stack.enter_context(broker(data, name, *arguments, namesrv=namesrv.address))
                proxy = stack.enter_context(
                    proxy_process(namesrv.address, "--set=tlsServerMode=disabled", *arguments)
                )
                loads.append(await stack.enter_async_context(load(proxy.address, "send")))
            ours, baseline = await medians(*loads)
    note = f"1 KiB, {UNARY_IN_FLIGHT} in flight by a proxy, all metrics, against none"
    return Result("metrics_unary", "messages/s", ours, baseline, ours / baseline, 0.97, note)


# ---- scrapes of many topics ----


def fill(config: Path) -> None:
    """Write the broker's table before its start."""
    topics = Topics(SystemClock())
    for number in range(TOPICS):
        topics.put(TopicConfig(f"topic-{number}", 1, 1))
    config.mkdir(parents=True)
    (config / "topics.json").write_bytes(encode(topics.to_json()))


async def timed(operation: Operation, seconds: float) -> tuple[float, float]:
    """Return the rate in messages/s, and the p99 of the calls in ms."""
    end = time.perf_counter() + seconds
    took: list[float] = []
    moved = 0

    async def worker() -> None:
        nonlocal moved
        while (began := time.perf_counter()) < end:
            count = await operation()
            moved += count
            took.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    rate = moved / (time.perf_counter() - began)
    return rate, statistics.quantiles(took, n=100)[98] * 1_000


async def scraping(url: str, sizes: list[int]) -> None:
    def scrape() -> int:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return len(answer.read())

    while True:
        sizes.append(await asyncio.to_thread(scrape))
        await asyncio.sleep(SCRAPE_S)


async def scrapes() -> list[Result]:
    with tempfile.TemporaryDirectory() as data:
        fill(Path(data) / "many" / "broker" / "store" / "config")
        async with AsyncExitStack() as stack:
            process = stack.enter_context(broker(data, "many", *METRICS))
            stub = await stack.enter_async_context(stub_of(process))
            for number in range(TOPICS):  # each topic has its series
                message = message_pb2.Message(topic=f"topic-{number}", body=b"x")
                await stub.Send(message_pb2.SendRequest(producer_group="b", messages=[message]))
            url = f"http://{process.ready['metrics']}/metrics"
            send, sizes = ingest(stub), list[int]()
            await timed(send, 2.0)
            rounds: list[tuple[tuple[float, float], tuple[float, float]]] = []
            for _ in range(SCRAPE_ROUNDS):
                scraper = asyncio.create_task(scraping(url, sizes))
                ours = await timed(send, SCRAPE_ROUND_S)
                scraper.cancel()
                await asyncio.gather(scraper, return_exceptions=True)
                rounds.append((ours, await timed(send, SCRAPE_ROUND_S)))
    size = f"{TOPICS:,} topics, a scrape of {max(sizes) / 1e6:.1f} MB every {SCRAPE_S:g} s"
    rate, base = (statistics.median(each[part][0] for each in rounds) for part in (0, 1))
    p99, p99_base = (statistics.median(each[part][1] for each in rounds) for part in (0, 1))
    return [
        Result(
            "scrape_10k_topics", "messages/s", rate, base, rate / base, 0.95,
            f"{BATCH} x 1 KiB, {IN_FLIGHT} in flight; {size}; against no scrapes",
        ),
        Result(
            "scrape_10k_topics_p99", "ms", p99, p99_base, p99 / p99_base, 1.3,
            "the same; the target is a limit",
        ),
    ]  # fmt: skip


async def results() -> list[Result]:
    metrics = await beside(
        "metrics_ingest", METRICS, ingest, target=0.98, note="all metrics, against none"
    )
    found = [metrics, await unary(), *await scrapes()]
    async with started("-m", "bench.servers.otlp") as (_, port):
        exporting = ("--set", f"otlpEndpoint=http://127.0.0.1:{port}")
        for name, share, target in (
            ("spans_unsampled", 0.0, 0.99),
            ("spans_1_percent", SAMPLED, 0.97),
        ):
            note = f"spans to a receiver, {share:.0%} of the messages sampled; against no receiver"
            operation = traced(share)
            found.append(await beside(name, exporting, operation, target=target, note=note))
    return found
