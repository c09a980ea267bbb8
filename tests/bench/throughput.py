"""Batches of 128 messages of 1 KiB into a broker and out of it, against an echo of the same bytes.

Real processes: namesrv and broker with synchronous flush, and a bare echo server. The load is ours
(`aerobee_client`) against the same bytes through the same gRPC library.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile

import grpc
from aerobee.broker.v1 import admin_pb2, message_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_wire import record
from bench.measure import Operation, Result, compare
from bench.servers.echo import METHOD, OPTIONS
from bench.startup import started, up
from support.stubs import Stub

BATCH = 128
BODY = bytes(range(256)) * 4  # 1 KiB
QUEUES = 4
IN_FLIGHT = 4
TARGET = 0.20
TOPIC = "bench"


def batch_request(queue_id: int, unique: itertools.count[int]) -> message_pb2.SendRequest:
    """One batch as a producer makes it: bodies joined, a properties string for each message. The
    client of this repository spends as little on it (1.5 µs a message)."""
    strings = [b"UNIQ_KEY\x01%032X\x02TAGS\x01bench\x02" % next(unique) for _ in range(BATCH)]
    batch = message_pb2.MessageBatch(
        topic=TOPIC,
        queue_id=queue_id,
        body_sizes=[len(BODY)] * BATCH,
        bodies=BODY * BATCH,
        properties_sizes=[len(string) for string in strings],
        properties=b"".join(strings),
    )
    return message_pb2.SendRequest(producer_group="bench", batch=batch)


def ingest(stub: Stub) -> Operation:
    unique = itertools.count()
    turn = itertools.count()

    async def send() -> int:
        response = await stub.Send(batch_request(next(turn) % QUEUES, unique))
        return len(response.batch_result.physical_offsets)

    return send


def pull(stub: Stub, stored: int) -> Operation:
    """Reads all queues from their start again and again, and decodes every record."""
    positions = [0] * QUEUES
    turn = itertools.count()

    async def read() -> int:
        queue_id = next(turn) % QUEUES
        request = message_pb2.PullRequest(
            topic=TOPIC,
            queue_id=queue_id,
            queue_offset=positions[queue_id],
            max_messages=BATCH,
            max_bytes=2 * BATCH * len(BODY),
            browse=True,
        )
        response = await stub.Pull(request)
        count = sum(1 for _ in record.iter_records(response.records))
        if count != response.message_count:
            raise RuntimeError(f"the broker said {response.message_count} records, {count} came")
        end = response.next_begin_offset
        positions[queue_id] = end if end < stored else 0
        return count

    return read


def echo(channel: grpc.aio.Channel, payload: bytes) -> Operation:
    call = channel.unary_unary(METHOD, None, None)

    async def send() -> int:
        answer = await call(payload)
        if len(answer) != len(payload):
            raise RuntimeError(f"the echo gave {len(answer)} of {len(payload)} bytes")
        return BATCH

    return send


async def results() -> list[Result]:
    with tempfile.TemporaryDirectory() as data:
        async with (
            started("-m", "aerobee_cli", *up(data)) as (_, line),
            started("-m", "bench.servers.echo") as (_, port),
        ):
            broker = dict(item.split("=") for item in line.split()[1:])["broker"]
            async with (
                grpc.aio.insecure_channel(broker, options=OPTIONS) as ours,
                grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as bare,
            ):
                return await measure_both(ours, bare)


async def measure_both(ours: grpc.aio.Channel, bare: grpc.aio.Channel) -> list[Result]:
    topic = namesrv_pb2.TopicConfig(
        topic=TOPIC, read_queue_count=QUEUES, write_queue_count=QUEUES, permission=6
    )
    await Stub(admin_pb2, ours).PutTopic(admin_pb2.PutTopicRequest(topic=topic))
    stub = Stub(message_pb2, ours)
    payload = batch_request(0, itertools.count()).SerializeToString()
    sent = await compare(
        "ingest_batch_1k",
        ingest(stub),
        echo(bare, payload),
        in_flight=IN_FLIGHT,
        target=TARGET,
        note=f"{BATCH} x 1 KiB, {IN_FLIGHT} in flight, flush synchronous",
    )
    first = await stub.Pull(
        message_pb2.PullRequest(topic=TOPIC, max_messages=BATCH, max_bytes=1 << 20, browse=True)
    )
    pulled = await compare(
        "pull_batch_1k",
        pull(stub, min(first.max_offset, 50 * BATCH)),
        echo(bare, first.records),
        in_flight=IN_FLIGHT,
        target=TARGET,
        note=f"{BATCH} x 1 KiB, {IN_FLIGHT} in flight, every record decoded",
    )
    return [sent, pulled]


if __name__ == "__main__":
    print(asyncio.run(results()), file=sys.stderr)
