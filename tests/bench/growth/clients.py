"""The cost of a send at a broker with 1, 100 and 2,000 clients that send in turns.

Each client has a connection of its own, sends heartbeats as the member of a group, and waits for
messages of a topic that gets none. Real processes, synchronous flush.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
from aerobee.broker.v1 import client_pb2, message_pb2

from bench.growth.points import cost_us, curve, idle_share
from bench.measure import Operation, Result, resident_mb
from bench.replication.catch_up import quiet, single
from bench.servers.echo import OPTIONS
from bench.telemetry import stub_of
from bench.throughput import QUEUES
from support.processes.service import ServiceProcess, broker_process
from support.stubs import Stub

COUNTS = (1, 100, 2_000)
IN_FLIGHT = 16
AT_ONCE = 64  # clients that connect
ROUNDS = 5
ROUND_S = 3.0
HEARTBEAT_S = 30.0
WAIT_MS = 15_000
ONE_ADDRESS = "--set=maxConnectionsPerAddress=10000"  # all clients come from this machine
GROUP, QUIET = "waiting", "quiet"
OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)
LIMIT = 1.5


class Client:
    def __init__(self, address: str, number: int) -> None:
        self._name = f"client-{number}"
        self._channel = grpc.aio.insecure_channel(address, options=[*OPTIONS, OWN_CONNECTION])
        self.messages = Stub(message_pb2, self._channel)
        self._clients = Stub(client_pb2, self._channel)
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        await self._beat()
        self._tasks = [asyncio.create_task(each) for each in (self._stay(), self._wait())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close(None)

    async def _beat(self) -> None:
        given = client_pb2.HeartbeatRequest(client_id=self._name, language="PYTHON", version="1")
        consumer = given.consumers.add(consumer_group=GROUP)
        consumer.subscriptions.add(topic=QUIET, expression="*")
        await self._clients.Heartbeat(given)

    async def _stay(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await self._beat()

    async def _wait(self) -> None:
        request = message_pb2.PullRequest(
            consumer_group=GROUP, topic=QUIET, max_messages=32, max_bytes=1 << 20,
            suspend_timeout_ms=WAIT_MS,
        )  # fmt: skip
        while True:
            await self.messages.Pull(request)


def send(clients: list[Client]) -> Operation:
    """Send one message, each time from the next client."""
    numbers = itertools.count()

    async def one() -> int:
        number = next(numbers)
        await clients[number % len(clients)].messages.Send(single(number % QUEUES, number))
        return 1

    return one


@asynccontextmanager
async def connected(broker: ServiceProcess, count: int) -> AsyncIterator[list[Client]]:
    async with stub_of(broker) as stub:
        quiet_message = message_pb2.Message(topic=QUIET, body=b"x")
        await stub.Send(message_pb2.SendRequest(messages=[quiet_message]))
    free = asyncio.Semaphore(AT_ONCE)
    clients = [Client(broker.address, number) for number in range(count)]

    async def open_one(client: Client) -> None:
        async with free:
            await client.open()

    try:
        await asyncio.gather(*map(open_one, clients))
        yield clients
    finally:
        await asyncio.gather(*(client.close() for client in clients))


async def results() -> list[Result]:
    costs: dict[int, list[float]] = {count: [] for count in COUNTS}
    idles: dict[int, list[float]] = {count: [] for count in COUNTS}
    with tempfile.TemporaryDirectory(prefix="aerobee-bench-") as folder, quiet() as stack:
        brokers = {
            count: stack.enter_context(broker_process(Path(folder, str(count)), ONE_ADDRESS))
            for count in COUNTS
        }
        before = resident_mb(brokers[COUNTS[-1]].pid)
        async with AsyncExitStack() as connections:
            sends = {
                count: send(await connections.enter_async_context(connected(broker, count)))
                for count, broker in brokers.items()
            }
            for turn in range(ROUNDS + 1):
                for count, one in sends.items():
                    pid = brokers[count].pid
                    idle = await idle_share(pid, ROUND_S)
                    cost = await cost_us(pid, one, IN_FLIGHT, ROUND_S, idle)
                    costs[count] += [cost] if turn else []
                    idles[count] += [idle] if turn else []
            each_kb = (resident_mb(brokers[COUNTS[-1]].pid) - before) * 1_000 / COUNTS[-1]
    idle_percent = 100 * statistics.median(idles[COUNTS[-1]])
    note = (
        f"processor time of the broker, 1 KiB, {IN_FLIGHT} in flight, without that of waiting "
        f"clients; {COUNTS[-1]:,} of them take {idle_percent:.1f} % of a core and {each_kb:.0f} KB "
        "each; baseline: one"
    )
    return curve("growth_clients", costs, costs[1], unit="us/message", limit=LIMIT, note=note)
