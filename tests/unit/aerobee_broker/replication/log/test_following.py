"""A master and its slaves: stores as they are, over a simulated network and simulated disks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aerobee_broker.errors import (
    MasterOutdated,
    ReplicaRefused,
    StreamBroken,
    TooFewReplicas,
)
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.replication.errors import NumberInUse, ReplicaNotRemoved
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.in_sync.in_sync_set import InSyncRules
from aerobee_broker.replication.log.stream import ChunkCheck, Hello, LogChunk, Report, ReportCheck
from aerobee_broker.replication.role.integrity.peer_log import read_ranges, readable_ranges
from support.disk.simulated_disk import never
from support.replication.group import SimulatedGroup
from support.replication.replica import TIMING, SimulatedReplica

SYNC_2 = InSyncRules(synchronous=True, in_sync_replicas=2)
AUTO_2 = InSyncRules(synchronous=True, in_sync_replicas=2, auto_in_sync_replicas=True)
ASYNC = InSyncRules()


async def eventually(holds: Callable[[], bool]) -> None:
    """In virtual time."""
    for _ in range(2_000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not within 20 s")


async def begun(rules: InSyncRules, count: int = 2, *, seed: int = 0) -> SimulatedGroup:
    """Replica 0 leads, and all are in sync."""
    group = SimulatedGroup(seed, rules, count)
    group.start()
    await group.elect(0)
    await group.settle()
    return group


async def test_a_synchronous_send_is_acknowledged_once_both_have_it() -> None:
    group = await begun(SYNC_2)
    group.send(40)
    await group.settle()
    assert len(group.acknowledged) == len(group.shown) == 40
    await group.check_end()


class SilentLink:
    """SlaveLink of a slave that reports where it begins, and nothing after that. Its stream takes
    a second to end."""

    def __init__(self, first: Report) -> None:
        self._reports = [first]

    async def receive(self) -> Report:
        if self._reports:
            return self._reports.pop()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
        raise AssertionError("it is silent")

    async def send(self, message: object) -> None:
        pass


async def test_of_streams_that_one_slave_opens_at_once_one_is_served() -> None:
    group = await begun(SYNC_2)
    master, slave = group.replicas
    described = slave.describe()
    slave.stop_at_once(silent=True)  # the master still holds its stream
    leader = master.leader
    assert leader is not None
    opened = []
    for _ in range(3):
        link = SilentLink(Report(described.epoch, described.end, described.end))
        opened.append(master.process.spawn(leader.serve(Hello(described), link)))
        await asyncio.sleep(0.5)  # the first one serves, and ends while the others wait for it
    await asyncio.sleep(3)
    ended = [task.exception() for task in opened if task.done()]
    assert [type(error) for error in ended] == [StreamBroken] * 2
    for task in opened:
        task.cancel()
    await asyncio.wait(opened)
    assert not any(state.connected for state in leader.in_sync.followers())
    group.check_failures()


async def test_a_replica_of_another_store_does_not_end_the_stream_of_its_number() -> None:
    """Two processes with one brokerId would take it from each other for ever."""
    group = await begun(SYNC_2)
    master, slave = group.replicas
    leader = master.leader
    assert leader is not None
    twin = Hello(replace(slave.describe(), replica=Replica(slave.number, "another store")))
    first = Report(twin.slave.epoch, twin.slave.end, twin.slave.end)

    def connected() -> list[str]:
        states = leader.in_sync.followers()
        return [state.replica.store_id for state in states if state.connected]

    assert connected() == [slave.identity.store_id]
    with pytest.raises(NumberInUse):
        await leader.serve(twin, SilentLink(first))
    assert connected() == [slave.identity.store_id]

    slave.stop_at_once()  # its disk is exchanged: the other store may follow
    await eventually(lambda: not connected())
    serving = master.process.spawn(leader.serve(twin, SilentLink(first)))
    await eventually(lambda: connected() == ["another store"])
    serving.cancel()
    await asyncio.wait([serving])


@pytest.mark.parametrize("stranger", [{"cluster": "other"}, {"broker_name": "other"}])
async def test_a_master_does_not_resign_for_a_broker_of_another_group(
    stranger: dict[str, Any],
) -> None:
    group = await begun(SYNC_2)
    master, slave = group.replicas
    leader = master.leader
    assert leader is not None
    described = replace(slave.describe(), epoch=99, **stranger)
    with pytest.raises(ReplicaRefused):
        await leader.serve(Hello(described), SilentLink(Report(99, 0, 0)))
    await asyncio.sleep(1)
    assert master.leader is leader
    with pytest.raises(MasterOutdated):
        await leader.serve(Hello(replace(slave.describe(), epoch=99)), SilentLink(Report(99, 0, 0)))
    await asyncio.sleep(1)
    assert master.leader is not leader


async def test_a_synchronous_send_waits_for_a_slave_whose_disk_is_slow() -> None:
    group = await begun(SYNC_2)
    master, slave = group.replicas
    slave.stop_at_once()
    slave.slowest_job_ms = 400.0
    slave.start()
    await group.settle()
    group.send(1)
    for _ in range(50):
        await asyncio.sleep(0.01)
        has_it = slave.opened().flushed_offset == master.opened().end_offset
        assert has_it or not (group.acknowledged or master.visible())
    assert group.acknowledged


async def test_a_master_reports_how_long_it_waits_for_slaves_and_how_their_clocks_go() -> None:
    group = await begun(SYNC_2)
    master, slave = group.replicas
    leader = master.leader
    assert leader is not None and leader.clock_offsets() == {}
    leader.waits.take()
    slave.stop_at_once()
    slave.slowest_job_ms = 400.0
    slave.start()
    await group.settle()
    for _ in range(20):
        group.send(1)
        await group.settle()
    assert max(leader.waits.take()) >= 50
    await eventually(lambda: bool(leader.clock_offsets()))
    ((replica, ahead_ms),) = leader.clock_offsets().items()
    assert replica == slave.describe().replica
    assert -1_000 < ahead_ms <= 0, "all have one clock here, and a report takes its time"


async def test_an_asynchronous_send_is_acknowledged_alone_and_shown_with_the_slave() -> None:
    group = await begun(ASYNC)
    group.network.cut(0, 1)
    group.send(3)
    await asyncio.sleep(0.5)
    assert len(group.acknowledged) == 3 and not group.replicas[0].visible()
    group.network.heal()
    await group.settle()
    assert len(group.shown) == 3


async def test_an_isolated_asynchronous_master_soon_acknowledges_nothing() -> None:
    group = await begun(ASYNC)
    group.coordinator.away = True
    group.network.cut(0, 1)
    group.network.cut(1, 0)
    group.send(3)
    await asyncio.sleep(0.5)
    assert len(group.acknowledged) == 3
    await asyncio.sleep(3.0)
    with pytest.raises(ReplicaNotRemoved):
        await group.replicas[0].send(99)
    group.coordinator.away = False
    await asyncio.sleep(1.0)
    group.send(3)
    await eventually(lambda: len(group.acknowledged) == 6)
    await group.check_end()


async def test_without_its_slave_a_strict_master_refuses_sends_and_shows_what_it_has() -> None:
    group = await begun(SYNC_2)
    group.send(3)
    await group.settle()
    group.replicas[1].stop_at_once()
    await asyncio.sleep(1)
    with pytest.raises(TooFewReplicas):
        await group.replicas[0].send(99)
    assert len(group.replicas[0].visible()) == 3


async def test_a_master_with_auto_in_sync_replicas_goes_on_alone() -> None:
    group = await begun(AUTO_2)
    group.network.cut(1, 0)  # half-open: the slave hears, and is not heard
    group.send(3)
    await asyncio.sleep(1)
    assert not group.acknowledged
    await asyncio.sleep(3)
    assert len(group.acknowledged) == 3
    await group.check_end()


async def test_a_slave_that_was_off_catches_up_and_joins() -> None:
    group = await begun(AUTO_2)
    group.replicas[1].stop_at_once(power=True)
    await asyncio.sleep(1)
    for _ in range(10):
        group.send(20)
        await asyncio.sleep(0.3)
    await group.check_end()
    assert len(group.acknowledged) == 200


async def test_a_slave_whose_disk_takes_no_deletion_tries_again() -> None:
    """The deletion is the last of the log, so nothing that waits to be derived lets time pass."""
    group = await begun(AUTO_2)
    master, slave = group.replicas
    assert master.parts is not None and slave.parts is not None
    await master.parts.own_tables.put_topic(TopicConfig("orders", 1, 1))
    slave.disk.fail_writes = lambda path: path.name.startswith("deletedTopics.json")
    assert master.parts.own_tables.journal is not None
    master.parts.own_tables.journal.delete_topic("orders")
    await asyncio.sleep(5)
    topics = slave.parts.own_tables.tables.topics
    assert slave.opened().follower.halted and "orders" in topics

    slave.disk.fail_writes = never
    await eventually(lambda: not slave.opened().follower.halted)
    assert "orders" not in topics
    await group.check_end()


async def test_an_empty_disk_is_copied_from_the_masters_first_byte() -> None:
    group = await begun(AUTO_2)
    group.send(100)
    await group.settle()
    slave = group.replicas[1]
    before = slave.identity
    slave.stop_at_once()
    slave.lose_disk()
    await group.check_end()
    assert slave.identity.store_id != before.store_id
    assert len(slave.visible()) == 100


async def test_the_tail_of_a_deposed_master_is_kept_in_a_file_and_cut() -> None:
    group = await begun(SYNC_2, 3)
    group.send(5)
    await group.settle()
    old = group.replicas[0]
    agreed = old.opened().end_offset
    group.network.cut(0, 1)
    group.network.cut(0, 2)
    group.send(7, old)
    await asyncio.sleep(0.1)
    assert old.opened().flushed_offset > agreed
    await group.elect(1)
    await group.check_end()
    kept = [path.name for path in old.disk.files() if "diverged" in str(path)]
    assert kept == [f"1-{agreed}.log"]


async def test_a_log_of_another_group_is_refused_and_left_as_it_is() -> None:
    strangers = await begun(ASYNC, seed=1)
    strangers.send(5)
    await strangers.settle()
    group = await begun(AUTO_2)
    slave, stranger = group.replicas[1], strangers.replicas[1]
    slave.stop_at_once()
    stranger.stop_at_once()
    slave.disk = stranger.disk
    slave.start()
    before = slave.log_bytes(0, slave.opened().end_offset)
    await eventually(lambda: slave.refused is not None)
    assert isinstance(slave.refused, ReplicaRefused)
    assert before and slave.log_bytes(0, slave.opened().end_offset) == before


def repair(damaged: SimulatedReplica, whole: SimulatedReplica) -> None:
    """As a replica does that asks another one."""
    store = damaged.opened()
    ranges = readable_ranges(damaged.describe(), whole.describe(), store.damage.ranges)
    shipper = whole.opened().shipper()
    chunks = read_ranges(shipper, ranges)
    shipper.close()
    store.repair.write(chunks)
    store.repair.settle(chunks)


def damage(replica: SimulatedReplica) -> None:
    """The first record."""
    path = next(path for path in replica.disk.files() if "commitlog" in str(path))
    replica.disk.flip(path, 8 * 60)


def assert_alike(one: SimulatedReplica, other: SimulatedReplica) -> None:
    end = one.opened().end_offset
    assert other.refused is None
    assert other.opened().end_offset == end
    assert one.log_bytes(0, end) == other.log_bytes(0, end)
    assert one.visible() == other.visible()


async def test_damaged_slave_follows_once_it_is_repaired() -> None:
    group = await begun(AUTO_2)
    group.send(5)
    await group.settle()
    master, slave = group.replicas
    slave.stop_at_once()
    damage(slave)
    slave.start()
    await asyncio.sleep(5)
    assert slave.opened().damage.ranges
    assert len(group.coordinator.in_sync) == 1
    repair(slave, master)
    await group.settle()
    assert_alike(master, slave)


async def test_whole_slave_waits_until_its_master_is_repaired() -> None:
    group = await begun(AUTO_2)
    group.send(5)
    await group.settle()
    master, slave = group.replicas
    slave.stop_at_once()
    damage(master)
    slave.start()
    await asyncio.sleep(5)
    assert len(group.coordinator.in_sync) == 1
    assert not slave.opened().damage.ranges
    store = master.opened()
    assert store.damage.suspects
    scrub = store.scrub()
    scrub.note(scrub.read_near(store.damage.suspects[0], 1_000))
    repair(master, slave)
    await group.settle()
    assert_alike(master, slave)


async def test_a_second_stream_of_a_slave_ends_the_first() -> None:
    group = await begun(AUTO_2)
    master, slave = group.replicas
    stream = group.network.connect(1, 0)
    leader = master.leader
    assert leader is not None
    described = slave.describe()
    serving = master.process.spawn(leader.serve(Hello(described), stream.far))
    await stream.near.receive()
    await stream.near.send(Report(1, described.end, described.end))
    await eventually(lambda: len(leader.in_sync.followers()) == 1 and not serving.done())
    await asyncio.sleep(TIMING.silence_ms / 1000 + 1)
    assert serving.done()  # this one said nothing more
    assert isinstance(serving.exception(), StreamBroken)
    await group.settle()  # and the slave has opened another


async def test_a_silent_master_is_left() -> None:
    group = await begun(AUTO_2)
    group.replicas[0].stop_at_once(silent=True)
    before = len(group.network._streams)
    await asyncio.sleep(TIMING.silence_ms / 1000 + 1)
    assert before == 1 and not group.network._streams


# ---- what ends a stream ----

GOOD_REPORT, GOOD_CHUNK = (
    Report(3, 150, 120),
    LogChunk(3, 100, b"123456789", 0xCBF43926, 90, 109, 0),
)


@pytest.mark.parametrize(
    "report",
    [
        replace(GOOD_REPORT, epoch=2),
        replace(GOOD_REPORT, written=201),
        replace(GOOD_REPORT, synced=151),
        replace(GOOD_REPORT, written=140),
        replace(GOOD_REPORT, synced=110),
    ],
)
def test_a_report_that_cannot_be_is_not_believed(report: Report) -> None:
    check = ReportCheck(3, 100)
    check.sent(200)
    check.check(GOOD_REPORT)
    check.check(GOOD_REPORT)
    with pytest.raises(StreamBroken):
        check.check(report)


@pytest.mark.parametrize(
    "chunk",
    [
        replace(GOOD_CHUNK, epoch=2),
        replace(GOOD_CHUNK, offset=109),
        replace(GOOD_CHUNK, data=b"123456780"),
        replace(GOOD_CHUNK, confirmed=89),
    ],
)
def test_a_chunk_that_cannot_be_is_not_taken_in(chunk: LogChunk) -> None:
    check = ChunkCheck(3)
    check.check(GOOD_CHUNK, 100)
    with pytest.raises(StreamBroken):
        check.check(chunk, 100)
