"""Whole brokers of a group, in a virtual loop: what one has lost comes back from another one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from aerobee_broker.errors import MessageNotFound, RepairPending
from aerobee_broker.replication.role.integrity.log_repair import LogRepairs
from aerobee_broker.store.damage import DamagedRange
from aerobee_broker.store.ship import Chunk
from support.disk.stores import LOG, visible
from support.lite.broker_client import PARENT, REPLACE, bodies
from support.simulation.client import SimulatedClient
from support.simulation.cluster import SimulatedCluster, simulated
from support.simulation.lite_client import SimulatedLite
from support.simulation.node import LOG_FILE_BYTES, BrokerNode

OPTIONS = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 1, "scrubInterval": 5_000}
TOPIC, GROUP = "orders", "readers"


async def begun(cluster: SimulatedCluster) -> tuple[BrokerNode, BrokerNode, SimulatedClient]:
    """A master and its slave, in sync, with 40 messages; a client of the master."""
    await cluster.begin(2, OPTIONS, elected=True)
    master = await cluster.settle()
    client = SimulatedClient(cluster)
    client.address = master.address
    await client.put_topic(TOPIC)
    for number in range(40):
        await client.send(TOPIC, b"%d" % number * 40)
    await cluster.settle()
    [slave] = [node for node in cluster.nodes if node is not master]
    return master, slave, client


def some_record(node: BrokerNode) -> DamagedRange:
    """Of the topic."""
    assert node.store is not None
    queue_id = node.store.queues(TOPIC)[0]
    at, size, _ = node.store.units(TOPIC, queue_id, 2, 1)[0]
    return DamagedRange(at, at + size)


def queue_of(node: BrokerNode) -> int:
    assert node.store is not None
    return node.store.queues(TOPIC)[0]


def flip(node: BrokerNode, physical_offset: int) -> None:
    start = physical_offset // LOG_FILE_BYTES * LOG_FILE_BYTES
    node.disk.flip(LOG / f"{start:020d}", (physical_offset - start) * 8)


def is_repaired(node: BrokerNode) -> Callable[[], bool]:
    def repaired() -> bool:
        store = node.store
        return store is not None and store.repair.records > 0 and not store.damage.ranges

    return repaired


def are_alike(one: BrokerNode, other: BrokerNode) -> bool:
    """In their logs, and what they show."""
    if one.store is None or other.store is None:
        return False
    end = one.store.end_offset
    if end != other.store.end_offset or one.log_bytes(0, end) != other.log_bytes(0, end):
        return False
    return visible(one.store) == visible(other.store)


async def eventually(holds: Callable[[], bool], what: str) -> None:
    for _ in range(600):
        if holds():
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"not within 60 s: {what}")


@pytest.mark.parametrize("of_master", [True, False])
@simulated(1)
async def test_damage_that_the_scrub_finds_is_repaired_from_the_other_replica(
    cluster: SimulatedCluster, *, of_master: bool
) -> None:
    master, slave, _ = await begun(cluster)
    damaged = master if of_master else slave
    flip(damaged, some_record(master).begin + 100)
    await eventually(is_repaired(damaged), "repaired")
    await eventually(lambda: are_alike(master, slave), "both show the same")


@simulated(2)
async def test_readers_wait_for_a_record_that_another_replica_has(
    cluster: SimulatedCluster,
) -> None:
    master, _, _ = await begun(cluster)
    record, store = some_record(master), master.store
    assert store is not None
    flip(master, record.begin + 100)
    queue_id = store.queues(TOPIC)[0]
    before = store.read(TOPIC, queue_id, 0)
    assert (before.message_count, before.next_begin_offset, before.corrupted_count) == (2, 2, 0)
    with pytest.raises(RepairPending):
        store.read(TOPIC, queue_id, 2)
    with pytest.raises(RepairPending):
        store.get(record.begin)
    await eventually(is_repaired(master), "repaired")
    assert store.read(TOPIC, queue_id, 2, max_messages=1).message_count == 1


@simulated(4)
async def test_a_pop_waits_for_a_record_that_another_replica_has(cluster: SimulatedCluster) -> None:
    master, _, client = await begun(cluster)
    await client.put_group(GROUP)
    queue_id = queue_of(master)
    taken = [await client.pop(TOPIC, GROUP, 32, 10_000) for _ in range(3)]
    assert sum(map(len, taken)) == 40
    flip(master, some_record(master).begin + 100)
    await asyncio.sleep(11)  # it is redelivered: a pop reads it, and must not settle it as lost
    again: set[tuple[int, int]] = set()
    for _ in range(100):
        found = await client.pop(TOPIC, GROUP, 32, 60_000)
        again |= {(record.queue_id, record.queue_offset) for record, _ in found}
        await asyncio.sleep(0.2)
    assert len(again) == 40 and (queue_id, 2) in again
    assert is_repaired(master)()


@pytest.mark.parametrize("redelivered", [False, True])
@simulated(7)
async def test_a_lite_topic_is_offered_again_after_the_repair(
    cluster: SimulatedCluster, *, redelivered: bool
) -> None:
    await cluster.begin(2, OPTIONS, elected=True)
    master = await cluster.settle()
    client = SimulatedClient(cluster)
    client.address = master.address
    lite = SimulatedLite(client)
    await lite.put_parent()
    await lite.bind()
    await lite.sync(REPLACE, "x")
    await lite.send("x", b"x0", b"x1")
    await cluster.settle()
    store = master.store
    assert store is not None
    [queue_id] = [each for each in store.queues(PARENT) if store.max_offset(PARENT, each)]
    at, size, _ = store.units(PARENT, queue_id, 0, 1)[0]
    if redelivered:
        assert bodies(await lite.pop()) == [b"x0", b"x1"]
    flip(master, at + size - 60)
    if redelivered:
        await asyncio.sleep(40)  # the lease has ended
    for _ in range(20):
        if received := bodies(await lite.pop()):
            break
        await asyncio.sleep(1)
    assert received == [b"x0", b"x1"]
    assert is_repaired(master)()


@simulated(5)
async def test_readers_skip_a_record_that_no_replica_has(cluster: SimulatedCluster) -> None:
    master, slave, _ = await begun(cluster)
    record, store = some_record(master), master.store
    assert store is not None
    queue_id = queue_of(master)
    for node in (master, slave):
        flip(node, record.begin + 100)
    with pytest.raises(RepairPending):
        store.read(TOPIC, queue_id, 2)
    await eventually(lambda: bool(store.damage.ranges) and not store.damage.is_pending, "given up")
    result = store.read(TOPIC, queue_id, 2, max_messages=2)
    assert (result.message_count, result.corrupted_count) == (1, 1)


@simulated(6)
async def test_readers_wait_a_minute_for_a_replica_that_is_down(cluster: SimulatedCluster) -> None:
    master, slave, _ = await begun(cluster)
    record, store = some_record(master), master.store
    assert store is not None
    queue_id = queue_of(master)
    slave.kill()
    flip(master, record.begin + 100)
    with pytest.raises(RepairPending):
        store.read(TOPIC, queue_id, 2)
    await asyncio.sleep(20)
    with pytest.raises(RepairPending):
        store.read(TOPIC, queue_id, 2)
    await asyncio.sleep(60)
    assert store.read(TOPIC, queue_id, 2, max_messages=2).corrupted_count == 1
    slave.start()
    await eventually(is_repaired(master), "repaired")
    assert store.read(TOPIC, queue_id, 2, max_messages=2).message_count == 2


@simulated(3)
async def test_replica_that_lost_the_end_of_its_log_repairs_it_before_it_is_in_sync(
    cluster: SimulatedCluster,
) -> None:
    master, slave, _ = await begun(cluster)
    damaged = some_record(master)
    slave.kill()
    name = LOG / f"{damaged.begin // LOG_FILE_BYTES * LOG_FILE_BYTES:020d}"
    content = slave.disk.files()[name]
    kept = damaged.begin % LOG_FILE_BYTES + 30
    slave.disk.put(name, content[:kept].ljust(len(content), b"\0"))
    slave.start()
    await eventually(lambda: slave.store is not None, "the store is open")
    assert slave.roles is not None
    own = slave.roles.own
    assert own.damaged
    assert own.damage_status.bytes > 0
    await eventually(is_repaired(slave), "repaired")
    assert own.damage_status.ranges == 0
    await eventually(lambda: are_alike(master, slave), "both show the same")


@simulated(8)
async def test_a_replica_without_that_part_of_the_log_gives_nothing_up(
    cluster: SimulatedCluster,
) -> None:
    """It may be a learner that began at a later file, while the replica that has it is down."""

    class WithoutIt:
        async def read_log(self, *_: object) -> list[Chunk]:
            raise MessageNotFound("none of that")

    async def addresses() -> list[str]:
        return ["learner"]

    master, slave, _ = await begun(cluster)
    assert master.store is not None and master.roles is not None
    own, damage = master.roles.own, master.store.damage
    slave.kill()
    damage.report_range(LOG, some_record(master), "bad")
    await LogRepairs(own, addresses, WithoutIt()).attempt()
    assert damage.is_pending
