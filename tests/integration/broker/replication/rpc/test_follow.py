"""A slave follows its master over real sockets, threads and disks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from aerobee.broker.v1 import replication_pb2 as pb

from aerobee_broker.cluster.registration import unreachable
from aerobee_broker.commit.group_commit import GroupCommit
from aerobee_broker.commit.worker_thread import WorkerThread
from aerobee_broker.disk import RealDisk
from aerobee_broker.errors import StreamBroken
from aerobee_broker.replication.identity import IdentityFile, Replica
from aerobee_broker.replication.in_sync.in_sync_set import InSyncRules, InSyncSet, Members
from aerobee_broker.replication.log.epochs import EpochFile
from aerobee_broker.replication.log.handshake import (
    BEFORE_FEATURES,
    Action,
    Agreement,
    LogDescription,
)
from aerobee_broker.replication.log.receiver import ReplicationReceiver
from aerobee_broker.replication.log.sender import ReplicationSender
from aerobee_broker.replication.log.snapshot import Snapshot
from aerobee_broker.replication.log.stream import Hello, LogChunk, Report, StreamTiming, Welcome
from aerobee_broker.replication.rpc.stream import (
    MasterCall,
    ReplicationRpcs,
    decoded_response,
    encoded_response,
    hello_of,
)
from aerobee_broker.store.format import Build
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewMessage
from aerobee_chassis.clock import SystemClock
from aerobee_chassis.rpc.caller import Caller
from aerobee_chassis.rpc.in_flight import failure_of
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import bind
from aerobee_wire.rpcs import FOLLOW
from aerobee_wire.status import Code, MqError
from support.clock.polling import until
from support.codes import raises_code
from support.disk.replicated import REPLICATED, open_replica
from support.disk.stores import visible

CLOCK = SystemClock()
SYNC_2 = InSyncRules(synchronous=True, in_sync_replicas=2)
SERVICE = pb.DESCRIPTOR.services_by_name["ReplicationService"]


class Parts(NamedTuple):
    """Of a broker that replicates."""

    store: MessageStore
    epochs: EpochFile
    replica: Replica
    flusher: WorkerThread

    def describe(self, name: str = "b") -> LogDescription:
        return LogDescription(
            cluster="c",
            broker_name=name,
            replica=self.replica,
            history=self.epochs.history,
            epoch=self.epochs.history.highest,
            lowest=self.store.min_physical_offset,
            end=self.store.written_offset,
            confirmed=self.store.confirmed_offset,
            file_size=REPLICATED.commit_log_file_size,
            settings={"messageDelayLevel": "1s 5s"},
        )


@asynccontextmanager
async def parts(path: Path, number: int) -> AsyncIterator[Parts]:
    disk = RealDisk()
    store = open_replica(disk, REPLICATED, CLOCK, path=path)
    epochs = EpochFile(disk, path / "config" / "epochs.json")
    epochs.load()
    identity = IdentityFile(disk, path / "config" / "brokerIdentity.json", random.Random())
    flusher = WorkerThread(f"flusher {number}")
    try:
        yield Parts(store, epochs, Replica(number, identity.load()), flusher)
    finally:
        flusher.close()
        store.abandon()


async def no_snapshot(epoch: int, log_begin: int) -> Snapshot:
    raise AssertionError(f"nobody cuts or copies in epoch {epoch}")


class InMemory:
    """A coordinator that always answers."""

    async def write(self, members: Members, confirmed: int) -> Members | None:
        return members

    async def read(self) -> Members | None:
        return None


class CopiesAtOnce:
    is_due = False

    def require(self, features: frozenset[str]) -> None:
        assert not features

    async def prepare(self, agreement: Agreement, welcome: Welcome) -> None:
        assert agreement.action is Action.COPY and agreement.begin == 0


class Master(NamedTuple):
    parts: Parts
    leader: ReplicationSender
    commit: GroupCommit
    address: str


@asynccontextmanager
async def master(path: Path) -> AsyncIterator[Master]:
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(parts(path, 0))
        end = own.store.end_offset
        own.epochs.save(own.epochs.history.begin(1, own.replica.store_id, end))
        own.store.flush.open_to_appends()
        leader = ReplicationSender(
            own.store,
            own.describe,
            InSyncSet(own.replica, end, SYNC_2),
            InMemory(),
            timing=StreamTiming(batch_bytes=4_000, heartbeat_ms=100),
            reader=own.flusher,
            clock=CLOCK,
            on_outdated=lambda _: None,
        )
        commit = GroupCommit(own.store, own.flusher, lambda _: None, 20_000, replicas=leader)
        leader.on_progress(commit.advance)
        keeping = asyncio.create_task(leader.run())
        stack.callback(keeping.cancel)
        service = bind(SERVICE, ReplicationRpcs(leader.serve, no_snapshot))
        server = Server([service], host="127.0.0.1", port=0, failure_of=failure_of, grace_s=0)
        await server.start()
        stack.push_async_callback(server.stop)
        yield Master(own, leader, commit, server.address)


@asynccontextmanager
async def following(slave: Parts, address: str) -> AsyncIterator[asyncio.Task[None]]:
    """The task fails with what ends the stream."""
    caller = Caller(unreachable(Code.BROKER_UNREACHABLE, "master"))
    receiver = ReplicationReceiver(
        slave.store,
        lambda: Hello(slave.describe()),
        slave.epochs,
        CopiesAtOnce(),
        timing=StreamTiming(heartbeat_ms=100),
        flusher=slave.flusher,
        clock=CLOCK,
        on_arrivals=lambda _: None,
    )

    async def follow() -> None:
        async with caller.exchange(address, FOLLOW) as conversation:
            link = MasterCall(conversation)
            hello = await receiver.hello()
            await link.open(hello)
            await receiver.follow(link, hello)

    task = asyncio.create_task(follow())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, MqError):
            await task
        await caller.close()


async def test_sends_are_acknowledged_once_a_slave_has_them_on_its_disk(tmp_path: Path) -> None:
    async with (
        master(tmp_path / "master") as leading,
        parts(tmp_path / "slave", 1) as slave,
        following(slave, leading.address) as task,
    ):
        await until(lambda: leading.leader.in_sync.suffices, "the slave is in sync")
        store = leading.parts.store

        async def send(number: int) -> None:
            store.append([NewMessage("orders", number % 2, b"%d" % number * 30)])
            end = store.end_offset
            await leading.commit.sent(end)
            assert slave.store.flushed_offset >= end

        await asyncio.gather(*(send(number) for number in range(400)))
        await until(lambda: visible(slave.store) == visible(store), "the slave shows all")
        assert sum(len(messages) for messages in visible(store).values()) == 400
        assert slave.epochs.history.entries == leading.parts.epochs.history.entries
        assert not task.done()


async def test_a_slave_with_other_options_is_refused_by_name(tmp_path: Path) -> None:
    async with (
        master(tmp_path / "master") as leading,
        parts(tmp_path / "slave", 1) as slave,
    ):
        caller = Caller(unreachable(Code.BROKER_UNREACHABLE, "master"))
        async with caller.exchange(leading.address, FOLLOW) as conversation:
            link = MasterCall(conversation)
            await link.open(Hello(replace(slave.describe(), settings={})))
            with raises_code(Code.ILLEGAL_OPERATION) as raised:
                await link.receive()
            assert raised.value.about == "messageDelayLevel"
        await caller.close()


async def test_a_stream_that_begins_with_a_report_is_ended(tmp_path: Path) -> None:
    async with master(tmp_path / "master") as leading:
        caller = Caller(unreachable(Code.BROKER_UNREACHABLE, "master"))
        async with caller.exchange(leading.address, FOLLOW) as conversation:
            link = MasterCall(conversation)
            await link.send(Report(1, 0, 0))
            with raises_code(Code.SYSTEM_ERROR):
                await link.receive()
        await caller.close()


def test_messages_say_what_the_values_do() -> None:
    described = LogDescription(
        cluster="c",
        broker_name="b",
        replica=Replica(1, "s"),
        history=EpochFile(RealDisk(), Path("/nowhere")).history.begin(3, "s", 10),
        epoch=3,
        lowest=5,
        end=100,
        confirmed=90,
        file_size=4_096,
        settings={"a": "b"},
        build=Build("1.2.3", {"x": "1.0", "y": "1.2"}),
        required=frozenset({"y"}),
    )
    welcome = Welcome(described, 7)
    chunk = LogChunk(3, 10, b"data", 1, 2, 3, 4)
    early = Welcome(replace(described, build=BEFORE_FEATURES, required=frozenset()), 7)
    for message in (
        welcome,
        early,
        chunk,
        replace(chunk, data=b""),
        replace(chunk, data=bytes(70_000)),
    ):
        assert decoded_response(encoded_response(message)) == message
    with pytest.raises(StreamBroken):
        decoded_response(b"")
    with pytest.raises(StreamBroken):
        hello_of(pb.FollowRequest(report=pb.FollowReport()))
    broken = pb.FollowHello(slave=pb.LogReplica(epochs=[pb.LogEpoch(epoch=2)]))
    with pytest.raises(StreamBroken):
        hello_of(pb.FollowRequest(hello=broken))
