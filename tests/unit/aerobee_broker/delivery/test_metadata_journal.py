"""The metadata journal: a master's tables on a replica of its log, over simulated disks."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from aerobee_broker.commit.durable_log import DurableLog
from aerobee_broker.commit.group_commit import GroupCommit
from aerobee_broker.delivery.metadata_journal import unlogged_deletions
from aerobee_broker.delivery.metadata_replay import records_from
from aerobee_broker.disk import Disk
from aerobee_broker.metadata.journal_records import ParentCreation, TableChange, decode
from aerobee_broker.metadata.subscription_groups import SubscriptionGroup
from aerobee_broker.metadata.table_journal import TableUpkeep
from aerobee_broker.metadata.topics import TopicConfig, Topics
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewMessage
from aerobee_wire.checked_json import encode
from aerobee_wire.status import MqError
from aerobee_wire.topics import METADATA_CHANGE_QUEUE, METADATA_DELETION_QUEUE
from support.broker.replicas import ScriptedReplicas
from support.broker.tables import rows_in
from support.clock.manual_clock import ManualClock
from support.clock.virtual_loop import run_ready_tasks
from support.disk.replicated import REPLICATED, open_replica, ship_all
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import PATH, SMALL, open_store, send, visible
from support.replication.journalled_tables import FILES, ReplicaTables, on_the_spot

TOPICS_FILE = PATH / "config" / "topics.json"


def topics_on(disk: Disk) -> set[str]:
    """As a start finds them, before it applies the journal."""
    return set(rows_in(Topics(ManualClock()), disk, TOPICS_FILE))


class Master:
    """A master, and one replica, which has what `replicate` brought it."""

    def __init__(self, disk: SimulatedDisk | None = None) -> None:
        self.disk = disk or SimulatedDisk()
        self.clock = ManualClock()
        self.replicas = ScriptedReplicas()
        self.replicas.has = 1 << 40
        self.store = open_store(self.disk, REPLICATED, self.clock)
        self.commit = GroupCommit(
            self.store, on_the_spot, lambda arrivals: None, 5_000, replicas=self.replicas
        )
        self.log = DurableLog(self.store, self.commit)
        self.own = ReplicaTables(self.disk, self.store, self.clock, on_the_spot)
        self.upkeep = TableUpkeep(self.store, self.own.saved, self.clock)

    async def begin(self) -> Master:
        self.own.restore()
        self.own.derive_all()
        await self.own.lead(self.log)
        return self

    async def send(self, topic: str, count: int) -> None:
        for n in range(count):
            await self.log.put([NewMessage(topic, 0, b"%d of %s" % (n, topic.encode()))])

    def killed(self) -> Master:
        """Another process on the same disk."""
        return Master(self.disk.after_kill())


class Slave:
    def __init__(self, disk: SimulatedDisk | None = None) -> None:
        self.disk = disk or SimulatedDisk(1)
        self.store = open_replica(self.disk)
        self.own = ReplicaTables(self.disk, self.store, ManualClock(), on_the_spot)
        self.own.restore()

    def take(self, master: Master, *, at_most: int = 1 << 40) -> None:
        """What the master has confirmed, derived and applied as a slave does."""
        ship_all(master.store, self.store)
        follower = self.store.follower
        follower.confirm(min(master.store.confirmed_offset, at_most), 0)
        now_ms, goes_on = 1_000, True
        while goes_on:
            derived, halted = self.store.confirmed_offset, follower.halted
            now_ms += 1_000
            self.own.replay.arrived(follower.derive(now_ms))
            goes_on = halted or derived < self.store.confirmed_offset

    def killed(self) -> Slave:
        return Slave(self.disk.after_kill())


@pytest.fixture
async def master() -> Master:
    return await Master().begin()


def shown(store: MessageStore, topic: str) -> list[bytes]:
    return list(visible(store).get((topic, 0), {}).values())


async def test_each_change_is_on_the_replica(master: Master) -> None:
    own, slave = master.own, Slave()
    await own.put_topic(TopicConfig("t", 4, 4))
    await own.put_topic(TopicConfig("t", 8, 8))
    await own.put_group(SubscriptionGroup("g", retry_max_times=3))
    await own.put_group(SubscriptionGroup("h"))
    await own.reset("g", "t", 0, 5)
    own.tables.offsets.commit("h", "t", 1, 7)
    await own.saved.save()
    await own.delete_group("h")
    slave.take(master)
    assert slave.own.contents() == own.contents()
    assert slave.own.tables.topics.version == own.tables.topics.version
    assert own.contents()["offsets"] == {"t@g": {"0": 5}}


async def test_a_change_is_answered_and_in_its_file_once_it_is_confirmed(master: Master) -> None:
    own = master.own
    await own.put_topic(TopicConfig("first", 1, 1))
    before = topics_on(master.disk)
    master.replicas.has = master.store.end_offset
    putting = asyncio.create_task(own.put_topic(TopicConfig("second", 1, 1)))
    await run_ready_tasks()
    assert not putting.done()
    assert topics_on(master.disk) == before == {"first"}
    master.replicas.has = master.store.end_offset
    master.commit.advance()
    await putting
    assert topics_on(master.disk) == {"first", "second"}
    assert own.saved.files["topics"].position == master.store.end_offset


async def test_without_a_change_nothing_is_logged(master: Master) -> None:
    await master.own.put_topic(TopicConfig("t", 1, 1))
    await master.own.saved.save()
    end = master.store.end_offset
    master.own.tables.topics.touch()
    await master.own.saved.save()
    assert master.store.end_offset == end


async def test_a_deletion_counts_at_its_place(master: Master) -> None:
    """What lies before it goes, what lies behind it is the new topic's, from queue offset 0 on: on
    a replica that gets all of it at once, and on one that is killed in between."""
    own, slave, killed = master.own, Slave(), Slave(SimulatedDisk(2))
    await own.put_topic(TopicConfig("t", 1, 1))
    await own.reset("g", "t", 0, 2)
    await master.send("t", 3)
    killed.take(master)
    await own.delete_topic("t")
    await own.put_topic(TopicConfig("t", 1, 1))
    await master.send("t", 2)
    ship_all(master.store, killed.store)
    for at_most in range(killed.store.confirmed_offset, master.store.end_offset, 40):
        killed.take(master, at_most=at_most)
        killed.store.maintain(0)
        while killed.store.maintain_files():
            pass
        killed = killed.killed()
    for replica in (slave, killed):
        replica.take(master)
        assert replica.own.contents() == own.contents()
        assert shown(replica.store, "t") == [b"0 of t", b"1 of t"]
        assert visible(replica.store) == visible(master.store)
        assert replica.store.corruption_count == 0
    assert own.contents()["offsets"] == {}
    assert list(own.contents()["topics"]) == ["t"]


async def test_a_deletion_that_is_not_durable_on_a_replica_halts_it(master: Master) -> None:
    own, slave = master.own, Slave()
    await own.put_topic(TopicConfig("t", 1, 1))
    await master.send("t", 3)
    await own.delete_topic("t")
    await master.send("u", 1)
    slave.disk.fail_syncs = lambda path: path.name.startswith("deletedTopics.json")
    with pytest.raises(MqError):
        slave.take(master)
    assert slave.store.follower.halted
    assert not shown(slave.store, "u")
    slave.disk.fail_syncs = lambda path: False
    slave.take(master)
    assert visible(slave.store) == visible(master.store)
    assert slave.own.contents() == own.contents()


async def test_a_start_applies_what_the_files_lack(master: Master) -> None:
    own, slave = master.own, Slave()
    await own.put_topic(TopicConfig("t", 1, 1))
    slave.take(master)
    await slave.own.saved.save()
    await own.put_topic(TopicConfig("u", 1, 1))
    await own.delete_topic("t")
    await own.put_topic(TopicConfig("t", 2, 2))
    await own.reset("g", "t", 1, 0)
    slave.take(master)  # and its files are of before
    slave.store.maintain(0)
    while slave.store.maintain_files():
        pass
    again = slave.killed()
    again.take(master)
    assert again.own.contents() == own.contents()


async def test_what_the_log_rolls_back_is_logged_again(master: Master) -> None:
    own, slave = master.own, Slave()
    await own.put_topic(TopicConfig("t", 1, 1))
    await own.reset("g", "t", 0, 1)
    await master.send("t", 2)
    master.disk.capacity = master.disk.used_bytes() + SMALL.commit_log_file_size
    end, failed = master.store.end_offset, 0
    for n in range(60):
        try:
            await own.put_topic(TopicConfig(f"n{n}", 1, 1))
        except MqError:
            failed += 1
    assert failed
    assert master.store.end_offset > end, "the first ones had room"
    full, master.disk.capacity = master.disk.capacity, None
    deleting = asyncio.create_task(own.delete_topic("t"))
    await asyncio.sleep(0)  # the list of deleted topics has room, the log has none
    master.disk.capacity = full
    with pytest.raises(MqError):
        await deleting
    master.disk.capacity = None
    await own.put_topic(TopicConfig("last", 1, 1))
    await own.put_topic(TopicConfig("t", 3, 3))
    await master.send("t", 1)
    await own.saved.save()
    slave.take(master)
    assert slave.own.contents() == own.contents()
    assert len(own.contents()["topics"]) == 62
    assert visible(slave.store) == visible(master.store)
    assert shown(slave.store, "t") == [b"0 of t"]


async def test_a_deletion_whose_record_a_crash_has_lost_is_logged_at_the_next_start(
    master: Master,
) -> None:
    own, slave = master.own, Slave()
    await own.put_topic(TopicConfig("t", 1, 1))
    await master.send("t", 3)
    slave.take(master)
    master.store.delete_topic("t")  # and the process ends
    again = await master.killed().begin()
    assert again.store.deleted_at_end() == []
    await again.send("t", 1)
    slave.take(again)
    assert shown(slave.store, "t") == [b"0 of t"]
    await again.own.saved.save()
    slave.take(again)
    assert slave.own.contents() == again.own.contents()


async def test_the_creation_of_a_parent_that_the_log_loses_is_logged_again(master: Master) -> None:
    """Before its row: a replica derives the messages of a parent with other codes."""
    own = master.own
    assert own.journal is not None
    master.disk.capacity = master.disk.used_bytes()
    with suppress(MqError):
        for n in range(60):
            await own.put_topic(TopicConfig(f"n{n}", 1, 1))
    own.journal.create_parent("p")
    with pytest.raises(MqError):
        await own.put_topic(TopicConfig("p", 1, 1))
    master.disk.capacity = None
    await own.put_topic(TopicConfig("last", 1, 1))
    creations, rows = (
        [(message.physical_offset, decode(message.body)) for message in records]
        for records in (
            records_from(master.store, queue_id, 0)
            for queue_id in (METADATA_DELETION_QUEUE, METADATA_CHANGE_QUEUE)
        )
    )
    [(place, creation)] = creations
    assert creation == ParentCreation("p")
    assert place < min(at for at, row in rows if isinstance(row, TableChange) and "p" in row.put)


async def test_a_deletion_that_is_not_logged_is_found_behind_other_records(master: Master) -> None:
    """A full disk has taken back its record, and others were written before it was logged again."""
    own, slave = master.own, Slave()
    for topic in ("t", "u"):
        await own.put_topic(TopicConfig(topic, 1, 1))
        await master.send(topic, 3)
    await own.delete_topic("u")
    slave.take(master)
    assert unlogged_deletions(master.store) == unlogged_deletions(slave.store) == []
    master.store.delete_topic("t")
    await master.send("u", 2)
    killed = master.killed()
    killed.own.restore()
    killed.own.derive_all()
    assert unlogged_deletions(killed.store) == ["t"]
    again = await master.killed().begin()
    await again.send("u", 1)
    assert unlogged_deletions(again.store) == []
    slave.take(again)
    assert not shown(slave.store, "t")
    assert visible(slave.store) == visible(again.store)


async def test_a_deletion_from_before_the_journal_is_not_logged_over_newer_messages() -> None:
    alone = open_store()
    for _ in range(2):
        send(alone, [NewMessage("t", 0, b"x")])
        alone.delete_topic("t")
    assert unlogged_deletions(alone) == ["t"]
    send(alone, [NewMessage("t", 0, b"of another topic")])
    assert unlogged_deletions(alone) == []


async def test_a_store_that_had_no_journal_gets_all_of_its_tables_into_one() -> None:
    disk = SimulatedDisk()
    alone = Master(disk)
    alone.store.flush.write()
    alone.own.load()
    for name, table in alone.own.tables.by_name().items():
        table.touch()
        file = alone.own.saved.files[name]
        assert file.position is None
    alone.own.tables.topics.put(TopicConfig("from before", 2, 2))
    alone.own.tables.offsets.commit("g", "from before", 0, 4)
    for name, table in alone.own.tables.by_name().items():
        path = PATH / "config" / FILES[name]
        file_ = disk.open(path, create=True)
        file_.pwrite(encode(table.to_json()), 0)
        file_.sync()
        disk.sync_directory(path.parent)
    master, slave = await Master(disk.after_kill()).begin(), Slave()
    slave.own.tables.topics.put(TopicConfig("of another time", 1, 1))
    master.own.tables.topics.touch()
    master.own.tables.offsets.touch()
    await master.own.saved.save()
    slave.take(master)
    assert slave.own.contents() == master.own.contents()
    assert slave.own.contents()["offsets"] == {"from before@g": {"0": 4}}


async def test_an_unreadable_record_is_reported_and_left_out(master: Master) -> None:
    slave = Slave()
    await master.own.put_topic(TopicConfig("t", 1, 1))
    await master.log.put([NewMessage("rmq_sys_METADATA_LOG", 0, b"[]")])
    await master.log.put([NewMessage("rmq_sys_METADATA_LOG", 1, b'{"kind":"deleteTopic"}')])
    await master.own.put_topic(TopicConfig("u", 1, 1))
    slave.take(master)
    assert slave.own.contents() == master.own.contents()


async def test_retention_keeps_what_a_file_lacks_and_has_it_written(master: Master) -> None:
    own = master.own
    await own.put_topic(TopicConfig("t", 1, 1))
    await own.put_group(SubscriptionGroup("g"))
    await own.saved.save()
    low = own.saved.needed_from()
    await master.send("t", 100)
    assert own.saved.needed_from() == low
    await master.upkeep.save()
    assert own.saved.needed_from() == low, "nothing wants these files"
    master.clock.advance(3_600_000)
    await master.upkeep.save()
    assert own.saved.needed_from() == master.store.end_offset


async def test_a_failed_disk_ends_the_wait(master: Master) -> None:
    master.disk.fail_syncs = lambda path: path.parent.name == "commitlog"
    with pytest.raises(MqError):
        await master.own.put_topic(TopicConfig("t", 1, 1))
    assert master.store.flush.read_only_reason
