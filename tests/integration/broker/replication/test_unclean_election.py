"""A group with etcd whose in-sync set is gone, as processes: with `enableElectUncleanMaster` one
outside of the set leads; what it gave up is cut off the old master, and no group skips a message.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from aerobee.broker.v1 import offset_pb2

from support.broker.calls import BrokerCaller
from support.etcd.etcd_process import etcd_members
from support.processes.broker_group import BrokerGroup, Member, broker_group, send_until_taken

TOPIC, READERS = "orders", "readers"
SETTINGS = (
    "brokerRole=SYNC_MASTER",
    "totalReplicas=2",
    "enableAutoInSyncReplicas=true",
    "etcdLeaseTtl=2",
)
BEFORE, ALONE = [b"before 1", b"before 2"], [b"alone 1", b"alone 2", b"alone 3"]


async def commit(caller: BrokerCaller, queue_offset: int) -> int:
    """Returns the group's offset then."""
    offset = offset_pb2.QueueOffset(topic=TOPIC, queue_id=0, queue_offset=queue_offset)
    await caller.call(
        caller.offsets.UpdateConsumerOffsets,
        offset_pb2.UpdateConsumerOffsetsRequest(consumer_group=READERS, offsets=[offset]),
    )
    asked = offset_pb2.QueryConsumerOffsetsRequest(consumer_group=READERS, topic=TOPIC)
    found = (await caller.call(caller.offsets.QueryConsumerOffsets, asked)).offsets
    return found[0].queue_offset if found else 0


async def group_whose_master_went_on_alone(group: BrokerGroup, etcd: str, *also: str) -> Member:
    """Both have BEFORE. The master has taken ALONE while the other one was away, and is killed;
    returns that other one, which is back then."""
    members = group.add_all(2, *SETTINGS, f"etcdEndpoints={etcd}", *also)
    master = await asyncio.to_thread(group.until_led)
    (slave,) = (each for each in members if each is not master)
    await asyncio.to_thread(group.until_in_sync, master, slave)
    async with BrokerCaller(master.address) as caller:
        await caller.put_topic(TOPIC, queues=1)
        await caller.put_group(READERS, attempts=3)
        for body in BEFORE:
            await caller.send(TOPIC, body)
        await group.until_confirmed(master, slave)
        # A stopped process would find ALONE in its sockets when it goes on.
        slave.process.kill()
        await asyncio.to_thread(group.until_in_sync, master)
        for body in ALONE:
            await caller.send(TOPIC, body)
        assert await commit(caller, len(BEFORE) + len(ALONE)) == len(BEFORE) + len(ALONE)
    await asyncio.to_thread(master.process.kill)
    return slave.start()


async def test_one_outside_the_set_leads_and_says_what_it_gave_up(tmp_path: Path) -> None:
    with etcd_members(tmp_path) as [etcd], broker_group(tmp_path / "group", first=1) as group:
        new = await group_whose_master_went_on_alone(
            group, etcd.endpoint, "enableElectUncleanMaster=true"
        )
        (old,) = (each for each in group.members if each is not new)
        await asyncio.to_thread(group.until_leads, new)
        (reported,) = new.events_now("elected_unclean")
        assert reported["given_up_bytes"] == "unknown" or reported["given_up_bytes"] >= 0

        async with BrokerCaller(new.address) as caller:
            assert [message.body for message in await caller.read(TOPIC)] == BEFORE
            ahead = len(BEFORE) + len(ALONE)
            assert await commit(caller, ahead) <= len(BEFORE), "nobody skips what comes now"
            assert await commit(caller, 1) == 1
            await send_until_taken(caller, TOPIC, b"after")

        await asyncio.to_thread(old.start)
        await asyncio.to_thread(group.until_in_sync, new, old)
        (cut,) = old.events_now("log_cut")
        assert cut["messages"] == len(ALONE)
        await asyncio.to_thread(group.until_alike, new, old)
        async with BrokerCaller(new.address) as caller:
            assert [message.body for message in await caller.read(TOPIC)] == [*BEFORE, b"after"]
