"""One send after the other: the broker's processor time and the latency of each, with synchronous
flush, beside an echo of the same bytes by a server on the broker's transport.

Real processes; both are called in turn. Idle work of the broker is part of its time.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable

import grpc

from aerobee_client import AsyncProducer, Message
from bench.idle import usage
from bench.measure import ROUNDS, Result
from bench.servers.echo import METHOD, OPTIONS
from bench.startup import started, up
from support.processes.command import children, command_line

BODY = bytes(range(256)) * 4  # 1 KiB
CALLS = 400  # of a round


class Lone:
    """Calls of one server, one after the other."""

    def __init__(self, pid: int, call: Callable[[], Awaitable[object]]) -> None:
        self._pid = pid
        self._call = call
        self.cpu_us: list[float] = []  # of the server for one call, of each round
        self.median_ms: list[float] = []

    async def round(self) -> None:
        before, took = self._cpu_s(), []
        for _ in range(CALLS):
            began = time.perf_counter()
            await self._call()
            took.append(time.perf_counter() - began)
        self.cpu_us.append((self._cpu_s() - before) / CALLS * 1e6)
        self.median_ms.append(statistics.median(took) * 1_000)

    def _cpu_s(self) -> float:
        return sum(thread.cpu_s for thread in usage([self._pid]).values())


async def results() -> list[Result]:
    with tempfile.TemporaryDirectory() as data:
        async with (
            started("-m", "bench.servers.echo_transport") as (echo, port),
            started("-m", "aerobee_cli", *up(data)) as (suite, line),
            grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel,
        ):
            namesrv = dict(item.split("=") for item in line.split()[1:])["namesrv"]
            (broker,) = (
                child for child in children(suite.pid) if "aerobee_broker" in command_line(child)
            )
            say = channel.unary_unary(METHOD, request_serializer=None, response_deserializer=None)
            async with AsyncProducer(namesrv=namesrv) as producer:
                sends = Lone(broker, lambda: producer.send(Message("lone", BODY)))
                echoes = Lone(echo.pid, lambda: say(BODY))
                for number in range(ROUNDS + 1):
                    if number == 1:  # the first round warmed up
                        for each in (sends, echoes):
                            each.cpu_us.clear()
                            each.median_ms.clear()
                    await sends.round()
                    await echoes.round()
    cpu, echo_cpu = (statistics.median(each.cpu_us) for each in (sends, echoes))
    latency, echo_latency = (statistics.median(each.median_ms) for each in (sends, echoes))
    note = "one send after the other, flush synchronous; baseline: an echo of the same bytes"
    return [
        Result(
            "lone_send_cpu", "us", cpu, echo_cpu, cpu / echo_cpu, None, f"of the broker, {note}"
        ),
        Result("lone_send_p50", "ms", latency, echo_latency, latency / echo_latency, None, note),
    ]
