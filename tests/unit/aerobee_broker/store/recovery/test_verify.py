"""Damage of a replica's log that a start knows, and the check that finds it."""

from __future__ import annotations

import pytest

from aerobee_broker.store.damage import DamagedRange
from aerobee_broker.store.log.commit_log import PrivateReader
from aerobee_broker.store.recovery.scan import boundary_before, verify_all
from support.disk.damage import (
    SIZE,
    cut_short,
    flip,
    master_of,
    overwrite,
    record_at,
    reopened,
    replica_of,
)
from support.disk.replicated import open_replica


@pytest.mark.parametrize("clean", [True, False])
def test_zeroed_tail_is_known_at_the_start(clean: bool) -> None:
    master, _ = master_of(60)
    _, disk = reopened(*replica_of(master), clean=clean)
    begin, end = record_at(master, 28).begin, master.end_offset
    overwrite(disk, begin + 30, bytes(end - begin - 30))
    replica = open_replica(disk)
    assert replica.end_offset == end
    assert replica.damage.ranges == [DamagedRange(begin, end)]


@pytest.mark.parametrize("clean", [True, False])
def test_truncated_file_is_known_at_the_start(clean: bool) -> None:
    master, _ = master_of(60)
    _, disk = reopened(*replica_of(master), clean=clean)
    begin, end = record_at(master, 28).begin, master.end_offset
    cut_short(disk, begin + 30)
    replica = open_replica(disk)
    assert replica.end_offset == end
    assert replica.damage.ranges == [DamagedRange(begin, end)]


@pytest.mark.parametrize("clean", [True, False])
def test_flipped_byte_near_the_end_is_known_at_the_start(clean: bool) -> None:
    master, _ = master_of(60)
    _, disk = reopened(*replica_of(master), clean=clean)
    damaged = record_at(master, 25)
    flip(disk, damaged.begin + 100)
    replica = open_replica(disk)
    assert replica.damage.ranges == [damaged]


@pytest.mark.parametrize("seed", range(20))
def test_torn_tail_after_a_power_cut_is_no_damage(seed: int) -> None:
    master, _ = master_of(60)
    replica, disk = replica_of(master_of(40)[0])
    durable = replica.flushed_offset
    shipper = master.shipper()
    while (chunk := shipper.read(replica.end_offset, SIZE)) is not None:
        replica.follower.append(chunk.physical_offset, chunk.data)
    replica.flush.seal()
    replica.flush.write_sealed()  # never synced
    replica = open_replica(disk.after_power_cut(seed))
    assert replica.end_offset >= durable
    assert replica.damage.ranges == []


def test_clean_replica_has_no_damage() -> None:
    _, disk = reopened(*replica_of(master_of(60)[0]), clean=True)
    assert open_replica(disk).damage.ranges == []


def test_whole_log_is_verified_across_files() -> None:
    replica, disk = replica_of(master_of(200)[0])
    first, last = record_at(replica, 3), record_at(replica, 90)
    for each in (first, last):
        flip(disk, each.begin + 100)
    log = PrivateReader(disk, replica._log)
    pieces = list(verify_all(log, 0, replica.end_offset))
    assert [piece.damaged for piece in pieces if piece.damaged] == [first, last]
    assert sum(piece.records for piece in pieces) == 198


@pytest.mark.parametrize("number", [0, 1, 7, 50])
def test_boundary_is_where_a_record_begins(number: int) -> None:
    replica, disk = replica_of(master_of(200)[0])
    log = PrivateReader(disk, replica._log)
    found = record_at(replica, number)
    starts = {at for queue_id in (0, 1) for at, _, _ in replica.units("a", queue_id, 0, 100)}
    for place in (found.begin, found.end - 1):
        boundary = boundary_before(log, place)
        assert boundary in starts
        assert place // SIZE * SIZE <= boundary <= place


def test_boundary_lies_before_damage() -> None:
    replica, disk = replica_of(master_of(200)[0])
    log = PrivateReader(disk, replica._log)
    found = record_at(replica, 7)
    begin = found.begin // SIZE * SIZE
    overwrite(disk, begin, bytes(found.end - begin))
    assert boundary_before(log, found.end - 1) == begin
