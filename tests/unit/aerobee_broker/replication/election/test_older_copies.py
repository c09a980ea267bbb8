"""Whole brokers of a group without etcd: an older disk, one that lacks a part, or a copy of one."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_namesrv.routing.log_records import LogRecords
from aerobee_wire.status import Code
from support.clock.polling import until
from support.disk.stores import PATH
from support.simulation.client import SimulatedClient, begun
from support.simulation.cluster import NAMESRV, TWIN, SimulatedCluster, simulated
from support.simulation.node import BrokerNode


async def with_a_twin(
    cluster: SimulatedCluster,
) -> tuple[SimulatedClient, BrokerNode, BrokerNode, BrokerNode, BrokerNode]:
    """Return a client, the master, a slave that it cannot reach, a process with a copy of that
    slave's disk, which is in sync in its place, and a slave that is off."""
    client = await begun(cluster)
    master, first, other = cluster.nodes
    other.kill()
    for source, target in ((first, master), (master, first)):
        cluster.network.cut(source.number, target.number)
    cluster.network.break_streams(first.number)
    twin = cluster.start_twin(first, first.disk.copy())
    await until(lambda: master.in_sync == {0, 1} and twin.follows, "the twin is in sync")
    return client, master, first, twin, other


@pytest.mark.parametrize("is_running", [False, True], ids=["stopped", "running"])
@pytest.mark.parametrize("forgets", [False, True], ids=["", "namesrv_restarts"])
@simulated(1)
async def test_replica_with_an_older_disk_does_not_count(
    cluster: SimulatedCluster, *, is_running: bool, forgets: bool
) -> None:
    """Only it and the lost master had the message. The copy is of a stopped or a running disk."""
    client = await begun(cluster)
    master, slave, away = cluster.nodes
    if is_running:
        copy = slave.disk.copy()
    else:
        slave.kill()
        copy = slave.disk.copy()
        slave.start()
        await cluster.settle()
    away.kill()
    await asyncio.sleep(3)
    await client.send("orders", b"acknowledged")
    await asyncio.sleep(2)
    slave.kill()
    if forgets:
        await cluster.stop_namesrv()
        await cluster.start_namesrv()
        await asyncio.sleep(3)
    master.kill()
    slave.put_disk_back(copy)
    slave.start()
    away.start()
    await asyncio.sleep(5)
    for node in (slave, away):
        refused = await cluster.promote(node)
        assert refused is not None and refused.code is Code.ILLEGAL_OPERATION
        assert "does not count" in refused.message
    slave.kill()
    slave.start()  # what it knows of its disk outlives its process
    await asyncio.sleep(3)
    assert await cluster.promote(away) is not None
    master.start()
    cluster.check_alike(await cluster.settle())
    master.kill()
    assert await cluster.promote(slave) is None, "it has caught up"


@simulated(1)
async def test_replica_does_not_count_before_it_has_what_earlier_masters_confirmed(
    cluster: SimulatedCluster,
) -> None:
    """A new master has confirmed nothing itself while too few replicas are in sync."""
    client = await begun(cluster)
    master, slave, away = cluster.nodes
    copy = slave.disk.copy()
    away.kill()
    await asyncio.sleep(3)
    for number in range(100):
        await client.send("orders", b"%d" % number)
    await asyncio.sleep(2)
    slave.kill()
    master.kill()
    slave.put_disk_back(copy)
    slave.slowest_job_ms = 3_000
    away.start()
    master.start()
    await until(lambda: master.epoch_as_master > 0, "it leads")
    away.kill()
    slave.start()
    await until(lambda: is_displaced(slave), "it knows that its disk is older")
    await until(lambda: not is_displaced(slave), "it has caught up")
    assert slave.store is not None and master.store is not None
    assert slave.store.flushed_offset >= master.store.confirmed_offset
    away.start()
    cluster.check_alike(await cluster.settle())


@simulated(1)
async def test_replica_that_lost_the_end_of_its_log_does_not_count(
    cluster: SimulatedCluster,
) -> None:
    """Only its `commitlog` is older: an operator has restored that folder."""
    client = await begun(cluster)
    master, slave, away = cluster.nodes
    old = slave.disk.copy()
    away.kill()
    await asyncio.sleep(3)
    await client.send("orders", b"acknowledged")
    await asyncio.sleep(2)
    slave.kill()
    master.kill()
    slave.put_log_back(old)
    slave.start()
    away.start()
    await asyncio.sleep(5)
    assert await cluster.promote(slave) is not None
    assert await cluster.promote(away) is not None
    master.start()
    cluster.check_alike(await cluster.settle())


@pytest.mark.parametrize("name", ["epochs.json", "enrollment.json"])
@simulated(1)
async def test_replica_with_one_older_file_does_not_count(
    cluster: SimulatedCluster, name: str
) -> None:
    """Its log grew after its last record, so the end of the log does not show it."""
    client = await begun(cluster)
    away, slave, master = cluster.nodes
    file = PATH / "config" / name
    older = slave.disk.files()[file]
    slave.kill()
    slave.start()
    await cluster.settle()
    assert await cluster.promote(master) is None
    await cluster.settle()
    away.kill()
    await asyncio.sleep(3)
    for source, target in ((slave.number, NAMESRV), (NAMESRV, slave.number)):
        cluster.network.cut(source, target)
    client.address = master.address
    await client.send("orders", b"acknowledged")
    slave.kill()
    master.kill()
    slave.disk.put(file, older)
    cluster.network.heal()
    slave.start()
    away.start()
    await asyncio.sleep(5)
    assert is_displaced(slave)
    assert await cluster.promote(away) is not None
    assert await cluster.promote(slave) is not None
    master.start()
    cluster.check_alike(await cluster.settle())


@simulated(1)
async def test_restarts_and_cuts_do_not_look_like_an_older_disk(cluster: SimulatedCluster) -> None:
    """A former master cuts what only it has, and is promoted after that."""
    client = await begun(cluster)
    old, new, other = cluster.nodes
    for target in (new, other):
        cluster.network.cut(old.number, target.number)
    cluster.network.break_streams(old.number)
    sending = asyncio.ensure_future(client.send("orders", b"on the old master only"))
    await asyncio.sleep(2)
    old.kill()
    sending.cancel()
    cluster.network.heal()
    assert await cluster.promote(new) is None
    client.address = new.address
    old.start()
    await cluster.settle()
    new.kill()
    await asyncio.sleep(2)
    if (refused := await cluster.promote(old)) is not None:
        assert await cluster.promote(other) is None, refused.message
    new.start()
    cluster.check_alike(await cluster.settle())
    assert not any(is_doubtful(node) for node in cluster.nodes)


@simulated(1)
async def test_displaced_replica_does_not_count_after_a_restart(cluster: SimulatedCluster) -> None:
    """Another process with a copy of its disk has confirmed with its number."""
    client, master, first, twin, other = await with_a_twin(cluster)
    cluster.network.heal()
    await asyncio.sleep(2)
    await client.send("orders", b"acknowledged")
    for node in (master, twin, first):
        node.kill()
    cluster.remove(twin)
    first.start()
    other.start()
    await asyncio.sleep(5)
    for node in (first, other):
        assert await cluster.promote(node) is not None
    master.start()
    cluster.check_alike(await cluster.settle())
    assert await cluster.promote(first) is None, "it has caught up"


@simulated(1)
async def test_replica_that_its_master_never_refused_learns_of_a_copy_of_its_disk(
    cluster: SimulatedCluster,
) -> None:
    """It cannot reach its master, and the other process confirms with its number."""
    client, master, first, twin, other = await with_a_twin(cluster)
    await client.send("orders", b"acknowledged")
    await asyncio.sleep(2)
    master.kill()
    twin.kill()
    cluster.remove(twin)
    cluster.network.heal()
    other.start()
    await asyncio.sleep(5)
    for node in (first, other):
        assert await cluster.promote(node) is not None
    master.start()
    cluster.check_alike(await cluster.settle())


@pytest.mark.parametrize("is_older", [True, False], ids=["older_namesrv", ""])
@pytest.mark.parametrize("sees_master", [True, False])
@simulated(1)
async def test_copy_of_a_masters_disk_does_not_lead_beside_it(
    cluster: SimulatedCluster, *, sees_master: bool, is_older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name server has forgotten the master, and cannot reject the second process. The slaves
    would follow the second one, and cut what the first one has acknowledged since the copy. A name
    server of an older version keeps no records."""
    if is_older:
        monkeypatch.setattr(LogRecords, "record", lambda *_: {})
    client = await begun(cluster)
    master = cluster.nodes[0]
    copy = master.disk.copy()
    await cluster.stop_namesrv()
    cluster.network.part(master.number, NAMESRV)
    if not sees_master:
        cluster.network.part(master.number, TWIN)
    await cluster.start_namesrv()
    twin = cluster.start_twin(master, copy)
    await asyncio.sleep(5)  # no log has more than the copy
    for number in range(50):
        await client.send("orders", b"%d" % number)
        assert not twin.epoch_as_master, cluster.describe()
        await asyncio.sleep(0.2)
        cluster.look()
    twin.kill()
    cluster.remove(twin)
    cluster.network.heal()
    cluster.check_alike(await cluster.settle())


def is_displaced(node: BrokerNode) -> bool:
    return node.roles is not None and node.roles.own.is_displaced


def is_doubtful(node: BrokerNode) -> bool:
    return node.roles is None or node.roles.own.enrollment.is_doubtful


def lose_all_but_config(node: BrokerNode) -> None:
    """An operator has restored its `config` on an empty disk, or only that was on another one."""
    for path in node.disk.files():
        if path.parent != PATH / "config":
            node.disk.remove(path)
    for folder in {path.parent for path in node.disk.files()}:
        node.disk.sync_directory(folder)


@simulated(1)
async def test_replica_that_kept_only_its_config_does_not_count_among_those_that_answer(
    cluster: SimulatedCluster,
) -> None:
    """It was the first master, so it has never copied a log."""
    client = await begun(cluster)
    lost, master, asked = cluster.nodes
    assert await cluster.promote(master) is None
    await cluster.settle()
    client.address = master.address
    asked.kill()
    await client.send("orders", b"acknowledged")
    lost.kill()
    lose_all_but_config(lost)
    master.kill()
    lost.start()
    asked.start()
    await asyncio.sleep(5)
    assert lost.store is not None and not lost.store.end_offset
    refused = await cluster.promote(asked)
    assert refused is not None and refused.code is Code.ILLEGAL_OPERATION
    master.start()
    cluster.check_alike(await cluster.settle())


@simulated(1)
async def test_second_process_with_a_copy_of_a_running_disk_confirms_nothing(
    cluster: SimulatedCluster,
) -> None:
    """Its confirmations would count as those of the first one, which lacks the messages."""
    client = await begun(cluster)
    master, first, other = cluster.nodes
    other.kill()
    twin = cluster.start_twin(first, first.disk.copy())
    for number in range(100):
        await client.send("orders", b"%d" % number)
        assert master.store is not None and first.store is not None
        assert first.store.flushed_offset >= master.store.confirmed_offset
        await asyncio.sleep(0.05)
    assert twin.store is not None and master.store is not None
    assert twin.store.end_offset < master.store.end_offset


@simulated(1)
async def test_replica_whose_number_another_process_has_taken_does_not_count(
    cluster: SimulatedCluster,
) -> None:
    """The other process confirms after a connection broke, and its machine is lost with the
    master's."""
    client, master, first, twin, other = await with_a_twin(cluster)
    cluster.network.heal()
    await asyncio.sleep(2)
    await client.send("orders", b"acknowledged")
    master.kill()
    twin.kill()
    other.start()
    await asyncio.sleep(5)
    refused = await cluster.promote(first)
    assert refused is not None and refused.code is Code.ILLEGAL_OPERATION
    master.start()
    cluster.remove(twin)
    cluster.check_alike(await cluster.settle())
    assert await cluster.promote(first) is None, "it has caught up"
