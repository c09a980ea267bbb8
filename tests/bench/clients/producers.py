"""Single sends of the Python client, 1 KiB each, against its own batches and against sends that
each take a request. Real processes: namesrv and broker with synchronous flush.

`client_single_send_64_ceiling` is what 64 messages in flight leave when none costs anything of its
own: one request of 64 at a time. What `client_single_send_64` lacks of it is the cost of a future
for each message.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import threading
import time
from collections.abc import Callable

from aerobee_client import AsyncAdminClient, AsyncProducer, Message, Producer
from bench.measure import ROUND_S, ROUNDS, Operation, Result, compare, median_ms
from bench.startup import started, up

TOPIC, QUEUES, BATCH = "bench", 4, 128
BODY = bytes(range(256)) * 4  # 1 KiB
LONE_SENDS = 400
WINDOW = 20_000  # sends of the plain class that have no answer yet


async def results() -> list[Result]:
    with tempfile.TemporaryDirectory() as data:
        async with started("-m", "aerobee_cli", *up(data)) as (_, line):
            namesrv = dict(item.split("=") for item in line.split()[1:])["namesrv"]
            async with AsyncAdminClient(namesrv) as admin:
                await admin.create_topic(TOPIC, queues=QUEUES)
            async with AsyncProducer(namesrv=namesrv) as producer:
                found = [*await throughput(producer), await lone_send(producer)]
            return [*found, await asyncio.to_thread(plain_class, namesrv)]


def single(producer: AsyncProducer, *, accumulate: bool = True) -> Operation:
    async def send() -> int:
        await producer.send(Message(TOPIC, BODY, tag="bench"), accumulate=accumulate)
        return 1

    return send


def batch(producer: AsyncProducer, size: int = BATCH) -> Operation:
    async def send() -> int:
        return len(await producer.send_batch([Message(TOPIC, BODY, tag="bench")] * size))

    return send


async def throughput(producer: AsyncProducer) -> list[Result]:
    found = []
    for name, in_flight, target in (
        ("client_single_send_1k", 1_024, 0.5),
        ("client_single_send_64", 64, 0.35),
    ):
        found.append(
            await compare(
                name,
                single(producer),
                batch(producer),
                in_flight=in_flight,
                baseline_in_flight=4,
                target=target,
                note=f"{in_flight} awaited at a time, against 4 batches of {BATCH}",
            )
        )
    ceiling = await compare(
        "client_single_send_64_ceiling",
        batch(producer, 64),
        batch(producer),
        in_flight=1,
        baseline_in_flight=4,
        target=None,
        note=f"one batch of 64 at a time, without a future for each, against 4 batches of {BATCH}",
    )
    gain = await compare(
        "client_accumulation_gain",
        single(producer),
        single(producer, accumulate=False),
        in_flight=64,
        target=5.0,
        note="64 awaited at a time, against the same with accumulation off",
    )
    return [*found, ceiling, gain]


async def lone_send(producer: AsyncProducer) -> Result:
    """Milliseconds of one send after the other; medians of the rounds' medians."""
    ways = {True: single(producer), False: single(producer, accumulate=False)}
    medians: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(ROUNDS):
        for way, send in ways.items():
            medians[way].append(await median_ms(send, LONE_SENDS))
    ours, alone = (statistics.median(medians[way]) for way in (True, False))
    note = "one sender alone, against accumulation off; at most 1.05"
    return Result("client_lone_send_p50", "ms", ours, alone, ours / alone, 1.05, note)


def plain_class(namesrv: str) -> Result:
    """`send_async` of the plain class from one thread, against batches of the same class."""
    with Producer(namesrv=namesrv) as producer:
        room = threading.Semaphore(WINDOW)

        def send_async() -> int:
            room.acquire()
            message = Message(TOPIC, BODY, tag="bench")
            producer.send_async(message, lambda _result, _error: room.release())
            return 1

        def send_batch() -> int:
            return len(producer.send_batch([Message(TOPIC, BODY, tag="bench")] * 4 * BATCH))

        rounds = [(rate(send_async), rate(send_batch)) for _ in range(ROUNDS)]
    ours = statistics.median(pair[0] for pair in rounds)
    batches = statistics.median(pair[1] for pair in rounds)
    note = f"plain class, one thread, at most {WINDOW} under way, against its batches"
    return Result("client_send_async_1k", "messages/s", ours, batches, ours / batches, 0.3, note)


def rate(send: Callable[[], int]) -> float:
    """Messages a second."""
    began, moved = time.perf_counter(), 0
    while time.perf_counter() < began + ROUND_S:
        moved += send()
    return moved / (time.perf_counter() - began)
