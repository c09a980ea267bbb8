"""How long a group of three brokers acknowledges nothing when its master is killed, frozen or
replaced: the longest time between two acknowledged sends, of producers that never stop.

The brokers and one etcd are processes of this machine. Frozen (SIGSTOP) is what the others see of a
machine that is gone: nothing is closed, nothing is answered.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, redirect_stdout
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

from aerobee_client import AsyncAdminClient, AsyncProducer, Message, MqError
from bench.measure import Result
from support.clock.polling import until
from support.etcd.etcd_process import etcd_members
from support.processes.broker_group import BROKER, BrokerGroup, Member
from support.processes.service import namesrv_process

TOPIC = "bench"
COPIES = 3
SENDERS = 4
BODY = bytes(range(256)) * 4  # 1 KiB
QUEUES = 4
ROUNDS = 11
SETTLE_S = 1.0  # of sends before and behind each failure
SEND_TIMEOUT = timedelta(seconds=30)


@dataclass(frozen=True)
class Failure:
    """`median_s`, `most_s`: that the gaps of all rounds may have. `unseen`: no send may fail."""

    name: str
    what: str
    median_s: float
    most_s: float
    strike: Callable[[AsyncAdminClient, Member], Awaitable[None]]
    mend: Callable[[Member], object]
    unseen: bool = False


class Traffic:
    """Producers that send one message after the other to the group."""

    def __init__(self) -> None:
        self.failed = 0
        self._acknowledged: list[float] = []
        self._stopped = False

    async def send(self, producer: AsyncProducer) -> None:
        """Until `stop`."""
        while not self._stopped:
            try:
                await producer.send(Message(TOPIC, BODY), timeout=SEND_TIMEOUT)
            except MqError:
                self.failed += 1
            else:
                self._acknowledged.append(time.monotonic())

    def stop(self) -> None:
        self._stopped = True

    async def longest_gap(self, strike: Callable[[], Awaitable[None]]) -> float:
        """Seconds between two acknowledged sends next to each other, from a while before `strike`
        until sends have gone on for a while."""
        await asyncio.sleep(SETTLE_S)
        struck = time.monotonic()
        await strike()
        await until(lambda: self._acknowledged[-1] > struck + SETTLE_S, "sends", timeout_s=60)
        await asyncio.sleep(SETTLE_S)
        times = [at for at in self._acknowledged if at >= struck - SETTLE_S]
        return max(after - before for before, after in itertools.pairwise(times))


async def kill(_: AsyncAdminClient, master: Member) -> None:
    await asyncio.to_thread(master.process.kill)


async def freeze(_: AsyncAdminClient, master: Member) -> None:
    master.process.send_signal(signal.SIGSTOP)


async def promote(admin: AsyncAdminClient, _: Member) -> None:
    await admin.promote_replica(BROKER)


KILL = Failure("failover_gap_kill_s", "kill -9", 1.5, 3.0, kill, lambda old: old.start())
FAILURES = (
    KILL,
    Failure(
        "failover_gap_frozen_s",
        "SIGSTOP",
        7.0,
        7.0,
        freeze,
        lambda old: old.process.send_signal(signal.SIGCONT),
    ),
    Failure("failover_gap_promote_s", "promote", 1.0, 1.0, promote, lambda _: None, unseen=True),
)


async def until_in_sync(admin: AsyncAdminClient, group: BrokerGroup) -> Member:
    """The master, once all replicas are in sync."""
    found = await until(
        lambda: _master_of_all(admin, group),
        "all replicas are in sync",
        timeout_s=120,
        retry_on=(MqError,),
    )
    assert found is not None
    return found


async def _master_of_all(admin: AsyncAdminClient, group: BrokerGroup) -> Member | None:
    found = [each for each in await admin.replicas(BROKER, silent=[]) if each.in_sync]
    leading = [each.replica_id for each in found if each.role == "master"]
    if len(found) < COPIES or len(leading) != 1:
        return None
    return next(member for member in group.members if member.number == leading[0])


@dataclass(frozen=True)
class Gaps:
    """Of the rounds of one failure, in seconds. `failed`: sends."""

    seconds: list[float]
    failed: int

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def most(self) -> float:
        return max(self.seconds)


async def gaps(failure: Failure, group: BrokerGroup, rounds: int = ROUNDS) -> Gaps:
    traffic, found, namesrv = Traffic(), [], group.namesrv
    async with AsyncAdminClient(namesrv) as admin, AsyncProducer("bench", namesrv=namesrv) as sends:
        senders = [asyncio.create_task(traffic.send(sends)) for _ in range(SENDERS)]
        try:
            for _ in range(rounds):
                master = await until_in_sync(admin, group)
                found.append(await traffic.longest_gap(partial(failure.strike, admin, master)))
                await asyncio.to_thread(failure.mend, master)
        finally:
            traffic.stop()
            await asyncio.gather(*senders)
    return Gaps(found, traffic.failed)


async def measured(failure: Failure, group: BrokerGroup) -> list[Result]:
    """One row."""
    found = await gaps(failure, group)
    median, most = found.median, found.most
    note = (
        f"{COPIES} copies, inSyncReplicas 2, {failure.what}, {ROUNDS} times; longest {most:.2f} s "
        f"(at most {failure.most_s:g}), {found.failed} sends failed; baseline: the target"
    )
    # The worse of both, and no gap counts when sends failed that must not.
    ratio = max(median / failure.median_s, most / failure.most_s)
    if failure.unseen and found.failed:
        ratio = float("inf")
    return [Result(failure.name, "s", median, failure.median_s, ratio, 1.0, note)]


@asynccontextmanager
async def elected_group(*settings: str) -> AsyncIterator[BrokerGroup]:
    """Whose brokers are in sync, with the topic."""
    with tempfile.TemporaryDirectory(prefix="aerobee-bench-") as folder, ExitStack() as silent:
        path = Path(folder)
        with ExitStack() as stack:
            stack.callback(silent.close)
            namesrv = stack.enter_context(namesrv_process(path / "namesrv")).address
            [etcd] = stack.enter_context(etcd_members(path))
            group = BrokerGroup(path, namesrv, stack, first=1)
            of_copies = (f"totalReplicas={COPIES}", "inSyncReplicas=2")
            await asyncio.to_thread(
                group.add_all,
                COPIES,
                *("brokerRole=SYNC_MASTER", f"etcdEndpoints={etcd.endpoint}"),
                *of_copies,
                *settings,
            )
            async with AsyncAdminClient(namesrv) as admin:
                await until_in_sync(admin, group)
                await admin.create_topic(TOPIC, queues=QUEUES)
            yield group
            # What services said is for tests that fail.
            silent.enter_context(redirect_stdout(io.StringIO()))


async def results() -> list[Result]:
    found: list[Result] = []
    async with elected_group() as group:
        for failure in FAILURES:
            found += await measured(failure, group)
    return found


if __name__ == "__main__":
    print(asyncio.run(results()), file=sys.stderr)
