"""2,000 receives that wait at once: what each costs in memory, and how soon the right one wakes.

Real processes. Groups, each with a tag of its own, times topics: a message of one topic and one tag
is for exactly one of the receives that wait.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass

import grpc
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from bench.measure import Result
from bench.servers.echo import OPTIONS
from bench.startup import started, up, weights
from support.stubs import Stub

TOPICS, GROUPS = 100, 20
WAITING = TOPICS * GROUPS
WAIT_S = 20  # the longest that there is
ROUNDS = 30
SETTLE_S = 3  # until all wait
LIMIT_KB = 100.0  # of a receive, in proxy and broker together
METADATA = (("x-mq-client-id", "bench@1@0@a"),)


@dataclass(frozen=True)
class Place:
    """For whom a message is: one group in one topic."""

    topic: int
    group: int

    @property
    def name(self) -> d.Resource:
        return d.Resource(name=f"parked{self.topic}")


class Waiting:
    """The receives that wait. Each that ends without a message begins anew while this is open."""

    def __init__(self, stub: Stub, broker_name: str) -> None:
        self._stub = stub
        self._broker = d.Broker(name=broker_name)
        # Each ends with the time at which a message was there.
        self.tasks: dict[Place, asyncio.Task[float]] = {}
        self.woken = 0

    def park(self, place: Place) -> None:
        self.tasks[place] = asyncio.create_task(self._receive(place))

    async def close(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)

    async def _receive(self, place: Place) -> float:
        request = s.ReceiveMessageRequest(
            group=d.Resource(name=f"parked{place.group}"),
            message_queue=d.MessageQueue(topic=place.name, broker=self._broker),
            batch_size=1,
            filter_expression=d.FilterExpression(
                type=d.FilterType.TAG, expression=f"tag{place.group}"
            ),
        )
        request.invisible_duration.seconds = 600
        request.long_polling_timeout.seconds = WAIT_S
        while True:
            async for answer in self._stub.ReceiveMessage(request, metadata=METADATA):
                if answer.HasField("message"):
                    self.woken += 1
                    return time.perf_counter()


async def send(stub: Stub, place: Place, number: int) -> None:
    system = d.SystemProperties(message_id=f"01{number:032X}", tag=f"tag{place.group}")
    message = d.Message(topic=place.name, body=b"x", system_properties=system)
    answer = await stub.SendMessage(s.SendMessageRequest(messages=[message]), metadata=METADATA)
    if answer.status.code != d.Code.OK:
        raise RuntimeError(answer.status.message)


async def wake(stub: Stub, waiting: Waiting) -> float:
    """Median milliseconds from a send to the receive that it is for, of those that wait.

    Raises RuntimeError when another woke.
    """
    places = list(waiting.tasks)
    delays = []
    for number in range(ROUNDS):
        place = places[number * 7 % len(places)]
        before, start = waiting.woken, time.perf_counter()
        await send(stub, place, number)
        delays.append((await waiting.tasks[place] - start) * 1_000)
        if waiting.woken != before + 1:
            raise RuntimeError(f"{waiting.woken - before} receives woke for one message")
        waiting.park(place)
        await asyncio.sleep(0.05)
    return statistics.median(delays)


async def results() -> list[Result]:
    with tempfile.TemporaryDirectory() as data:
        async with started("-m", "aerobee_cli", *up(data)) as (process, line):
            addresses = dict(item.split("=") for item in line.split()[1:])
            async with grpc.aio.insecure_channel(addresses["proxy"], options=OPTIONS) as channel:
                stub = Stub(s, channel)
                places = [Place(topic, group) for topic in range(TOPICS) for group in range(GROUPS)]
                broker_name = await prepare(stub, addresses["proxy"])
                waiting = Waiting(stub, broker_name)
                waiting.park(Place(0, GROUPS))
                await asyncio.sleep(SETTLE_S)
                base = await wake(stub, waiting)
                before = memory(process.pid)
                await waiting.close()
                waiting = Waiting(stub, broker_name)
                for place in places:
                    waiting.park(place)
                await asyncio.sleep(SETTLE_S)
                after = memory(process.pid)
                ours = await wake(stub, waiting)
                await waiting.close()
    kilobytes = (after - before) * 1_024 / WAITING
    return [
        Result(
            "parked_receive_memory",
            "KB",
            kilobytes,
            LIMIT_KB,
            kilobytes / LIMIT_KB,
            1.0,
            f"resident, proxy and broker, each of {WAITING:,} receives; baseline: the limit",
        ),
        Result(
            "parked_receive_wake",
            "ms",
            ours,
            base,
            ours / base,
            None,
            f"send to wake, {WAITING:,} wait and one wakes; baseline: only that one waits",
        ),
    ]


async def prepare(stub: Stub, address: str) -> str:
    """Makes the topics; returns the name of the broker."""
    host, _, port = address.rpartition(":")
    endpoints = d.Endpoints(
        scheme=d.AddressScheme.IPv4, addresses=[d.Address(host=host, port=int(port))]
    )
    for topic in range(TOPICS):
        request = s.QueryRouteRequest(topic=Place(topic, 0).name, endpoints=endpoints)
        answer = await stub.QueryRoute(request, metadata=METADATA)
        name = answer.message_queues[0].broker.name
    return str(name)


def memory(pid: int) -> float:
    """MB of proxy and broker."""
    weight = weights(pid)
    return weight["proxy"] + weight["broker"]
