"""What a copy on another broker costs: sends to a master with one slave, against sends to a broker
that has none. The same machine, the same disk: it flushes every message twice.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
from aerobee.broker.v1 import admin_pb2, message_pb2
from aerobee.namesrv.v1 import namesrv_pb2
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from bench.load import METADATA, SERVICE, message
from bench.measure import Operation, Result, compare, median_ms
from bench.proxy import load, medians
from bench.replication.clusters import ASYNCHRONOUS, SYNCHRONOUS, Cluster, cluster
from bench.servers.echo import OPTIONS
from bench.throughput import BATCH, IN_FLIGHT, QUEUES, TOPIC, ingest
from support.stubs import Stub

SINGLE_SENDS = 300
BATCH_ROUNDS = 9  # the ratios are near their targets


async def results() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="aerobee-bench-") as folder:
        async with AsyncExitStack() as stack:

            async def started(name: str, *role: str) -> Cluster:
                made = cluster(Path(folder) / name, *role)
                found = await asyncio.to_thread(made.__enter__)
                stack.push_async_callback(asyncio.to_thread, made.__exit__, None, None, None)
                return found

            alone = await started("alone")
            synchronous = await started("synchronous", *SYNCHRONOUS)
            asynchronous = await started("asynchronous", *ASYNCHRONOUS)
            calls = {}
            for each in (alone, synchronous, asynchronous):
                channel = grpc.aio.insecure_channel(each.broker, options=OPTIONS)
                await stack.enter_async_context(channel)
                calls[each.broker] = await sends(channel)
            base = calls[alone.broker]
            return [
                await batches("replicated_ingest_batch_1k", calls[synchronous.broker], base, 0.60),
                await batches("replicated_ingest_async", calls[asynchronous.broker], base, 0.75),
                *await unary(stack, synchronous.proxy, alone.proxy),
            ]


async def sends(channel: grpc.aio.Channel) -> Operation:
    """Of batches, to a topic that is made here."""
    topic = namesrv_pb2.TopicConfig(
        topic=TOPIC, read_queue_count=QUEUES, write_queue_count=QUEUES, permission=6
    )
    await Stub(admin_pb2, channel).PutTopic(admin_pb2.PutTopicRequest(topic=topic))
    return ingest(Stub(message_pb2, channel))


async def batches(name: str, ours: Operation, alone: Operation, target: float) -> Result:
    note = f"{BATCH} x 1 KiB, {IN_FLIGHT} in flight, one slave; baseline: a broker without"
    return await compare(
        name, ours, alone, in_flight=IN_FLIGHT, target=target, note=note, rounds=BATCH_ROUNDS
    )


async def unary(stack: AsyncExitStack, ours: str, alone: str) -> list[Result]:
    both = [await stack.enter_async_context(load(address, "send")) for address in (ours, alone)]
    rate, base = await medians(*both)
    took, base_took = await single(stack, ours), await single(stack, alone)
    note = "1 KiB, by the proxy, synchronous, one slave; baseline: a broker without"
    return [
        Result("replicated_unary_send_1k", "messages/s", rate, base, rate / base, 0.65, note),
        Result("replicated_single_p50", "ms", took, base_took, took / base_took, 2.5, note),
    ]


async def single(stack: AsyncExitStack, address: str) -> float:
    """Milliseconds of a send, one after the other."""
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
    send = channel.unary_unary(
        SERVICE + "SendMessage",
        s.SendMessageRequest.SerializeToString,
        s.SendMessageResponse.FromString,
    )
    numbers = itertools.count()
    return await median_ms(
        lambda: send(message(next(numbers)), metadata=METADATA), count=SINGLE_SENDS
    )


if __name__ == "__main__":
    print(asyncio.run(results()), file=sys.stderr)
