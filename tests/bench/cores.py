"""What a second core gives: two workers of a proxy beside one, two shards of a broker beside one
broker, and two brokers with two proxies beside one of each.

Each server process has the same share of a core (`quota.py`), so that the load, which has no quota,
is never what limits. A row is the throughput of twice the processes divided by that of one, in
turns. The notes say how much of their quotas the servers used: near 100 %, the servers limit.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from aerobee.broker.v1 import admin_pb2, message_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from bench.measure import Operation, Result, rate
from bench.proxy import load
from bench.quota import Group, quota
from bench.servers.echo import OPTIONS
from bench.startup import started
from bench.throughput import QUEUES, TOPIC, ingest
from support.stubs import Stub

SHARE = 0.15
TARGET = 1.6
ROUNDS = 9
ROUND_S = 1.5
WARM_UP_S = 1.0
# The kernel spreads connections over workers by a hash: of 16, each worker has at least 4 in 98 of
# 100 runs, and 16 calls on each of them keep it busy.
CONNECTIONS = 16
IN_FLIGHT = 256
BATCHES_IN_FLIGHT = 8  # of each broker


@dataclass(frozen=True)
class Server:
    """A service whose processes each have a quota, or none of them has. Shards are one service."""

    address: str
    groups: list[Group]


@dataclass(frozen=True)
class Side:
    """What is measured: servers with quotas, and the rate of the load on them for some seconds."""

    groups: list[Group]
    rate: Callable[[float], Awaitable[float]]

    async def measured(self, seconds: float) -> tuple[float, float]:
        """Messages a second, and the part of its quota that the busiest server used."""
        before = self._used_s()
        began = asyncio.get_running_loop().time()
        found = await self.rate(seconds)
        took = asyncio.get_running_loop().time() - began
        used = (after - earlier for after, earlier in zip(self._used_s(), before, strict=True))
        return found, max(used) / (took * SHARE)

    def _used_s(self) -> list[float]:
        return [group.used_s() for group in self.groups]


class Site:
    """Starts servers. They end before their groups, which are first on the stack."""

    def __init__(self, stack: AsyncExitStack, servers: int) -> None:
        self._stack = stack
        self._groups = [stack.enter_context(quota(SHARE)) for _ in range(servers)]

    async def namesrv(self) -> str:
        ready, _ = await self._service("aerobee_namesrv", "--data", self._directory())
        return str(ready["address"])

    async def broker(self, namesrv: str, *arguments: str, limited: bool = True) -> Server:
        where = ("--namesrv", namesrv, "--data", self._directory())
        return await self._server("aerobee_broker", *where, *arguments, limited=limited)

    async def proxy(self, namesrv: str, *arguments: str) -> Server:
        return await self._server("aerobee_proxy", "--namesrv", namesrv, *arguments)

    async def sends(self, address: str, groups: list[Group]) -> Side:
        """Single sends to proxies at an address, or at several with "," between them."""
        sending = await self._stack.enter_async_context(load(address, "send", CONNECTIONS))
        return Side(groups, partial(sending.rate, IN_FLIGHT))

    async def stub(self, address: str) -> Stub:
        """A stub of a broker, on which the topic is made."""
        channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        await self._stack.enter_async_context(channel)
        topic = namesrv_pb2.TopicConfig(
            topic=TOPIC, read_queue_count=QUEUES, write_queue_count=QUEUES, permission=6
        )
        request = admin_pb2.PutTopicRequest(topic=topic)
        await Stub(admin_pb2, channel).PutTopic(request)
        return Stub(message_pb2, channel)

    def _directory(self) -> str:
        return self._stack.enter_context(tempfile.TemporaryDirectory())

    async def _server(self, module: str, *arguments: str, limited: bool = True) -> Server:
        ready, pid = await self._service(module, *arguments)
        pids = ready.get("workers") or ready.get("shards") or [pid]
        groups = [self._groups.pop() for _ in pids] if limited else []
        for group, each in zip(groups, pids, strict=False):
            group.add(each)
        return Server(str(ready["address"]), groups)

    async def _service(self, module: str, *arguments: str) -> tuple[dict[str, Any], int]:
        command = ("-m", module, "--port", "0", *arguments)
        process, line = await self._stack.enter_async_context(started(*command))
        assert process.stdout is not None
        while json.loads(line)["event"] != "ready":
            line = (await process.stdout.readline()).decode()
        return json.loads(line), process.pid


async def compared(name: str, how: str, one: Side, two: Side) -> Result:
    """Both in turns; how much of the quotas they used is in the note."""
    for side in (one, two):
        await side.measured(WARM_UP_S)
    rounds = [[await side.measured(ROUND_S) for side in (one, two)] for _ in range(ROUNDS)]
    (base, base_used), (ours, our_used) = (
        [statistics.median(column) for column in zip(*side, strict=True)]
        for side in zip(*rounds, strict=True)
    )
    note = (
        f"{how}; {SHARE:.0%} of a core for each process, of which the busiest one used "
        f"{base_used:.0%} alone and {our_used:.0%} beside another"
    )
    return Result(name, "messages/s", ours, base, ours / base, TARGET, note)


def in_turn(operations: Sequence[Operation]) -> Operation:
    turns = itertools.cycle(operations)

    async def one() -> int:
        return await next(turns)()

    return one


async def workers() -> Result:
    """Two workers of a proxy beside one, at one broker without a quota."""
    async with AsyncExitStack() as stack:
        site = Site(stack, servers=3)
        namesrv = await site.namesrv()
        await site.broker(namesrv, limited=False)
        one, two = await site.proxy(namesrv), await site.proxy(namesrv, "--set", "workers=2")
        sides = [await site.sends(each.address, each.groups) for each in (one, two)]
        return await compared("proxy_workers_2", f"1 KiB, {IN_FLIGHT} in flight", *sides)


async def shards() -> Result:
    """Two shards of a broker beside a broker."""
    async with AsyncExitStack() as stack:
        site = Site(stack, servers=3)
        namesrv = await site.namesrv()
        sides = []
        for arguments in (("--set", "brokerName=one"), ("--shards", "2")):
            server = await site.broker(namesrv, *arguments)
            sends = [ingest(await site.stub(each)) for each in server.address.split(",")]
            in_flight = BATCHES_IN_FLIGHT * len(sends)
            sides.append(Side(server.groups, partial(rate, in_turn(sends), in_flight)))
        how = f"batches of 128 x 1 KiB, {BATCHES_IN_FLIGHT} in flight to each broker"
        return await compared("broker_shards_2", how, *sides)


async def pairs() -> Result:
    """Two brokers and two proxies beside one of each, in clusters of their own."""
    async with AsyncExitStack() as stack:
        site = Site(stack, servers=6)
        sides = []
        for count in (1, 2):
            namesrv = await site.namesrv()
            names = [f"broker-{number}" for number in range(count)]
            servers = [await site.broker(namesrv, "--set", f"brokerName={each}") for each in names]
            proxies = [await site.proxy(namesrv) for _ in names]
            groups = [group for each in (*servers, *proxies) for group in each.groups]
            address = ",".join(each.address for each in proxies)
            sides.append(await site.sends(address, groups))
        return await compared("brokers_2_proxies_2", f"1 KiB, {IN_FLIGHT} in flight", *sides)


async def results() -> list[Result]:
    return [await workers(), await shards(), await pairs()]


if __name__ == "__main__":
    print(asyncio.run(results()), file=sys.stderr)
