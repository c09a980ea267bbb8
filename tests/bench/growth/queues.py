"""The cost of a send at a broker with 1, 100 and 10,000 queues, of which each message has another.

Real processes, synchronous flush, called in turns.
"""

from __future__ import annotations

import random
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
from aerobee.broker.v1 import message_pb2

from aerobee_broker.metadata.topics import TopicConfig, Topics
from aerobee_chassis.clock import SystemClock
from aerobee_wire.checked_json import encode
from bench.growth.points import cost_us, curve
from bench.measure import Operation, Result
from bench.replication.catch_up import quiet
from bench.servers.echo import OPTIONS
from bench.throughput import BATCH, BODY, IN_FLIGHT
from support.processes.service import broker_process
from support.stubs import Stub

COUNTS = (1, 100, 10_000)
QUEUES = 100  # of a topic at most
ROUNDS = 5
ROUND_S = 2.0
LIMIT = 2.0


def names(count: int) -> list[tuple[str, int]]:
    """Return topics and their numbers of queues, `count` in all."""
    return [(f"topic-{number}", min(QUEUES, count)) for number in range(-(-count // QUEUES))]


def fill(config: Path, count: int) -> None:
    """Write the broker's table before its start."""
    topics = Topics(SystemClock())
    for name, queues in names(count):
        topics.put(TopicConfig(name, queues, queues))
    config.mkdir(parents=True)
    (config / "topics.json").write_bytes(encode(topics.to_json()))


def send(stub: Stub, count: int) -> Operation:
    """Send messages that each have a random queue, as a proxy sends those of its clients."""
    every = [(name, queue) for name, queues in names(count) for queue in range(queues)]
    rng = random.Random(count)

    async def one() -> int:
        messages = [
            message_pb2.Message(topic=topic, queue_id=queue, body=BODY)
            for topic, queue in rng.choices(every, k=BATCH)
        ]
        await stub.Send(message_pb2.SendRequest(messages=messages))
        return BATCH

    return one


async def results() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="aerobee-bench-") as folder, quiet() as stack:
        processes = {}
        for count in COUNTS:
            home = Path(folder, str(count))
            fill(home / "broker" / "store" / "config", count)
            processes[count] = stack.enter_context(broker_process(home))
        async with AsyncExitStack() as channels:
            sends = {}
            for count, process in processes.items():
                channel = grpc.aio.insecure_channel(process.address, options=OPTIONS)
                stub = Stub(message_pb2, await channels.enter_async_context(channel))
                sends[count] = send(stub, count)
            costs: dict[int, list[float]] = {count: [] for count in COUNTS}
            for turn in range(ROUNDS + 1):
                for count, one in sends.items():
                    cost = await cost_us(processes[count].pid, one, IN_FLIGHT, ROUND_S)
                    costs[count] += [cost] if turn else []  # the first round makes the queues
    note = f"processor time of the broker, {BATCH} x 1 KiB to random queues; baseline: one"
    return curve("growth_queues", costs, costs[1], unit="us/message", limit=LIMIT, note=note)
