"""etcd gets older data back beside a group of processes. Nothing that was acknowledged is lost.

More of what operators and storage do is in tests/fault/replication/operators.py, in virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.broker.calls import BrokerCaller
from support.clock.polling import until_sync
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


async def lead(group: BrokerGroup) -> tuple[Member, Member, Member]:
    """Return the master and its slaves, once all are in sync."""
    master = await asyncio.to_thread(group.until_led)
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
