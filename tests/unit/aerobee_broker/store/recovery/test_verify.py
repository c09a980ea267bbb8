"""Damage of a replica's log that a start knows, and the check that finds it."""

from __future__ import annotations

import pytest

from aerobee_broker.store.damage import DamagedRange
from aerobee_broker.store.log.readable import PrivateReader
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.recovery.verify import boundary_before, verify_all
from support.disk.replicated import REPLICATED, confirm, open_replica, ship_all, sync
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import LOG, numbered_messages, open_store

SIZE = REPLICATED.commit_log_file_size


def replica_of(count: int) -> tuple[MessageStore, SimulatedDisk]:
    """A slave that has so many messages, confirmed."""
    master, disk = open_store(SimulatedDisk(), REPLICATED), SimulatedDisk()
    for at in range(0, count, 10):
        master.append(numbered_messages(at, 10))
        sync(master)
    replica = open_replica(disk)
    ship_all(master, replica)
    confirm(replica, master.end_offset)
    return replica, disk


def file_at(disk: SimulatedDisk, physical_offset: int) -> tuple[str, bytearray]:
    name = f"{physical_offset // SIZE * SIZE:020d}"
    return name, bytearray(disk.files()[LOG / name])


def overwrite(disk: SimulatedDisk, begin: int, data: bytes) -> None:
    """Within one file."""
    name, content = file_at(disk, begin)
    content[begin % SIZE : begin % SIZE + len(data)] = data
    disk.put(LOG / name, bytes(content))


def record_near(store: MessageStore, number: int) -> DamagedRange:
    """The record of a message of queue 0."""
    at, size, _ = store.units("a", 0, number, 1)[0]
    return DamagedRange(at, at + size)


@pytest.mark.parametrize("clean", [True, False])
def test_zeroed_tail_is_known_at_the_start(clean: bool) -> None:
    replica, disk = replica_of(60)
    end = replica.end_offset
    begin = record_near(replica, 28).begin
    replica.close() if clean else replica.abandon()
    disk = disk.after_kill()
    overwrite(disk, begin + 30, bytes(end - begin - 30))
    replica = open_replica(disk)
    assert replica.end_offset == end
    assert replica.damage.ranges == [DamagedRange(begin, end)]


@pytest.mark.parametrize("clean", [True, False])
def test_truncated_file_is_known_at_the_start(clean: bool) -> None:
    replica, disk = replica_of(60)
    end = replica.end_offset
    begin = record_near(replica, 28).begin
    replica.close() if clean else replica.abandon()
    disk = disk.after_kill()
    name, content = file_at(disk, begin)
    disk.put(LOG / name, bytes(content[: begin % SIZE + 30]))
    replica = open_replica(disk)
    assert replica.end_offset == end
    assert replica.damage.ranges == [DamagedRange(begin, end)]


@pytest.mark.parametrize("clean", [True, False])
def test_flipped_byte_near_the_end_is_known_at_the_start(clean: bool) -> None:
    replica, disk = replica_of(60)
    damaged = record_near(replica, 25)
    replica.close() if clean else replica.abandon()
    disk = disk.after_kill()
    disk.flip(LOG / f"{damaged.begin // SIZE * SIZE:020d}", (damaged.begin % SIZE + 100) * 8)
    replica = open_replica(disk)
    assert replica.damage.ranges == [damaged]


@pytest.mark.parametrize("seed", range(20))
def test_torn_tail_after_a_power_cut_is_no_damage(seed: int) -> None:
    replica, disk = replica_of(40)
    durable = replica.flushed_offset
    master = open_store(SimulatedDisk(), REPLICATED)
    for at in range(0, 60, 10):
        master.append(numbered_messages(at, 10))
        sync(master)
    shipper = master.shipper()
    while (chunk := shipper.read(replica.end_offset, SIZE)) is not None:
        replica.follower.append(chunk.physical_offset, chunk.data)
    replica.flush.seal()
    replica.flush.write_sealed()  # never synced
    replica = open_replica(disk.after_power_cut(seed))
    assert replica.end_offset >= durable
    assert replica.damage.ranges == []


def test_clean_replica_has_no_damage() -> None:
    replica, disk = replica_of(60)
    replica.close()
    replica = open_replica(disk.after_kill())
    assert replica.damage.ranges == []


def test_whole_log_is_verified_across_files() -> None:
    replica, disk = replica_of(200)
    first, last = record_near(replica, 3), record_near(replica, 90)
    for each in (first, last):
        disk.flip(LOG / f"{each.begin // SIZE * SIZE:020d}", (each.begin % SIZE + 100) * 8)
    log = PrivateReader(disk, replica._log)
    pieces = list(verify_all(log, 0, replica.end_offset))
    assert [piece.damaged for piece in pieces if piece.damaged] == [first, last]
    assert sum(piece.records for piece in pieces) == 198


@pytest.mark.parametrize("number", [0, 1, 7, 50])
def test_boundary_is_where_a_record_begins(number: int) -> None:
    replica, disk = replica_of(200)
    log = PrivateReader(disk, replica._log)
    found = record_near(replica, number)
    starts = {at for queue_id in (0, 1) for at, _, _ in replica.units("a", queue_id, 0, 100)}
    for place in (found.begin, found.end - 1):
        boundary = boundary_before(log, place)
        assert boundary in starts
        assert place // SIZE * SIZE <= boundary <= place


def test_boundary_lies_before_damage() -> None:
    replica, disk = replica_of(200)
    log = PrivateReader(disk, replica._log)
    found = record_near(replica, 7)
    begin = found.begin // SIZE * SIZE
    overwrite(disk, begin, bytes(found.end - begin))
    assert boundary_before(log, found.end - 1) == begin
