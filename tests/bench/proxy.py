"""The public protocol through proxy and broker, against a bare gRPC echo of one message.

Real processes, synchronous flush, the same client for all. The baseline is an echo on the transport
that serves the proxy; the notes have the ratio to one of grpc.aio beside it, and
`proxy_receive_ack_ceiling` is what our transport gives when nothing is behind it (decision 10).
A unary send is one call, receiving brings 32 messages a call.
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
from aerobee.broker.v1 import message_pb2

from bench.load import RECEIVE_BATCH
from bench.measure import ROUND_S, ROUNDS, Result
from bench.servers.echo import OPTIONS
from bench.startup import started, up
from bench.throughput import BATCH, QUEUES, batch_request
from support.stubs import Stub

IN_FLIGHT = 64
SEND_TARGET = 0.45
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
async def load(address: str, operation: str, connections: int = 1) -> AsyncIterator[Load]:
    """`address`: one, or several with "," between them."""
    arguments = ("-m", "bench.load", address, operation, str(connections))
    async with started(*arguments) as (process, _):
        yield Load(process)


async def medians(*loads: Load) -> list[float]:
    """Messages a second of each, in turn, `ROUNDS` times after one round to warm up each."""
    for load in loads:
        await load.rate(IN_FLIGHT, ROUND_S / 2)
    rounds = [[await load.rate(IN_FLIGHT) for load in loads] for _ in range(ROUNDS)]
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


@asynccontextmanager
async def suite_and_plaintext_proxy() -> AsyncIterator[dict[str, str]]:
    """The addresses of a suite ("namesrv", "broker", "proxy"), and of a proxy beside it whose port
    is gRPC's own ("plaintext_proxy")."""
    with tempfile.TemporaryDirectory() as data:
        async with started("-m", "aerobee_cli", *up(data)) as (_, line):
            addresses = dict(item.split("=") for item in line.split()[1:])
            arguments = ("--port", "0", "--namesrv", addresses["namesrv"])
            plaintext = ("--set", "tlsServerMode=disabled")
            async with started("-m", "aerobee_proxy", *arguments, *plaintext) as (_, ready):
                yield {**addresses, "plaintext_proxy": json.loads(ready)["address"]}


async def results() -> list[Result]:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        addresses = await enter(suite_and_plaintext_proxy())
        proxy = addresses["plaintext_proxy"]

        async def beside(program: str, operation: str) -> Load:
            _, port = await enter(started("-m", f"bench.servers.{program}"))
            return await enter(load(f"127.0.0.1:{port}", operation))

        echo = await beside("echo_transport", "echo")
        plain = await beside("echo", "echo")
        idle = await beside("ready", "receive")
        sent = _sent(*await medians(await enter(load(proxy, "send")), echo, plain))
        await fill(addresses["broker"])
        receive = await enter(load(proxy, "receive"))
        return [sent, *_received(*await medians(receive, echo, plain, idle))]


def _sent(rate: float, echo: float, plain: float) -> Result:
    how = f"1 KiB, {IN_FLIGHT} in flight, flush synchronous"
    return _result("proxy_unary_send_1k", rate, echo, SEND_TARGET, _beside(how, rate, plain))


def _received(rate: float, echo: float, plain: float, idle: float) -> list[Result]:
    how = f"{RECEIVE_BATCH} x 1 KiB, {IN_FLIGHT} in flight"
    note = _beside(f"{how}, durable acks", rate, plain)
    ceiling = f"{how}, answers made beforehand, nothing behind them"
    return [
        _result("proxy_receive_ack_1k", rate, echo, RECEIVE_TARGET, note),
        _result("proxy_receive_ack_ceiling", idle, echo, None, _beside(ceiling, idle, plain)),
    ]


def _beside(how: str, rate: float, plain: float) -> str:
    return f"{how}; {rate / plain:.2f} x a grpc.aio server's echo ({plain:,.0f})"


def _result(name: str, rate: float, baseline: float, target: float | None, note: str) -> Result:
    return Result(name, "messages/s", rate, baseline, rate / baseline, target, note)


async def fill(broker: str) -> None:
    """The topic is there: sends made it."""
    async with grpc.aio.insecure_channel(broker, options=OPTIONS) as channel:
        stub, unique = Stub(message_pb2, channel), itertools.count()
        for turn in range(STORED // BATCH):
            await stub.Send(batch_request(turn % QUEUES, unique))


if __name__ == "__main__":
    print(asyncio.run(results()), file=sys.stderr)
