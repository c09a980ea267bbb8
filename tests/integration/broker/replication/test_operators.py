"""What operators and storage do to a group with etcd, as processes: a disk goes back in time, etcd
loses its data. Nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee_wire.status import MqError
from support.broker.calls import BrokerCaller
from support.clock.polling import until, until_sync
from support.etcd.etcd_process import EtcdMember, etcd_members
from support.processes.broker_group import BrokerGroup, Member, broker_group, send_until_taken

TOPIC = "orders"
COUNT = 50  # messages at once
SYNC = (
    "brokerRole=SYNC_MASTER",
    "totalReplicas=3",
    "inSyncReplicas=2",
    "etcdLeaseTtl=2",
    "electionWaitForSet=4000",
)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdMember]:
    data = tmp_path / "etcd"
    data.mkdir()
    with etcd_members(data) as [only]:
        yield only


@pytest.fixture
def group(tmp_path: Path, etcd: EtcdMember) -> Iterator[BrokerGroup]:
    """Three members, started at once."""
    with broker_group(tmp_path, first=1) as group:
        group.add_all(3, *SYNC, f"etcdEndpoints={etcd.endpoint}")
        yield group


async def lead(group: BrokerGroup, *but: Member) -> tuple[Member, Member, Member]:
    """Return the master and its slaves, once all are in sync."""
    master = await asyncio.to_thread(group.until_led, *but)
    first, second = (each for each in group.members if each is not master)
    await asyncio.to_thread(group.until_in_sync, master, first, second)
    return master, first, second


class Sent:
    """Bodies that were acknowledged."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def more(self, master: Member) -> None:
        async with BrokerCaller(master.address) as caller:
            for _ in range(COUNT):
                body = b"%d" % len(self.bodies)
                await send_until_taken(caller, TOPIC, body)
                self.bodies.append(body)

    async def check(self, master: Member) -> None:
        async with BrokerCaller(master.address) as caller:
            found = [message.body for message in await caller.read(TOPIC)]
        assert found == self.bodies


def copy_store(member: Member, to: Path) -> None:
    shutil.copytree(member.data, to)


def put_back(member: Member, copy: Path) -> None:
    shutil.rmtree(member.data)
    shutil.copytree(copy, member.data)


def kill_all(group: BrokerGroup) -> None:
    for member in group.members:
        if member.process.is_running:
            member.process.kill()


async def start(*members: Member) -> None:
    await asyncio.gather(*(asyncio.to_thread(member.start) for member in members))


async def until_event(member: Member, event: str) -> dict[str, object]:
    found = await asyncio.to_thread(
        until_sync, lambda: member.events_now(event), f"{member.number} logs {event}", timeout_s=30
    )
    return dict(found[0])


async def test_a_replica_with_an_older_disk_is_not_elected(
    group: BrokerGroup, tmp_path: Path
) -> None:
    """It was in sync, all are killed, and it starts first with a copy from before."""
    master, slave, other = await lead(group)
    sent = Sent()
    await sent.more(master)
    await asyncio.to_thread(slave.process.stop)
    copy_store(slave, tmp_path / "copy")
    await start(slave)
    await asyncio.to_thread(group.until_in_sync, master, slave, other)
    await sent.more(master)
    kill_all(group)
    put_back(slave, tmp_path / "copy")

    await start(slave)
    went_back = await until_event(slave, "store_went_back")
    assert int(str(went_back["known_generation"])) > int(str(went_back["generation"]))
    await until_event(slave, "not_electable")

    async def says_why() -> bool:
        return "not in sync" in (await group.statuses())[slave.number].reason

    await until(says_why, "it says why it waits", timeout_s=30, retry_on=(MqError,))
    await start(master, other)

    leader, *_ = await lead(group)
    assert leader is not slave
    await sent.check(leader)
    await sent.more(leader)
    await asyncio.to_thread(group.until_alike, leader, slave)


async def test_a_group_that_etcd_has_forgotten_waits_for_all_of_its_replicas(
    group: BrokerGroup, etcd: EtcdMember
) -> None:
    """All are killed, and one that was out of the set starts first."""
    master, away, other = await lead(group)
    sent = Sent()
    await sent.more(master)
    await asyncio.to_thread(away.process.kill)
    await asyncio.to_thread(group.until_in_sync, master, other)
    await sent.more(master)
    kill_all(group)
    etcd.lose_data()

    await start(away)
    waits = await until_event(away, "not_electable")
    assert "all 3 replicas" in str(waits["reason"])
    await start(other)
    await until(
        lambda: "present: " in str(other.events_now("not_electable")), "it waits too", timeout_s=30
    )
    assert not [each for each in group.members if each.leads_now()]
    await start(master)

    leader, *_ = await lead(group)
    assert leader is not away
    await sent.check(leader)


async def test_a_living_master_writes_its_state_back(group: BrokerGroup, etcd: EtcdMember) -> None:
    """etcd comes back empty: the group stays as it is, and fails over as before."""
    master, *_ = await lead(group)
    sent = Sent()
    await sent.more(master)
    await asyncio.to_thread(etcd.lose_data)
    await until_event(master, "state_written_back")
    await sent.more(master)
    roles = {each: each.events_now("role_taken") for each in group.members}
    assert [len(taken) for taken in roles.values()] == [1, 1, 1], "no replica changed its role"

    await asyncio.to_thread(master.process.kill)
    leader = await asyncio.to_thread(group.until_led, master)
    await sent.more(leader)
    await start(master)
    await lead(group)
    await sent.check(leader)


async def test_a_living_group_repairs_an_older_state(
    group: BrokerGroup, etcd: EtcdMember, tmp_path: Path
) -> None:
    """The older state has a replica in the set that has left it since."""
    master, slave, other = await lead(group)
    sent = Sent()
    await sent.more(master)
    etcd.stop()
    etcd.copy_data(tmp_path / "older")
    etcd.start()
    await asyncio.to_thread(slave.process.kill)
    await asyncio.to_thread(group.until_in_sync, master, other)
    await sent.more(master)
    await asyncio.to_thread(etcd.lose_data, tmp_path / "older")
    await until_event(master, "state_written_back")
    kill_all(group)

    await start(slave)
    await until_event(slave, "not_electable")
    await start(master, other)
    leader, *_ = await lead(group)
    await sent.check(leader)
