"""The rows of `make profile`: a load each, on a name server, a broker and a proxy in processes of
their own, with synchronous flush.
"""

from __future__ import annotations

import asyncio
import io
import math
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from aerobee_client import AsyncAdminClient
from aerobee_wire.status import MqError
from bench.load import TOPIC
from bench.proxy import STORED, Load, fill
from bench.replication.clusters import LARGE_FILES
from bench.startup import started
from bench.throughput import QUEUES
from support.clock.polling import until
from support.processes.service import (
    ServiceProcess,
    broker_process,
    namesrv_process,
    proxy_process,
)


@dataclass(frozen=True)
class Row:
    """`operation`: of the Python client, or with `by_proxy` of an ordinary gRPC client.
    `reads_per_s`: more messages than the load takes in a second; they are stored before."""

    what: str
    operation: str
    in_flight: int
    by_proxy: bool = False
    reads_per_s: int = 0


ROWS: Mapping[str, Row] = {
    "lone_send": Row("one send after the other, 1 KiB", "send", 1),
    "send_64": Row("64 sends in flight, 1 KiB", "send", 64),
    "send_1024": Row("1,024 sends in flight, 1 KiB", "send", 1_024),
    "batches": Row("4 batches of 128 x 1 KiB in flight", "send_batches", 4),
    # A push consumer begins again when it has read everything.
    "push": Row("push consumer, batches of 128 x 1 KiB", "push", 1, reads_per_s=50_000),
    "receive_ack": Row(
        "simple consumer, 32 x 1 KiB and one acknowledgement, 64 in flight", "receive", 64,
        reads_per_s=45_000,
    ),
    "paced": Row("send to a push listener, 500 a second, 1 KiB", "paced", 500),
    "v2_send": Row("v2 SendMessage by the proxy, 1 KiB, 64 in flight", "send", 64, by_proxy=True),
    "v2_receive_ack": Row(
        "v2 ReceiveMessage (32 x 1 KiB) and AckMessage by the proxy, 64 in flight", "receive", 64,
        by_proxy=True, reads_per_s=45_000,
    ),
}  # fmt: skip


class Site:
    """The services that a row calls."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self.namesrv = stack.enter_context(namesrv_process(home / "namesrv"))
        self.broker = stack.enter_context(
            broker_process(home / "broker", f"--set={LARGE_FILES}", namesrv=self.namesrv.address)
        )
        self.proxy = stack.enter_context(
            proxy_process(self.namesrv.address, "--set=tlsServerMode=disabled")
        )

    def of(self, row: Row) -> Mapping[str, ServiceProcess]:
        """Return the services whose work is a part of a row."""
        return {"broker": self.broker} | ({"proxy": self.proxy} if row.by_proxy else {})


@contextmanager
def site(home: Path) -> Iterator[Site]:
    with ExitStack() as silent, ExitStack() as stack:
        yield Site(home, stack)
        silent.enter_context(redirect_stdout(io.StringIO()))  # their logs are for tests that fail


@asynccontextmanager
async def load(row: Row, services: Site, seconds: float) -> AsyncIterator[tuple[int, Load]]:
    """Store what the row reads in `seconds`; then yield the process of its load, and its id."""
    async with AsyncAdminClient(services.namesrv.address) as admin:
        await until(
            lambda: admin.broker_status("broker-a"), "the broker is registered", retry_on=(MqError,)
        )
        await admin.create_topic(TOPIC, queues=QUEUES)
    fills = math.ceil(row.reads_per_s * seconds / STORED)
    await asyncio.gather(*(fill(services.broker.address) for _ in range(fills)))
    if row.by_proxy:
        command = ("bench.load", services.proxy.address, row.operation)
    else:
        command = ("bench.profiles.client", services.namesrv.address, row.operation)
    async with started("-m", *command) as (process, _):
        yield process.pid, Load(process)
