"""One send after the other: the broker's processor time and the latency of each, with synchronous
flush.

The baselines are an echo of the same bytes by a server on the broker's transport, and two floors: a
server on this transport that only writes and syncs the bytes, in a call of its own and in a message
of a stream. The echo is also called by the client's HTTP/2 and by grpc.aio in turn. Real processes,
which are called in turn. Idle work of the broker is part of its time.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from aerobee_client import AsyncProducer, Message
from aerobee_http2.channel import Channel
from bench.idle import usage
from bench.measure import ROUNDS, Result
from bench.servers import durable_echo
from bench.servers.echo import METHOD, OPTIONS
from bench.startup import started, up
from support.processes.command import children, command_line

BODY = bytes(range(256)) * 4  # 1 KiB
CALLS = 400  # of a round
TIMEOUT_S = 3.0


class Lone:
    """Calls of one server, one after the other."""

    def __init__(self, pid: int, call: Callable[[], Awaitable[object]]) -> None:
        self._pid = pid
        self._call = call
        self.cpu_us: list[float] = []  # of the server for one call, of each round
        self.client_us: list[float] = []  # of this process
        self.median_ms: list[float] = []

    async def round(self) -> None:
        before, own, took = self._cpu_s(), time.process_time(), []
        for _ in range(CALLS):
            began = time.perf_counter()
            await self._call()
            took.append(time.perf_counter() - began)
        self.client_us.append((time.process_time() - own) / CALLS * 1e6)
        self.cpu_us.append((self._cpu_s() - before) / CALLS * 1e6)
        self.median_ms.append(statistics.median(took) * 1_000)

    def _cpu_s(self) -> float:
        return sum(thread.cpu_s for thread in usage([self._pid]).values())


def over_a_stream(channel: grpc.aio.Channel) -> Callable[[], Awaitable[object]]:
    """Return a function that sends one message on a stream and waits for its answer."""
    open_stream: Any = channel.stream_stream(
        durable_echo.STREAM, request_serializer=None, response_deserializer=None
    )
    stream = open_stream()

    async def call() -> object:
        await stream.write(BODY)
        return await stream.read()

    return call


async def results() -> list[Result]:
    with tempfile.TemporaryDirectory() as data:
        async with (
            started("-m", "bench.servers.echo_transport") as (echo, port),
            started("-m", "bench.servers.durable_echo") as (floor, floor_port),
            started("-m", "aerobee_cli", *up(data)) as (suite, line),
            grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel,
            grpc.aio.insecure_channel(f"127.0.0.1:{floor_port}", options=OPTIONS) as durable,
        ):
            namesrv = dict(item.split("=") for item in line.split()[1:])["namesrv"]
            (broker,) = (
                child for child in children(suite.pid) if "aerobee_broker" in command_line(child)
            )
            say = channel.unary_unary(METHOD, request_serializer=None, response_deserializer=None)
            own, own_durable = Channel(f"127.0.0.1:{port}"), Channel(f"127.0.0.1:{floor_port}")
            async with AsyncProducer(namesrv=namesrv) as producer:
                sends = Lone(broker, lambda: producer.send(Message("lone", BODY)))
                echoes = Lone(echo.pid, lambda: say(BODY, timeout=TIMEOUT_S))
                own_echoes = Lone(echo.pid, lambda: own.unary(METHOD, BODY, TIMEOUT_S))
                unary = Lone(
                    floor.pid, lambda: own_durable.unary(durable_echo.UNARY, BODY, TIMEOUT_S)
                )
                streamed = Lone(floor.pid, over_a_stream(durable))
                every = (sends, echoes, unary, streamed, own_echoes)
                for number in range(ROUNDS + 1):
                    if number == 1:  # the first round warmed up
                        for each in every:
                            each.cpu_us.clear()
                            each.client_us.clear()
                            each.median_ms.clear()
                    for each in every:
                        await each.round()
            await own.close(None)
            await own_durable.close(None)
    cpu, echo_cpu, _, floor_cpu, _ = (statistics.median(each.cpu_us) for each in every)
    latency, echo_latency, unary_latency, stream_latency, own_latency = (
        statistics.median(each.median_ms) for each in every
    )
    own_us, grpc_us = (statistics.median(each.client_us) for each in (own_echoes, echoes))
    note = "one send after the other, flush synchronous; baseline:"
    echoed = f"{note} an echo of the same bytes"
    written = f"{note} only a write and fdatasync of the same bytes"
    return [
        Result(
            "lone_send_cpu", "us", cpu, echo_cpu, cpu / echo_cpu, None, f"of the broker, {echoed}"
        ),
        Result("lone_send_p50", "ms", latency, echo_latency, latency / echo_latency, None, echoed),
        Result(
            "lone_send_unary_floor", "ms", latency, unary_latency, latency / unary_latency, None,
            f"{written}, in a call of its own by the client's HTTP/2",
        ),
        Result(
            "lone_send_stream_floor", "ms", latency, stream_latency, latency / stream_latency, None,
            f"{written}, in a message of a stream",
        ),
        Result(
            "lone_send_floor_cpu", "us", cpu, floor_cpu, cpu / floor_cpu, None,
            f"of the broker, {written}, in a message of a stream",
        ),
        Result(
            "lone_call_p50", "ms", own_latency, echo_latency, own_latency / echo_latency, None,
            "an echo of 1 KiB, one after the other, by the client's HTTP/2; baseline: by grpc.aio",
        ),
        Result(
            "lone_call_client_cpu", "us", own_us, grpc_us, own_us / grpc_us, None,
            "of the client, for the same echoes; baseline: grpc.aio",
        ),
    ]  # fmt: skip
