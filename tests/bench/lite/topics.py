"""100,000 lite topics of one parent: what they cost a broker that sends, rests, starts and lists.

Real processes. The baselines have as many messages of the same size in a normal topic.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import grpc
from aerobee.broker.v1 import admin_pb2, message_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from bench.measure import Operation, Result, compare
from bench.servers.echo import OPTIONS
from bench.throughput import BODY
from support.processes.command import aerobee_json
from support.processes.service import ServiceProcess, broker_process, namesrv_process
from support.stubs import Stub

NAMES = 100_000
BATCH = 128
QUEUES = 4
IN_FLIGHT = 4
SEND_TARGET = 0.8
SEND_ROUNDS = 9  # the target is near
STARTS = 5
SETTLE_S = 3.0
MEMORY_LIMIT_BYTES = 200.0
RESTART_TARGET = 2.0
LIST_LIMIT_S = 1.0
LISTS = 5
PARENT, NORMAL, GROUP = "sessions", "orders", "agents"


class Site(NamedTuple):
    """A broker that has lite topics and one that has none, with a name server each."""

    namesrvs: list[ServiceProcess]
    brokers: list[ServiceProcess]


def batch_request(topic: str, numbers: list[int]) -> message_pb2.SendRequest:
    """Messages of 1 KiB: of a parent, each to the lite topic of its number, all of one queue; of
    another topic with a tag of the same length."""
    name = b"__LITE_TOPIC" if topic == PARENT else b"TAGS"
    pad = b"" if topic == PARENT else b"--------"
    strings = [
        b"UNIQ_KEY\x01%032X\x02%s\x01%sdevice-%06d\x02" % (number, name, pad, number)
        for number in numbers
    ]
    batch = message_pb2.MessageBatch(
        topic=topic,
        queue_id=numbers[0] % QUEUES,
        body_sizes=[len(BODY)] * len(numbers),
        bodies=BODY * len(numbers),
        properties_sizes=[len(string) for string in strings],
        properties=b"".join(strings),
    )
    return message_pb2.SendRequest(producer_group="bench", batch=batch)


def batches() -> list[list[int]]:
    """The numbers of all lite topics, in batches of one queue."""
    own = [range(queue, NAMES, QUEUES) for queue in range(QUEUES)]
    return [
        [*numbers[first : first + BATCH]]
        for numbers in own
        for first in range(0, len(numbers), BATCH)
    ]


def send(stub: Stub, topic: str) -> Operation:
    """To one batch of lite topics after another, from the first again after the last."""
    turns = itertools.cycle(batches())

    async def one() -> int:
        response = await stub.Send(batch_request(topic, next(turns)))
        return len(response.batch_result.physical_offsets)

    return one


async def prepare(channel: grpc.aio.Channel) -> None:
    """Makes both topics, and a group of the parent."""
    admin = Stub(admin_pb2, channel)
    for name, kind in ((PARENT, "LITE"), (NORMAL, "NORMAL")):
        topic = namesrv_pb2.TopicConfig(
            topic=name,
            read_queue_count=QUEUES,
            write_queue_count=QUEUES,
            permission=6,
            attributes={"message.type": kind},
        )
        await admin.PutTopic(admin_pb2.PutTopicRequest(topic=topic))
    group = admin_pb2.GroupConfig(
        consumer_group=GROUP, consume_enable=True, attributes={"lite.bind.topic": PARENT}
    )
    await admin.PutGroup(admin_pb2.PutGroupRequest(group=group))


async def fill(broker: ServiceProcess, topic: str) -> None:
    """One message of each number."""
    async with grpc.aio.insecure_channel(broker.address, options=OPTIONS) as channel:
        await prepare(channel)
        stub = Stub(message_pb2, channel)
        for numbers in batches():
            await stub.Send(batch_request(topic, numbers))


def private_bytes(process: ServiceProcess) -> int:
    """RssAnon: without the pages of mapped files."""
    status = Path(f"/proc/{process.pid}/status").read_text("ascii")
    (kib,) = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")]
    return int(kib) * 1_024


def medians_of_starts(site: Site, measure: Callable[[ServiceProcess], float]) -> list[float]:
    """With lite topics, and without, in turns."""
    found: tuple[list[float], ...] = ([], [])
    for _ in range(STARTS):
        for broker, values in zip(site.brokers, found, strict=True):
            values.append(measure(broker))
    return [statistics.median(values) for values in found]


def start_s(broker: ServiceProcess) -> float:
    """Seconds until it serves again, after a stop in order."""
    broker.stop()
    began = time.perf_counter()
    broker.start()
    return time.perf_counter() - began


def idle_bytes(broker: ServiceProcess) -> float:
    broker.restart()
    time.sleep(SETTLE_S)
    return float(private_bytes(broker))


def list_s(namesrv: ServiceProcess) -> float:
    """Seconds of the command."""
    began = time.perf_counter()
    arguments = ("lite", "list", PARENT, "--group", GROUP, "--top", "10")
    listed = aerobee_json(*arguments, namesrv=namesrv.address)
    if [each["lag"] for each in listed] != [1] * 10:
        raise RuntimeError(f"ten lite topics with a message each are not {listed}")
    return time.perf_counter() - began


async def results() -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        homes = [Path(folder, name) for name in ("lite", "plain")]
        namesrvs = [namesrv_process(home) for home in homes]
        brokers: list[ServiceProcess] = []
        try:
            for home, namesrv in zip(homes, namesrvs, strict=True):
                namesrv.start()
                brokers.append(broker_process(home / "store", namesrv=namesrv.address))
                brokers[-1].start()
            return await measure(Site(namesrvs, brokers))
        finally:
            for process in (*brokers, *namesrvs):
                process.stop()


async def measure(site: Site) -> list[Result]:
    await fill(site.brokers[0], PARENT)
    await fill(site.brokers[1], NORMAL)
    lists = [list_s(site.namesrvs[0]) for _ in range(LISTS)]
    memory = medians_of_starts(site, idle_bytes)
    starts = medians_of_starts(site, start_s)
    async with grpc.aio.insecure_channel(site.brokers[0].address, options=OPTIONS) as channel:
        stub = Stub(message_pb2, channel)
        sent = await compare(
            "lite_send_1k",
            send(stub, PARENT),
            send(stub, NORMAL),
            in_flight=IN_FLIGHT,
            target=SEND_TARGET,
            note=f"{BATCH} x 1 KiB to {NAMES:,} lite topics; baseline: to a normal topic",
            rounds=SEND_ROUNDS,
        )
    each = (memory[0] - memory[1]) / NAMES
    listed = statistics.median(lists)
    return [
        sent,
        Result(
            "lite_topic_memory",
            "bytes",
            each,
            MEMORY_LIMIT_BYTES,
            each / MEMORY_LIMIT_BYTES,
            1.0,
            f"of the broker, each of {NAMES:,} lite topics with one message, after a start, idle;"
            " baseline: the limit",
        ),
        Result(
            "lite_restart",
            "s",
            starts[0],
            starts[1],
            starts[0] / starts[1],
            RESTART_TARGET,
            f"after a stop in order, {NAMES:,} lite topics; baseline: as many normal messages",
        ),
        Result(
            "lite_list_top_s",
            "s",
            listed,
            LIST_LIMIT_S,
            listed / LIST_LIMIT_S,
            1.0,
            f"`aerobee lite list --group --top 10` of {NAMES:,}; baseline: the limit",
        ),
    ]


if __name__ == "__main__":
    print(asyncio.run(results()), file=sys.stderr)
