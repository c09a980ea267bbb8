"""Consuming in order with real processes: through kills of members and broker, and through a
hundred rebalances, no two listeners of a queue run at once, none gets a message before its turn.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, ItemsView
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from aerobee.broker.v1 import offset_pb2

from aerobee_client import (
    AsyncAdminClient,
    AsyncProducer,
    AsyncPushConsumer,
    ConsumeFromWhere,
    Message,
    ReceivedMessage,
)
from aerobee_client.cluster.transport import GrpcTransport
from aerobee_wire import rpcs
from aerobee_wire.status import Code
from support.client import orderly_member
from support.client.orderly_member import calls, gaps, overlaps
from support.clock.polling import until
from support.codes import raises_code
from support.processes.service import ServiceProcess, namesrv_and_broker

TOPIC, QUEUES = "flights", 8
FIRST = ConsumeFromWhere.FIRST_OFFSET
PATIENT_S = 60.0


class Load:
    """Messages that go into the queues in turn until it is stopped. `stored`: by queue id."""

    def __init__(self, producer: AsyncProducer, pause_s: float) -> None:
        self._producer = producer
        self._pause_s = pause_s
        self._task = asyncio.create_task(self._send())
        self._stopping = False
        self.stored: defaultdict[int, int] = defaultdict(int)

    async def _send(self) -> None:
        while not self._stopping:
            results = await self._producer.send_batch([Message(TOPIC, b"x")] * 32)
            for result in results:
                found = self.stored[result.queue.queue_id]
                self.stored[result.queue.queue_id] = max(found, result.queue_offset + 1)
            await asyncio.sleep(self._pause_s)

    async def stop(self) -> None:
        self._stopping = True
        await self._task


@asynccontextmanager
async def loaded(namesrv: str, pause_s: float = 0.02) -> AsyncIterator[Load]:
    async with AsyncAdminClient(namesrv) as admin:
        await admin.create_topic(TOPIC, queues=QUEUES)
    patient = timedelta(seconds=PATIENT_S)  # a broker takes its time to start on a busy machine
    async with AsyncProducer(namesrv=namesrv, send_timeout=patient) as producer:
        load = Load(producer, pause_s)
        try:
            yield load
        finally:
            await load.stop()


async def test_a_hundred_rebalances_under_load(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    record = Record()

    def listener(member: int) -> object:
        async def listen(message: ReceivedMessage) -> None:
            where = f"{message.queue_id} {message.queue_offset}"
            record.add(f"begin {where} {time.monotonic()} {member}")
            await asyncio.sleep(rng.choice([0, 0, 0.001, 0.02]))
            record.add(f"end {where} {time.monotonic()} {member}")

        return listen

    with namesrv_and_broker(tmp_path) as (namesrv, _):
        members: list[AsyncPushConsumer] = []
        async with loaded(namesrv.address) as load, AsyncExitStack() as stack:
            for number in range(100):
                if len(members) > 1 and (len(members) > 3 or rng.random() < 0.5):
                    await members.pop(rng.randrange(len(members))).close()
                else:
                    member = AsyncPushConsumer(
                        "g",
                        listener(number),  # type: ignore[arg-type]
                        namesrv=namesrv.address,
                        orderly=True,
                        consume_from_where=FIRST,
                    )
                    member.subscribe(TOPIC)
                    members.append(await stack.enter_async_context(member))
                await asyncio.sleep(rng.choice([0, 0.05, 0.2]))
            await load.stop()
            await until(lambda: record.consumed >= load.stored.items(), timeout_s=PATIENT_S)
    by_queue = calls(record.lines)
    assert [pair for found in by_queue.values() for pair in overlaps(found, {})] == []
    assert [call for found in by_queue.values() for call in gaps(found)] == []


class Record:
    """Lines of listeners, and what they say so far: a poll reads only those that are new."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._latest: dict[tuple[str, str], float] = {}  # queue, member → when a call began
        self._consumed: defaultdict[int, int] = defaultdict(int)

    def add(self, line: str) -> None:
        self.lines.append(line)
        event, queue, offset, at, member = line.split()
        if event == "begin":
            self._latest[queue, member] = float(at)
        else:
            self._consumed[int(queue)] = max(self._consumed[int(queue)], int(offset) + 1)

    @property
    def consumed(self) -> ItemsView[int, int]:
        """Queue id and the number of its first messages that are consumed."""
        return self._consumed.items()

    def begun(self, since: float, process: int | None = None) -> set[str]:
        """The queues of which a call began, in that process or any, after that time."""
        return {
            queue
            for (queue, member), at in self._latest.items()
            if at > since and process in (None, int(member))
        }


class Members:
    """Member processes over one record."""

    def __init__(self, namesrv: str, record: Path) -> None:
        self._namesrv = namesrv
        self._path = record
        self._read = 0  # bytes
        self._record = Record()
        record.touch()
        self.running: list[subprocess.Popen[bytes]] = []
        self.killed: dict[str, float] = {}  # process → when

    async def join(self) -> None:
        script = orderly_member.__file__
        arguments = [self._namesrv, "g", TOPIC, str(self._path)]
        process = self._launch([sys.executable, script, *arguments])
        self.running.append(process)
        await until(Path(f"{self._path}.{process.pid}").exists, timeout_s=PATIENT_S)

    @staticmethod
    def _launch(command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command)

    def kill(self, rng: random.Random) -> None:
        process = self.running.pop(rng.randrange(len(self.running)))
        process.kill()
        process.wait()
        self.killed[str(process.pid)] = time.monotonic()

    def record(self) -> Record:
        """Of whole lines: one that is just being written may be seen in part."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            found = file.read()
        whole = found[: found.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode().splitlines():
            self._record.add(line)
        return self._record

    def stop(self) -> None:
        for process in self.running:
            process.terminate()
        for process in self.running:
            process.wait()


async def test_members_and_their_broker_are_killed(tmp_path: Path) -> None:
    """What overlaps across the death of the broker, whose locks went with it, is told apart."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    deaths: list[tuple[float, float]] = []  # of the broker: killed, ready again
    with namesrv_and_broker(tmp_path) as (namesrv, broker):
        members = Members(namesrv.address, tmp_path / "record")
        try:
            async with loaded(namesrv.address) as load:
                for _ in range(2):
                    await members.join()
                for turn in range(6):
                    await members.join()
                    await progress(members)
                    members.kill(rng)
                    await progress(members)
                    if turn % 3 == 1:
                        deaths.append(await restart(broker))
                await load.stop()
                await until(
                    lambda: members.record().consumed >= load.stored.items(), timeout_s=PATIENT_S
                )
        finally:
            members.stop()
    by_queue = calls(members.record().lines)
    assert [call for found in by_queue.values() for call in gaps(found)] == []
    several = [pair for found in by_queue.values() for pair in overlaps(found, members.killed)]
    assert [pair for pair in several if not across(pair[0].began, pair[1].began, deaths)] == []


async def progress(members: Members) -> None:
    """Returns when every queue has been consumed from since now."""
    since = time.monotonic()
    await until(lambda: len(members.record().begun(since)) == QUEUES, timeout_s=PATIENT_S)


@pytest.mark.slow
async def test_a_member_that_was_frozen_begins_nothing_that_is_not_its_own(tmp_path: Path) -> None:
    """Its connection counts as dead after half a minute. What it had begun before overlaps with
    what the other member does meanwhile, and nothing else; its commit is refused."""
    with namesrv_and_broker(tmp_path) as (namesrv, broker):
        members = Members(namesrv.address, tmp_path / "record")
        try:
            # Slowly: half a minute's messages wait in the queues of the frozen one.
            async with (
                loaded(namesrv.address, pause_s=0.2) as load,
                AsyncAdminClient(namesrv.address) as admin,
            ):
                for _ in range(2):
                    await members.join()
                await progress(members)
                # The first in the order of client ids also has the retry topic's queue.
                frozen, other = sorted(members.running, key=lambda member: str(member.pid))
                client_id, held = await until(
                    lambda: half_of_the_locks(admin, frozen.pid), timeout_s=PATIENT_S
                )
                frozen.send_signal(signal.SIGSTOP)
                await until(lambda: is_stopped(frozen.pid))  # not when the signal is sent
                froze = time.monotonic()
                await until(
                    lambda: len(members.record().begun(froze, other.pid)) == QUEUES, timeout_s=120
                )
                for queue in held:
                    with raises_code(Code.QUEUE_LOCK_NOT_HELD):
                        await commit(broker.address, client_id, queue)
                thawed = time.monotonic()
                frozen.send_signal(signal.SIGCONT)
                await until(lambda: members.record().begun(thawed, frozen.pid), timeout_s=60)
                await progress(members)
                await load.stop()
                await until(
                    lambda: members.record().consumed >= load.stored.items(), timeout_s=PATIENT_S
                )
        finally:
            frozen.send_signal(signal.SIGCONT)
            members.stop()
    by_queue = calls(members.record().lines)
    assert [call for found in by_queue.values() for call in gaps(found)] == []
    several = [pair for found in by_queue.values() for pair in overlaps(found, {})]
    for before, _ in several:
        assert before.member == str(frozen.pid) and before.began <= froze
        assert before.ended is not None and before.ended >= thawed
    for found in by_queue.values():
        again = [call for call in found if call.member == str(frozen.pid) and call.began > thawed]
        if again:
            # The other one began behind the last commit, so perhaps far in front of what this one
            # had consumed before it was frozen. Where that is further, this one goes on behind it
            # if the lock was free when it asked, and behind the commit if the other one had it.
            meanwhile = [call.offset for call in found if froze < call.began < again[0].began]
            assert again[0].offset > max(meanwhile), "behind what the other one did meanwhile"


def is_stopped(process: int) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"


async def half_of_the_locks(admin: AsyncAdminClient, process: int) -> tuple[str, tuple[str, ...]]:
    """Client id and locks of the member in that process, once it holds its share."""
    clients = await admin.list_clients("g")
    (mine,) = (each for each in clients if f"@{process}#" in each.client_id)
    held = mine.consumers["g"].locks
    assert len(held) == QUEUES // 2 + 1, "of its topic, and of the retry topic"
    return mine.client_id, held


async def commit(broker: str, client_id: str, queue: str) -> None:
    """What a member asks that commits the first offset of "topic/broker/queue id"."""
    topic, _, queue_id = queue.split("/")
    request = offset_pb2.UpdateConsumerOffsetsRequest(
        consumer_group="g", client_id=client_id, locked=True
    )
    request.offsets.add(topic=topic, queue_id=int(queue_id), queue_offset=0)
    transport = GrpcTransport()
    try:
        await transport.call(broker, rpcs.UPDATE_CONSUMER_OFFSETS, request, timeout_s=5)
    finally:
        await transport.close()


async def restart(broker: ServiceProcess) -> tuple[float, float]:
    began = time.monotonic()
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.start)
    return began, time.monotonic()


def across(began: float, next_began: float, deaths: list[tuple[float, float]]) -> bool:
    return any(began <= killed <= next_began for killed, _ in deaths)


@pytest.mark.parametrize("orderly_first", [True, False])
async def test_a_concurrent_member_gets_nothing_of_a_locked_queue(
    tmp_path: Path, orderly_first: bool
) -> None:
    seen: dict[bool, list[int]] = {True: [], False: []}
    with namesrv_and_broker(tmp_path) as (namesrv, _):
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(AsyncProducer(namesrv=namesrv.address))
            admin = await stack.enter_async_context(AsyncAdminClient(namesrv.address))
            await admin.create_topic(TOPIC, queues=2)
            for orderly in (orderly_first, not orderly_first):
                member = AsyncPushConsumer(
                    "g",
                    partial(note, seen[orderly]),
                    namesrv=namesrv.address,
                    orderly=orderly,
                    consume_from_where=FIRST,
                )
                member.subscribe(TOPIC)
                await stack.enter_async_context(member)
            await producer.send_batch([Message(TOPIC, b"x")] * 20)
            await until(lambda: len(seen[True]) + len(seen[False]) >= 20)
    assert not set(seen[True]) & set(seen[False])


def note(seen: list[int], message: ReceivedMessage) -> None:
    seen.append(message.queue_id)
