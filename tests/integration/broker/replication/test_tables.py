"""What a group knows besides its messages, on processes: topics, groups, offsets, deletions."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from aerobee.broker.v1 import admin_pb2, offset_pb2, pop_pb2

from aerobee_broker.disk import RealDisk
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metadata.subscription_groups import SubscriptionGroups
from aerobee_broker.metadata.table import JournalledTable
from aerobee_broker.metadata.topics import Topics
from aerobee_chassis.clock import Clock
from aerobee_wire.checked_json import decode
from aerobee_wire.record import iter_records
from aerobee_wire.status import MqError
from support.broker.calls import BrokerCaller
from support.broker.tables import rows_in
from support.clock.manual_clock import ManualClock
from support.clock.polling import until, until_sync
from support.processes.broker_group import BrokerGroup, Member, broker_group, send_until_taken

SOON = "flushConsumerOffsetInterval=200"
COPIES = "totalReplicas=2"
BOTH = (COPIES, "inSyncReplicas=2")  # each copy has what was acknowledged
MASTER, SLAVE = "brokerRole=SYNC_MASTER", "brokerRole=SLAVE"
ASYNC = "brokerRole=ASYNC_MASTER"
TABLES: dict[str, Callable[[Clock], JournalledTable]] = {
    "topics.json": Topics,
    "subscriptionGroup.json": SubscriptionGroups,
    "consumerOffset.json": ConsumerOffsets,
}


@pytest.fixture
def group(tmp_path: Path) -> Iterator[BrokerGroup]:
    with broker_group(tmp_path) as group:
        yield group


def tables(member: Member) -> list[dict[str, Any]]:
    """As its files have them now; empty where one is not there yet."""
    config = member.store / "config"
    return [
        rows_in(make(ManualClock()), RealDisk(), config / name) for name, make in TABLES.items()
    ]


def until_tables_alike(master: Member, *slaves: Member) -> None:
    until_sync(
        lambda: all(tables(slave) == tables(master) for slave in slaves),
        "the slaves have the master's tables",
        timeout_s=30,
    )


class Admin:
    def __init__(self, caller: BrokerCaller) -> None:
        self._caller = caller

    async def delete_topic(self, topic: str) -> None:
        request = admin_pb2.DeleteTopicRequest(topic=topic)
        await self._caller.call(self._caller.admin.DeleteTopic, request)

    async def delete_group(self, group: str) -> None:
        request = admin_pb2.DeleteGroupRequest(consumer_group=group, remove_offsets=True)
        await self._caller.call(self._caller.admin.DeleteGroup, request)

    async def reset(self, group: str, topic: str, offset: int) -> None:
        request = offset_pb2.ResetConsumerOffsetsRequest(
            consumer_group=group, topic=topic, queue_offset=offset
        )
        await self._caller.call(self._caller.offsets.ResetConsumerOffsets, request)

    async def commit(self, group: str, topic: str, offset: int) -> None:
        request = offset_pb2.UpdateConsumerOffsetsRequest(
            consumer_group=group,
            offsets=[offset_pb2.QueueOffset(topic=topic, queue_id=0, queue_offset=offset)],
        )
        await self._caller.call(self._caller.offsets.UpdateConsumerOffsets, request)


async def bodies(caller: BrokerCaller, topic: str) -> list[bytes]:
    return [message.body for message in await caller.read(topic)]


async def test_a_slave_has_its_masters_tables_and_keeps_them_as_master(group: BrokerGroup) -> None:
    master, slave = group.add(MASTER, *BOTH, SOON), group.add(SLAVE, *BOTH, SOON)
    group.until_in_sync(master, slave)
    async with BrokerCaller(master.address) as caller:
        admin = Admin(caller)
        await caller.put_topic("orders", queues=3)
        await caller.put_topic("gone", queues=1)
        await caller.put_group("g", attempts=5)
        await caller.put_group("h")
        await caller.send("orders", b"1", b"2", b"3")
        await caller.send("gone", b"x", b"y")
        await admin.reset("g", "orders", 1)
        await admin.commit("h", "orders", 2)
        await admin.commit("h", "gone", 2)
        await admin.delete_topic("gone")
        await caller.send("gone", b"of the new one")
        await admin.delete_group("h")
    # A master also keeps its own offsets of half messages, and writes them a little later.
    until_sync(lambda: any("RMQ_SYS" in name for name in tables(master)[2]), "its own offsets")
    until_tables_alike(master, slave)
    offsets = {name: row for name, row in tables(master)[2].items() if "RMQ_SYS" not in name}
    assert offsets == {"orders@g": {"0": 1, "1": 0, "2": 0}}
    group.until_alike(master, slave)
    expected = tables(master)
    master.process.kill()
    promoted = group.restart_as(slave, 0, MASTER, *BOTH, SOON)
    group.until_leads(promoted)
    assert tables(promoted) == expected
    async with BrokerCaller(promoted.address) as caller:
        assert await bodies(caller, "orders") == [b"1", b"2", b"3"]
        assert await bodies(caller, "gone") == [b"of the new one"]


async def test_a_new_master_keeps_the_leases_of_the_old_one(group: BrokerGroup) -> None:
    master, slave = group.add(MASTER, *BOTH, SOON), group.add(SLAVE, *BOTH, SOON)
    group.until_in_sync(master, slave)
    async with BrokerCaller(master.address) as caller:
        await caller.put_topic("orders")
        await caller.put_group("g")
        await caller.send("orders", b"leased", b"not yet")
        assert await popped(caller, 1) == [b"leased"]
    await group.until_confirmed(master, slave)
    master.process.kill()
    slave.process.stop()
    leases = decode((slave.store / "config" / "popLeases.json").read_bytes())
    assert leases["position"], "it is of the slave's own"
    topics = decode((slave.store / "config" / "topics.json").read_bytes())
    assert "orders" in topics["topicConfigTable"], "an older version finds it after a stop"
    promoted = group.restart_as(slave, 0, MASTER, *BOTH, SOON)
    group.until_leads(promoted)
    group.until_in_sync(promoted, group.restart_as(master, 1, SLAVE, *BOTH, SOON))
    async with BrokerCaller(promoted.address) as caller:
        assert (await popped(caller, 5))[0] == b"not yet"


async def popped(caller: BrokerCaller, count: int) -> list[bytes]:
    """On leases of ten minutes."""
    request = pop_pb2.PopRequest(
        consumer_group="g", topic="orders", max_messages=count, invisible_duration_ms=600_000
    )
    answer = await caller.call(caller.pops.Pop, request)
    return [record.body for record in iter_records(answer.records)]


async def test_a_replica_that_joins_late_gets_what_the_log_no_longer_has(
    group: BrokerGroup,
) -> None:
    """An empty one copies from where the master's log begins; one that ends before is wiped."""
    keep = ("retainBytes=1048576", "cleanResourceInterval=200", SOON)
    copies = "totalReplicas=3"
    master = group.add(ASYNC, copies, *keep)
    slave = group.add(SLAVE, copies, SOON)
    group.until_in_sync(master, slave)
    async with BrokerCaller(master.address) as caller:
        admin = Admin(caller)
        await caller.put_topic("old")
        await caller.put_topic("deleted")
        await caller.send("old", b"a", b"b")
        await caller.send("deleted", b"a", b"b", b"c")
        await admin.delete_topic("deleted")
        await caller.put_group("g")
        await admin.commit("g", "old", 2)
        group.until_alike(master, slave)
        slave.process.stop()
        first = master.store / "commitlog" / ("0" * 20)
        for number in range(60):
            await send_until_taken(caller, "orders", b"%d" % number * 50_000)
        await until(lambda: not first.exists(), "the first file has gone", timeout_s=60)
        late = group.add(SLAVE, copies, SOON)
        slave.start()
        group.until_in_sync(master, slave, late)
        await caller.send("deleted", b"again")
        await caller.send("old", b"c")
        until_tables_alike(master, slave, late)
        master.process.stop()
    for replica in (late, slave):
        promoted = group.restart_as(replica, 0, ASYNC, copies, SOON)
        group.until_leads(promoted)
        async with BrokerCaller(promoted.address) as caller:
            assert [
                (message.queue_offset, message.body) for message in await caller.read("old")
            ] == [(2, b"c")]
            assert await bodies(caller, "deleted") == [b"again"]
        promoted.process.stop()


async def test_a_deletion_that_nobody_confirmed_is_undone_on_the_old_master(
    group: BrokerGroup,
) -> None:
    """Its slave hung, and is started as master by its options: there the topic was never
    deleted."""
    old, new = group.add(ASYNC, COPIES, SOON), group.add(SLAVE, COPIES, SOON)
    group.until_in_sync(old, new)
    async with BrokerCaller(old.address) as caller:
        await caller.put_topic("orders")
        await caller.put_group("g")
        await caller.send("orders", b"1", b"2")
        await Admin(caller).reset("g", "orders", 2)
        group.until_alike(old, new)
        new.process.send_signal(signal.SIGSTOP)
        deleting = asyncio.create_task(Admin(caller).delete_topic("orders"))
        deleted = old.store / "config" / "deletedTopics.json"
        await until(deleted.exists, "the deletion has begun")
        old.process.kill()
        with suppress(MqError, grpc.aio.AioRpcError):
            await deleting
    new.process.kill()
    new = group.restart_as(new, 0, ASYNC, COPIES, SOON)
    group.until_leads(new)
    old = group.restart_as(old, 1, SLAVE, COPIES, SOON)
    group.until_in_sync(new, old)
    async with BrokerCaller(new.address) as caller:
        await caller.send("orders", b"3")
    group.until_alike(new, old)
    until_tables_alike(new, old)
    assert "orders@g" in tables(old)[2]
    new.process.stop()
    again = group.restart_as(old, 0, ASYNC, COPIES, SOON)
    group.until_leads(again)
    async with BrokerCaller(again.address) as caller:
        assert await bodies(caller, "orders") == [b"1", b"2", b"3"]
