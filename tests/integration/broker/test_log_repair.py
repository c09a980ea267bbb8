"""Damage of one replica's log is found, and repaired from another one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.broker.calls import BrokerCaller
from support.clock.polling import until_sync
from support.processes.broker_group import LOG_FILE_BYTES, BrokerGroup, Member, broker_group
from support.processes.service import run

MASTER, SLAVE = "brokerRole=SYNC_MASTER", "brokerRole=SLAVE"
TOPIC = "orders"
BODY = 10_000


@pytest.fixture
def group(tmp_path: Path) -> Iterator[BrokerGroup]:
    with broker_group(tmp_path) as group:
        yield group


async def fill(master: Member, count: int = 150) -> None:
    """Into two files of the log."""
    async with BrokerCaller(master.address) as caller:
        for number in range(count):
            await caller.send(TOPIC, b"%06d" % number * (BODY // 6))


def overwrite(member: Member, physical_offset: int, data: bytes) -> None:
    """Bytes of the log of one that does not run."""
    start = physical_offset // LOG_FILE_BYTES * LOG_FILE_BYTES
    path = member.store / "commitlog" / f"{start:020d}"
    content = bytearray(path.read_bytes())
    at = physical_offset - start
    content[at : at + len(data)] = data
    path.write_bytes(content)


def flip(member: Member, *physical_offsets: int) -> None:
    log = member.log()
    for at in physical_offsets:
        overwrite(member, at, bytes([log[at] ^ 0x55]))


def until_repaired(member: Member) -> int:
    """Returns how many records."""

    def is_whole() -> bool:
        events = member.events_now("damage_repaired")
        return bool(events) and events[-1]["still_damaged_bytes"] == 0

    until_sync(is_whole, f"{member.number} has repaired its log", timeout_s=60)
    return sum(int(event["records"]) for event in member.events_now("damage_repaired"))


def assert_whole(member: Member) -> None:
    """By `aerobee store check`, once it has stopped."""
    member.process.stop()
    checked = run("aerobee_broker.inspection", "check", str(member.data), "--json")
    report = json.loads(checked.stdout)
    assert report["ok"], report["problems"]


async def test_three_flipped_bytes_of_a_slave_are_found_and_repaired(group: BrokerGroup) -> None:
    master, slave = group.add(MASTER, "inSyncReplicas=1"), group.add(SLAVE)
    group.until_in_sync(master, slave)
    await fill(master)
    group.until_alike(master, slave)
    slave.process.kill()
    flip(slave, 5_000, 600_000, 1_200_000)
    slave.start()
    assert until_repaired(slave) == 3
    group.until_in_sync(master, slave)
    group.until_alike(master, slave)
    await group.until_confirmed(master, slave)
    assert_whole(slave)


async def test_slave_whose_last_file_is_truncated_gets_its_end_back(group: BrokerGroup) -> None:
    master, slave = group.add(MASTER, "inSyncReplicas=1"), group.add(SLAVE)
    group.until_in_sync(master, slave)
    await fill(master)
    group.until_alike(master, slave)
    slave.process.kill()
    end = len(slave.log())
    path = sorted((slave.store / "commitlog").glob("0*"))[-1]
    with path.open("r+b") as file:
        file.truncate(end - 300_000 - int(path.name))
    slave.start()
    assert until_repaired(slave) >= 29
    group.until_in_sync(master, slave)
    group.until_alike(master, slave)
    await group.until_confirmed(master, slave)
    assert_whole(slave)


async def test_empty_replica_never_stores_the_damage_of_its_master(group: BrokerGroup) -> None:
    """It waits, and copies once the master has repaired its log from the replica that is whole."""
    master, whole = group.add(MASTER, "inSyncReplicas=1"), group.add(SLAVE)
    group.until_in_sync(master, whole)
    await fill(master)
    group.until_alike(master, whole)
    good = whole.log()
    whole.process.stop()
    master.process.kill()
    flip(master, 600_000)
    master.start()
    empty = group.add(SLAVE)

    def is_waiting() -> bool:
        return any("damaged at physical offset" in str(each["reason"]) for each in empty.refusals())

    until_sync(is_waiting, "the empty replica waits for its master", timeout_s=60)
    copied = empty.log()
    assert len(copied) < 600_000
    assert copied == good[: len(copied)]
    whole.start()
    assert until_repaired(master) == 1
    group.until_in_sync(master, whole, empty)
    group.until_alike(master, whole, empty)
    assert empty.log()[: len(good)] == good
    assert_whole(empty)
    assert_whole(master)
