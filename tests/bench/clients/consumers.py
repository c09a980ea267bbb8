"""Consumers of the Python client over messages of 1 KiB that are stored already: a push consumer
against a bare echo of the same bytes; one that consumes in order, and a pull consumer, against it.

Real processes: namesrv and broker. Each round is a group of its own, which reads from the first
message on.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

import grpc
from aerobee.broker.v1 import message_pb2

from aerobee_client import (
    AsyncAdminClient,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    ConsumeFromWhere,
    Message,
    ReceivedMessage,
)
from bench.measure import ROUNDS, Result, rate
from bench.servers.echo import OPTIONS
from bench.startup import started, up
from bench.throughput import BATCH, IN_FLIGHT, echo
from support.stubs import Stub

TOPIC, QUEUES = "bench", 8
BODY = bytes(range(256)) * 4  # 1 KiB
STORED = 65_536  # messages that a round consumes
LIMIT_S = 120.0

Round = Callable[[str, str], Awaitable[float]]  # (namesrv, group) → messages a second
FIRST = ConsumeFromWhere.FIRST_OFFSET


async def results() -> list[Result]:
    with tempfile.TemporaryDirectory() as data:
        async with (
            started("-m", "aerobee_cli", *up(data)) as (_, line),
            started("-m", "bench.servers.echo") as (_, port),
            grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as bare,
        ):
            found = dict(item.split("=") for item in line.split()[1:])
            await fill(found["namesrv"])
            ceiling = echo(bare, await records(found["broker"]))
            rates: dict[str, list[float]] = {"push": [], "orderly": [], "pull": [], "echo": []}
            numbers = itertools.count()
            for turn in range(ROUNDS + 1):
                for name, consume in (
                    ("push", push),
                    ("orderly", partial(push, orderly=True)),
                    ("pull", pull),
                ):
                    figure = await consume(found["namesrv"], f"{name}-{next(numbers)}")
                    rates[name] += [figure] if turn else []  # the first round warms up
                rates["echo"].append(await rate(ceiling, IN_FLIGHT))
    pushed, in_order, pulled, echoed = (statistics.median(found) for found in rates.values())
    unit, what = "messages/s", f"{STORED} x 1 KiB in {QUEUES} queues"
    return [
        Result("client_consumer_1k", unit, pushed, echoed, pushed / echoed, 0.2, f"{what}: push"),
        Result("client_orderly_consumer_1k", unit, in_order, pushed, in_order / pushed, 0.5, what),
        Result("client_pull_consumer_1k", unit, pulled, pushed, pulled / pushed, 0.9, f"{what}"),
    ]


async def fill(namesrv: str) -> None:
    async with AsyncAdminClient(namesrv) as admin:
        await admin.create_topic(TOPIC, queues=QUEUES)
    async with AsyncProducer(namesrv=namesrv) as producer:
        for _ in range(STORED // (8 * BATCH)):
            batch = [Message(TOPIC, BODY, tag="bench")] * BATCH
            await asyncio.gather(*(producer.send_batch(batch) for _ in range(8)))


async def records(broker: str) -> bytes:
    """One batch as a pull brings it."""
    async with grpc.aio.insecure_channel(broker, options=OPTIONS) as channel:
        request = message_pb2.PullRequest(
            topic=TOPIC, max_messages=BATCH, max_bytes=1 << 20, browse=True
        )
        response = await Stub(message_pb2, channel).Pull(request)
        return bytes(response.records)


async def push(namesrv: str, group: str, *, orderly: bool = False) -> float:
    """By a batch listener, a coroutine that only counts."""
    seen = 0
    done = asyncio.Event()

    async def listen(messages: list[ReceivedMessage]) -> None:
        nonlocal seen
        seen += len(messages)
        if seen >= STORED:
            done.set()

    consumer = AsyncPushConsumer(
        group,
        batch_listener=listen,
        namesrv=namesrv,
        consume_from_where=FIRST,
        consume_message_batch_max_size=BATCH,
        orderly=orderly,
    )
    consumer.subscribe(TOPIC)
    async with asyncio.timeout(LIMIT_S):
        began = time.perf_counter()
        async with consumer:
            await done.wait()
            return seen / (time.perf_counter() - began)


async def pull(namesrv: str, group: str) -> float:
    """By polls of as many messages."""
    seen = 0
    consumer = AsyncPullConsumer(group, namesrv=namesrv, consume_from_where=FIRST)
    consumer.subscribe(TOPIC)
    async with asyncio.timeout(LIMIT_S):
        began = time.perf_counter()
        async with consumer:
            while seen < STORED:
                seen += len(await consumer.poll(BATCH, timedelta(seconds=1)))
            return seen / (time.perf_counter() - began)
