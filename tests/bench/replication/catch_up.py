"""An empty replica that gets the log of a master: how fast, against a copy of the files; and what
senders notice of it.

One machine, one disk: the master reads what it wrote before, the replica writes it durably and
derives its queues and its index.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import partial
from pathlib import Path

import grpc
from aerobee.broker.v1 import message_pb2

from bench.measure import Operation, Result, rate
from bench.replication.clusters import LARGE_FILES, TWO_COPIES
from bench.replication.throughput import sends
from bench.servers.echo import OPTIONS
from bench.throughput import BODY, QUEUES, TOPIC
from support.clock.polling import until_sync
from support.processes.broker_group import BrokerGroup, Member
from support.processes.service import namesrv_process
from support.stubs import Stub

GIB = 1 << 30
SIZE = 4 * GIB
IN_FLIGHT = 4
SENDERS = 4
PAUSE_S = 0.01  # between two sends of a sender
QUIET_S = 15.0  # of sends before the replica comes
COPY_TIMEOUT_S = 180.0  # beside sends a copy has 64 MiB/s


class Log:
    """A master without an enemy, and what is to be copied of it."""

    def __init__(self, group: BrokerGroup, master: Member) -> None:
        self.group = group
        self.master = master
        self._path = master.store / "commitlog"

    async def end(self) -> int:
        """Bytes: its files have zeros behind them, and there is a file ahead."""
        return (await self.group.statuses())[self.master.number].end_offset

    def copy(self, target: Path, end: int) -> float:
        """Seconds that a durable copy of so many bytes takes, one file after the other."""
        target.mkdir()
        began = time.perf_counter()
        for path in sorted(path for path in self._path.iterdir() if path.name.isdigit()):
            at, size = 0, min(end - int(path.name), path.stat().st_size)
            with path.open("rb") as source, (target / path.name).open("wb") as copied:
                while at < size:
                    at += os.sendfile(copied.fileno(), source.fileno(), at, size - at)
                os.fsync(copied.fileno())
        took = time.perf_counter() - began
        shutil.rmtree(target)
        return took

    def replicate(self) -> float:
        """Seconds from the start of an empty replica's process until it is in sync."""
        began = time.perf_counter()
        self.until_copied(self.start_replica())
        return time.perf_counter() - began

    def start_replica(self) -> Member:
        """An empty one in place of the one before; it follows when this returns."""
        for slave in self.group.members[1:]:
            slave.process.kill()
            self.group.lose_disk(slave)
        before = len(self.master.events_now("slave_follows"))
        if len(self.group.members) > 1:
            [slave] = self.group.members[1:]
            slave.start()
        else:
            slave = self.group.add("brokerRole=SLAVE", LARGE_FILES, TWO_COPIES)
        until_sync(
            lambda: len(self.master.events_now("slave_follows")) > before,
            "the replica follows",
            timeout_s=60,
        )
        return slave

    def until_copied(self, slave: Member) -> None:
        self.group.until_in_sync(self.master, slave, timeout_s=COPY_TIMEOUT_S)


async def results() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="aerobee-bench-") as folder, quiet() as stack:
        path = Path(folder)
        namesrv = stack.enter_context(namesrv_process(path / "namesrv")).address
        group = BrokerGroup(path, namesrv, stack)
        role = ("brokerRole=ASYNC_MASTER", LARGE_FILES, TWO_COPIES)
        master = await asyncio.to_thread(group.add, *role)
        log = Log(group, master)
        async with grpc.aio.insecure_channel(master.address, options=OPTIONS) as channel:
            await fill(await sends(channel), log)
            size = await log.end()
            copied = [log.copy(path / "copy", size)]
            took = await asyncio.to_thread(log.replicate)
            copied.append(log.copy(path / "copy", size))
            return [
                idle(size, took, statistics.median(copied)),
                await loaded(channel, log, partial(log.copy, path / "copy", size)),
            ]


def idle(size: int, took: float, copied: float) -> Result:
    ours, base = size / 1e6 / took, size / 1e6 / copied
    note = f"{size / GIB:.1f} GiB of 1 KiB messages, idle master; baseline: cp and fsync; >= 150"
    return Result("catch_up", "MB/s", ours, base, ours / base, 0.25, note)


async def loaded(channel: grpc.aio.Channel, log: Log, copy: Callable[[], object]) -> Result:
    """The same beside senders of single messages; and what these notice of a disk that takes the
    same bytes from nobody but `cp`."""
    quiet = await latencies(channel, asyncio.sleep(QUIET_S))
    disk = await latencies(channel, asyncio.to_thread(copy))
    # Not beside the start of its process, which would be on another machine.
    slave = await asyncio.to_thread(log.start_replica)
    during = await latencies(channel, asyncio.to_thread(log.until_copied, slave))
    ours, base, copied = (statistics.quantiles(each, n=100)[98] for each in (during, quiet, disk))
    note = (
        f"{len(during):,} sends while a replica copies; baseline: before; "
        f"beside cp and fsync of the files {copied:.3g} ms"
    )
    return Result("catch_up_send_p99", "ms", ours, base, ours / base, 2.0, note)


async def latencies(
    channel: grpc.aio.Channel, other: Awaitable[object], pause_s: float = PAUSE_S
) -> list[float]:
    """Milliseconds of the sends that began while `other` was under way."""
    found: list[float] = []
    stub, unique = Stub(message_pb2, channel), itertools.count()

    async def sender(queue_id: int) -> None:
        while True:
            began = time.perf_counter()
            await stub.Send(single(queue_id, next(unique)))
            found.append((time.perf_counter() - began) * 1_000)
            await asyncio.sleep(pause_s)

    senders = [asyncio.create_task(sender(turn % QUEUES)) for turn in range(SENDERS)]
    try:
        await other
    finally:
        for each in senders:
            each.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
    return found


def single(queue_id: int, number: int) -> message_pb2.SendRequest:
    properties = b"UNIQ_KEY\x01%032X\x02" % number
    batch = message_pb2.MessageBatch(
        topic=TOPIC,
        queue_id=queue_id,
        body_sizes=[len(BODY)],
        bodies=BODY,
        properties_sizes=[len(properties)],
        properties=properties,
    )
    return message_pb2.SendRequest(producer_group="bench", batch=batch)


async def fill(send: Operation, log: Log) -> None:
    while await log.end() < SIZE:
        await rate(send, IN_FLIGHT, seconds=2)


@contextmanager
def quiet() -> Iterator[ExitStack]:
    """What is started on it says nothing when it ends: that is for tests that fail."""
    with ExitStack() as stack:
        yield stack
        with redirect_stdout(io.StringIO()):
            stack.close()


if __name__ == "__main__":
    print(asyncio.run(results()), file=sys.stderr)
