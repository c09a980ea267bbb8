"""The public protocol through proxy and broker, against an echo of the same bytes.

Real processes, synchronous flush. Both figures are to a bare gRPC echo of one message, on the same
server library and to the same client: a unary send is one such call with a broker behind it,
receiving brings 32 messages a call. The notes have the echo of a bare grpc.aio server beside it.
The proxy's port is gRPC's own; what a port for TLS and plaintext costs: `shared_port.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
from aerobee.broker.v1 import message_pb2_grpc

from bench.echo_server import OPTIONS
from bench.load import RECEIVE_BATCH
from bench.measure import ROUND_S, ROUNDS, Result
from bench.startup import started, up
from bench.throughput import BATCH, QUEUES, columnar

IN_FLIGHT = 64
SEND_TARGET = 0.45
RECEIVE_IN_FLIGHT = 16
RECEIVE_TARGET = 4.0
STORED = 250_000  # more than all rounds of receiving take
HERE = Path(__file__).parent


class Load:
    """A process that puts one operation on one server."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def rate(self, in_flight: int, seconds: float = ROUND_S) -> float:
        """Messages a second."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{in_flight} {seconds}\n".encode())
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the load ended: run tests/bench/load.py by hand to see why")
        return float(line)


@asynccontextmanager
async def load(address: str, operation: str) -> AsyncIterator[Load]:
    async with started(str(HERE / "load.py"), address, operation) as (process, _):
        yield Load(process)


async def compare(
    name: str, ours: Load, echo: Load, plain: Load, *, in_flight: int, target: float, note: str
) -> Result:
    """Rates of all three in turn, `ROUNDS` times after one round to warm up each."""
    for one in (ours, echo, plain):
        await one.rate(in_flight, ROUND_S / 2)
    rounds = [[await one.rate(in_flight) for one in (ours, echo, plain)] for _ in range(ROUNDS)]
    rate, base, aio = (statistics.median(column) for column in zip(*rounds, strict=True))
    note += f"; {rate / aio:.2f} x a grpc.aio server's echo ({aio:,.0f})"
    return Result(name, "messages/s", rate, base, rate / base, target, note)


async def results() -> list[Result]:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        data = stack.enter_context(tempfile.TemporaryDirectory())
        _, line = await enter(started("-m", "aerobee_cli", *up(data)))
        addresses = dict(item.split("=") for item in line.split()[1:])
        arguments = ("--port", "0", "--namesrv", addresses["namesrv"])
        plaintext = ("--set", "tlsServerMode=disabled")
        _, ready = await enter(started("-m", "aerobee_proxy", *arguments, *plaintext))
        proxy = json.loads(ready)["address"]
        _, port = await enter(started(str(HERE / "echo_service.py")))
        _, plain_port = await enter(started(str(HERE / "echo_server.py")))
        echo = await enter(load(f"127.0.0.1:{port}", "echo"))
        plain = await enter(load(f"127.0.0.1:{plain_port}", "echo"))
        sent = await compare(
            "proxy_unary_send_1k",
            await enter(load(proxy, "send")),
            echo,
            plain,
            in_flight=IN_FLIGHT,
            target=SEND_TARGET,
            note=f"1 KiB, {IN_FLIGHT} in flight, flush synchronous",
        )
        await fill(addresses["broker"])
        received = await compare(
            "proxy_receive_ack_1k",
            await enter(load(proxy, "receive")),
            echo,
            plain,
            in_flight=RECEIVE_IN_FLIGHT,
            target=RECEIVE_TARGET,
            note=f"{RECEIVE_BATCH} x 1 KiB, {RECEIVE_IN_FLIGHT} in flight, durable acks",
        )
        return [sent, received]


async def fill(broker: str) -> None:
    """The topic is there: sends made it."""
    async with grpc.aio.insecure_channel(broker, options=OPTIONS) as channel:
        stub, unique = message_pb2_grpc.MessageServiceStub(channel), itertools.count()
        for turn in range(STORED // BATCH):
            await stub.Send(columnar(turn % QUEUES, unique))


if __name__ == "__main__":
    print(asyncio.run(results()), file=sys.stderr)
