"""The loads of the Python client, in a process of their own.

`python -m bench.profiles.client NAMESRV OPERATION` prints "up", then reads lines "in-flight
seconds" and answers each with the messages a second that it moved, as bench/load.py does.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from aerobee_client import (
    AsyncProducer,
    AsyncPushConsumer,
    AsyncSimpleConsumer,
    ConsumeFromWhere,
    ReceivedMessage,
)
from bench.clients.leases import receive_and_ack
from bench.clients.producers import batch, single
from bench.load import TOPIC
from bench.measure import Operation, rate
from bench.throughput import BATCH

Rate = Callable[[int, float], Awaitable[float]]  # (in flight, seconds) → messages a second
FIRST = ConsumeFromWhere.FIRST_OFFSET


def _rated(operation: Operation) -> Rate:
    return lambda in_flight, seconds: rate(operation, in_flight, seconds)


@asynccontextmanager
async def send(namesrv: str) -> AsyncIterator[Rate]:
    async with AsyncProducer(namesrv=namesrv) as producer:
        yield _rated(single(producer))


@asynccontextmanager
async def send_batches(namesrv: str) -> AsyncIterator[Rate]:
    async with AsyncProducer(namesrv=namesrv) as producer:
        yield _rated(batch(producer))


@asynccontextmanager
async def receive(namesrv: str) -> AsyncIterator[Rate]:
    consumer = AsyncSimpleConsumer("profiled", namesrv=namesrv, consume_from_where=FIRST)
    consumer.subscribe(TOPIC)
    async with consumer:
        yield _rated(receive_and_ack(consumer))


@asynccontextmanager
async def push(namesrv: str) -> AsyncIterator[Rate]:
    """Consume from the first message on. Another group follows one that has read everything."""
    groups = itertools.count()

    async def consume(_in_flight: int, seconds: float) -> float:
        began, seen = time.perf_counter(), 0
        deadline = began + seconds
        while time.perf_counter() < deadline:
            seen += await _group(namesrv, f"profiled-{next(groups)}", deadline)
        return seen / (time.perf_counter() - began)

    yield consume


async def _group(namesrv: str, group: str, deadline: float) -> int:
    """Return the messages that a group consumed until the deadline, or 0.5 s without one."""
    seen, changed = 0, asyncio.Event()

    async def listen(messages: list[ReceivedMessage]) -> None:
        nonlocal seen
        seen += len(messages)
        changed.set()

    consumer = AsyncPushConsumer(
        group,
        batch_listener=listen,
        namesrv=namesrv,
        consume_from_where=FIRST,
        consume_message_batch_max_size=BATCH,
    )
    consumer.subscribe(TOPIC)
    async with consumer:
        while (left_s := deadline - time.perf_counter()) > 0:
            changed.clear()
            try:
                await asyncio.wait_for(changed.wait(), min(left_s, 0.5))
            except TimeoutError:
                if seen:
                    break
            else:
                await asyncio.sleep(min(left_s, 0.05))
    return seen


@asynccontextmanager
async def paced(namesrv: str) -> AsyncIterator[Rate]:
    """Send at a steady rate, `in_flight` messages a second, to a push consumer in this process."""
    seen, changed = 0, asyncio.Event()

    async def listen(_message: ReceivedMessage) -> None:
        nonlocal seen
        seen += 1
        changed.set()

    async def send(rate_per_s: int, seconds: float) -> float:
        nonlocal seen
        seen, began, sends = 0, time.perf_counter(), []
        for place in range(int(rate_per_s * seconds)):
            wait_s = began + place / rate_per_s - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            sends.append(asyncio.ensure_future(one()))
        await asyncio.gather(*sends)
        while seen < len(sends):
            changed.clear()
            await changed.wait()
        return seen / (time.perf_counter() - began)

    consumer = AsyncPushConsumer(
        "profiled", listener=listen, namesrv=namesrv, consume_from_where=FIRST
    )
    consumer.subscribe(TOPIC)
    async with AsyncProducer(namesrv=namesrv) as producer, consumer:
        one = single(producer)
        yield send


OPERATIONS: Mapping[str, Callable[[str], AbstractAsyncContextManager[Rate]]] = {
    "send": send,
    "send_batches": send_batches,
    "push": push,
    "receive": receive,
    "paced": paced,
}


async def main() -> None:
    namesrv, name = sys.argv[1:]
    async with OPERATIONS[name](namesrv) as measured:
        print("up", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            in_flight, seconds = line.split()
            print(await measured(int(in_flight), float(seconds)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
