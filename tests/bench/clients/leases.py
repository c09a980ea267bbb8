"""Receiving on lease by the simple consumer, 32 messages of 1 KiB at a time and one acknowledgement
for them, against the same of an official client's calls through the proxy.

Real processes, synchronous flush. The load on the proxy is `bench/load.py`, which decodes no more
than it must; ours is the whole Python client, in the process that measures.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from contextlib import AsyncExitStack
from datetime import timedelta

from aerobee_client import AsyncAdminClient, AsyncSimpleConsumer, ConsumeFromWhere
from bench.load import BODY, RECEIVE_BATCH, TOPIC
from bench.measure import ROUND_S, ROUNDS, Operation, Result, rate
from bench.proxy import IN_FLIGHT, fill, load, suite_and_plaintext_proxy
from bench.throughput import QUEUES

LEASE = timedelta(seconds=60)
WAIT = timedelta(seconds=1)
TARGET = 1.2
FILLS = 4  # of `fill`: more than all rounds take


async def results() -> list[Result]:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        addresses = await enter(suite_and_plaintext_proxy())
        async with AsyncAdminClient(addresses["namesrv"]) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        for _ in range(FILLS):
            await fill(addresses["broker"])
        proxy = await enter(load(addresses["plaintext_proxy"], "receive"))
        consumer = AsyncSimpleConsumer(
            "bench-simple",
            namesrv=addresses["namesrv"],
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        )
        consumer.subscribe(TOPIC)
        ours = receive_and_ack(await enter(consumer))
        await proxy.rate(IN_FLIGHT, ROUND_S / 2)
        await rate(ours, IN_FLIGHT, ROUND_S / 2)
        rounds = [(await rate(ours, IN_FLIGHT), await proxy.rate(IN_FLIGHT)) for _ in range(ROUNDS)]
    mine = statistics.median(pair[0] for pair in rounds)
    through = statistics.median(pair[1] for pair in rounds)
    note = f"{RECEIVE_BATCH} x 1 KiB, {IN_FLIGHT} in flight, against proxy_receive_ack_1k"
    return [
        Result(
            "client_simple_consumer_1k", "messages/s", mine, through, mine / through, TARGET, note
        )
    ]


def receive_and_ack(consumer: AsyncSimpleConsumer) -> Operation:
    async def batch() -> int:
        messages = await consumer.receive(RECEIVE_BATCH, LEASE, WAIT)
        if not messages or any(message.body != BODY for message in messages):
            raise RuntimeError("nothing was received, or another body than was sent")
        await consumer.ack(messages)
        return len(messages)

    return batch


if __name__ == "__main__":
    print(asyncio.run(results()), file=sys.stderr)
