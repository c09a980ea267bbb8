"""A broker group with etcd, as processes: whoever is elected leads, and another when it is gone."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from aerobee.broker.v1 import admin_pb2, offset_pb2

from aerobee_broker.disk import RealDisk
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_wire.status import Code, MqError
from support.broker.calls import BrokerCaller
from support.broker.tables import rows_in
from support.clock.manual_clock import ManualClock
from support.clock.polling import until
from support.codes import raises_code
from support.etcd.etcd_process import EtcdMember, etcd_members
from support.processes.broker_group import BrokerGroup, Member, broker_group, send_until_taken

TOPIC = "orders"
SYNC = (
    "brokerRole=SYNC_MASTER",
    "totalReplicas=3",
    "etcdLeaseTtl=2",
    "flushConsumerOffsetInterval=300",
)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMember]:
    with etcd_members(tmp_path_factory.mktemp("etcd")) as [only]:
        yield only


@pytest.fixture
def group(tmp_path: Path, etcd: EtcdMember) -> Iterator[BrokerGroup]:
    """Three members, started at once."""
    with broker_group(tmp_path, first=1) as group:
        prefix = f"etcdKeyPrefix=/{tmp_path.name}"
        endpoints = f"etcdEndpoints={etcd.endpoint}"
        group.add_all(3, *SYNC, endpoints, prefix)
        yield group


def others(group: BrokerGroup, *but: Member) -> list[Member]:
    return [member for member in group.members if member not in but]


async def bodies(master: Member) -> list[bytes]:
    async with BrokerCaller(master.address) as caller:
        return [message.body for message in await caller.read(TOPIC)]


async def test_a_master_that_stops_in_order_hands_over(group: BrokerGroup) -> None:
    master = await asyncio.to_thread(group.until_led)
    assert not [each for each in group.members if each.events_now("not_electable")], "a new group"
    await asyncio.to_thread(group.until_in_sync, master, *others(group, master))
    async with BrokerCaller(master.address) as caller:
        await caller.send(TOPIC, b"before")
    assert await asyncio.to_thread(master.process.stop) == 0

    follower_up = await asyncio.to_thread(group.until_led, master)
    async with BrokerCaller(follower_up.address) as caller:
        await send_until_taken(caller, TOPIC, b"after")
    assert await bodies(follower_up) == [b"before", b"after"]


async def test_topics_groups_and_offsets_outlive_the_master(group: BrokerGroup) -> None:
    """Also that a topic was deleted, and made again: its queues count from 0."""
    master = await asyncio.to_thread(group.until_led)
    await asyncio.to_thread(group.until_in_sync, master, *others(group, master))
    async with BrokerCaller(master.address) as caller:
        await caller.put_topic(TOPIC, queues=7)
        await caller.put_group("readers", attempts=3)
        for body in (b"a", b"b", b"c"):
            await caller.send(TOPIC, body, queue_id=5)
        commit = offset_pb2.UpdateConsumerOffsetsRequest(
            consumer_group="readers",
            offsets=[offset_pb2.QueueOffset(topic=TOPIC, queue_id=5, queue_offset=2)],
        )
        await caller.call(caller.offsets.UpdateConsumerOffsets, commit)
        await caller.put_topic("again", queues=1)
        await caller.send("again", b"deleted")
        await caller.call(caller.admin.DeleteTopic, admin_pb2.DeleteTopicRequest(topic="again"))
        await caller.put_topic("again", queues=2)
        await caller.send("again", b"kept")
        # Of the whole cluster's changes this comes last: with it, the offsets are in the log.
        await until(lambda: logged_offsets(master) == [2], "the offsets are journalled")
    await asyncio.to_thread(group.until_alike, master, *others(group, master))
    await asyncio.to_thread(master.process.kill)

    new = await asyncio.to_thread(group.until_led, master)
    async with BrokerCaller(new.address) as caller:
        topic = await caller.call(caller.admin.GetTopic, admin_pb2.GetTopicRequest(topic=TOPIC))
        assert topic.topic.write_queue_count == 7
        asked = offset_pb2.QueryConsumerOffsetsRequest(consumer_group="readers", topic=TOPIC)
        found = await caller.call(caller.offsets.QueryConsumerOffsets, asked)
        assert [(each.queue_id, each.queue_offset) for each in found.offsets] == [(5, 2)]
        group_of = admin_pb2.GetGroupRequest(consumer_group="readers")
        config = (await caller.call(caller.admin.GetGroup, group_of)).group
        assert config.retry_max_times == 2
        assert [message.body for message in await caller.read("again")] == [b"kept"]
    assert not new.process.events("topics_adopted")


def logged_offsets(member: Member) -> list[int]:
    """What the files of its consumer offsets have, which are written once the log has it."""
    path = member.store / "config" / "consumerOffset.json"
    rows = rows_in(ConsumerOffsets(ManualClock()), RealDisk(), path)
    offsets = rows.get(f"{TOPIC}@readers", {})
    return [int(offset) for offset in offsets.values()]


async def test_a_master_that_was_paused_acknowledges_nothing_after_another_was_elected(
    group: BrokerGroup,
) -> None:
    """It believes that it leads until it hears otherwise: its slaves do not follow any more."""
    old = await asyncio.to_thread(group.until_led)
    await asyncio.to_thread(group.until_in_sync, old, *others(group, old))
    async with BrokerCaller(old.address) as caller:
        await caller.send(TOPIC, b"before")
        old.process.send_signal(signal.SIGSTOP)
        late = asyncio.create_task(caller.send(TOPIC, b"late"))
        new = await asyncio.to_thread(group.until_led, old)
        async with BrokerCaller(new.address) as to_new:
            await send_until_taken(to_new, TOPIC, b"after")
        old.process.send_signal(signal.SIGCONT)
        with pytest.raises((MqError, grpc.aio.AioRpcError)):
            await late
    await until(lambda: old.role() == "slave", "the old master follows", timeout_s=60)
    await asyncio.to_thread(group.until_alike, new, *others(group, new))
    assert await bodies(new) == [b"before", b"after"]


async def test_a_master_that_hears_of_nobody_serves_no_reads_until_it_does(
    group: BrokerGroup, etcd: EtcdMember
) -> None:
    """Another may have been elected for all that it knows: its clients are to look elsewhere. With
    etcd away alone it goes on, as its replicas would not follow it after an election."""
    master = await asyncio.to_thread(group.until_led)
    slaves = others(group, master)
    await asyncio.to_thread(group.until_in_sync, master, *slaves)
    stop: list[Callable[[signal.Signals], None]]
    stop = [etcd.send_signal, slaves[0].process.send_signal]
    async with BrokerCaller(master.address) as caller:
        await caller.send(TOPIC, b"before")
        for send_signal in stop:
            send_signal(signal.SIGSTOP)
        try:

            async def is_refused() -> bool:
                try:
                    await caller.read(TOPIC)
                except MqError as error:
                    if error.code is not Code.SERVICE_NOT_AVAILABLE:
                        raise
                    return True
                return False

            await until(is_refused, "it serves no reads", timeout_s=60)

            async def is_unhealthy() -> bool:
                return not await caller.serves()

            await until(is_unhealthy, "its health says so")
        finally:
            for send_signal in stop:
                send_signal(signal.SIGCONT)

    async def is_read() -> bool:
        try:
            return await bodies(group.until_led()) == [b"before"]
        except MqError as error:
            if error.code is not Code.SERVICE_NOT_AVAILABLE:
                raise
            return False

    await until(is_read, "whoever leads then is read", timeout_s=60)


async def test_a_replica_with_an_empty_disk_is_not_elected(group: BrokerGroup) -> None:
    master = await asyncio.to_thread(group.until_led)
    one, two = others(group, master)
    await asyncio.to_thread(group.until_in_sync, master, one, two)
    async with BrokerCaller(master.address) as caller:
        await caller.send(TOPIC, b"before")
    for member in (master, one, two):  # so that none of them sees another go
        member.process.send_signal(signal.SIGSTOP)
    for member in (master, one, two):
        await asyncio.to_thread(member.process.kill)
    group.lose_disk(one)
    await asyncio.to_thread(one.start)
    await until(lambda: one.process.events("not_electable"), "it waits", timeout_s=60)
    await asyncio.to_thread(two.start)

    assert await asyncio.to_thread(group.until_led, master) is two
    await asyncio.to_thread(group.until_in_sync, two, one)
    assert await bodies(two) == [b"before"]
    async with BrokerCaller(one.address) as caller:
        with raises_code(Code.SERVICE_NOT_AVAILABLE):
            await caller.send(TOPIC, b"to a slave")
