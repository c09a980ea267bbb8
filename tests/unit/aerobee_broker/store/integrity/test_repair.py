"""A repaired log is that of the other replica, byte for byte, and shows the same messages."""

from __future__ import annotations

from random import Random

import pytest

from aerobee_broker.errors import ChunkRefused, MessageCorrupted, RepairPending
from aerobee_broker.store.damage import DamagedRange
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.ship import Chunk
from support.clock.manual_clock import ManualClock
from support.disk.damage import (
    add,
    chunks_of,
    cut_short,
    flip,
    master_of,
    overwrite,
    record_at,
    reopened,
    replica_of,
)
from support.disk.replicated import (
    REPLICATED,
    confirm,
    derive_all,
    log_bytes,
    open_replica,
    ship_all,
)
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import PATH, open_store, upkeep, visible

PIECE = 1_000


def scrub(store: MessageStore) -> None:
    round_ = store.scrub()
    round_.begin()
    while not round_.is_done:
        round_.take(round_.read(PIECE))


def repair(replica: MessageStore, master: MessageStore) -> None:
    for damaged in replica.damage.ranges:
        chunks = chunks_of(master, damaged, 700)
        replica.repair.write(chunks)
        replica.repair.settle(chunks)


@pytest.mark.parametrize("seed", range(30))
def test_damage_that_the_scrub_finds_is_repaired_in_place(seed: int) -> None:
    rng = Random(seed)
    master, its_disk = master_of(300)
    replica, disk = replica_of(master)
    for _ in range(rng.randint(1, 8)):
        damaged = record_at(replica, rng.randrange(150), rng.randrange(2))
        at = damaged.begin + rng.randrange(damaged.size)
        flip(disk, at) if rng.random() < 0.6 else overwrite(disk, damaged.begin, bytes(90))
    before = visible(master)
    scrub(replica)
    assert replica.damage.ranges
    repair(replica, master)
    assert replica.damage.ranges == []
    assert log_bytes(disk) == log_bytes(its_disk)
    scrub(replica)
    assert replica.damage.ranges == []
    assert visible(replica) == before


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", ["zeroed", "truncated"])
def test_lost_tail_comes_back_with_its_messages(clean: bool, how: str) -> None:
    master, its_disk = master_of(100)
    replica, disk = reopened(*replica_of(master), clean=clean)
    begin, end = record_at(master, 40).begin + 40, replica.end_offset
    if how == "zeroed":
        for at in range(begin, end, 100):  # over a file's end
            overwrite(disk, at, bytes(min(100, end - at, 8_192 - at % 8_192)))
    else:
        cut_short(disk, max(begin, (end - 1) // 8_192 * 8_192 + 20))
    replica = open_replica(disk)
    assert replica.damage.ranges
    add(master, 100, 20)
    ship_all(master, replica)
    confirm(replica, master.end_offset)
    repair(replica, master)
    confirm(replica, master.end_offset)
    assert log_bytes(disk) == log_bytes(its_disk)
    assert visible(replica) == visible(master)
    assert replica.query("a", "ID99", unique=True)


def test_nothing_behind_damage_is_shown_before_the_repair() -> None:
    master, _ = master_of(100)
    replica, disk = reopened(*replica_of(master))
    damaged = record_at(master, 20)
    flip(disk, damaged.begin + 100)
    disk.remove(PATH / "checkpoint")
    replica = open_replica(disk)
    confirm(replica, master.end_offset)
    assert replica.max_offset("a", 0) == 20
    repair(replica, master)
    confirm(replica, master.end_offset)
    assert visible(replica) == visible(master)


def test_replica_that_leads_with_damage_gets_its_messages_later() -> None:
    master, _ = master_of(100)
    replica, disk = reopened(*replica_of(master))
    damaged = record_at(master, 20)
    overwrite(disk, damaged.begin, bytes(damaged.size))
    disk.remove(PATH / "checkpoint")
    replica = open_replica(disk)
    replica.follower.confirm(replica.end_offset, 0)
    replica.follower.derive_over_damage()
    derive_all(replica)
    replica.flush.open_to_appends()
    assert 20 not in visible(replica)["a", 0]
    assert replica.max_offset("a", 0) == 50
    replica.enable_read_retries()
    with pytest.raises(RepairPending):  # its unit has the offset of a later record
        replica.read("a", 0, 20)
    with pytest.raises(RepairPending):
        replica.get(*replica.units("a", 0, 20, 1)[0][:2])
    repair(replica, master)
    assert visible(replica) == visible(master)
    assert replica.query("a", "ID40", unique=True)
    upkeep(replica, ManualClock())
    replica.close()
    replica = open_store(disk, REPLICATED)  # the index is built again, in order
    assert replica.query("a", "ID40", unique=True)
    assert visible(replica) == visible(master)


def test_bytes_that_are_not_whole_records_are_never_written() -> None:
    master, _ = master_of(100)
    replica, disk = replica_of(master)
    damaged = record_at(replica, 20)
    flip(disk, damaged.begin + 100)
    scrub(replica)
    before = log_bytes(disk)
    [chunk] = chunks_of(master, damaged)
    spoilt = bytearray(chunk.data)
    spoilt[120] ^= 1
    elsewhere = record_at(replica, 21)
    [other] = chunks_of(master, elsewhere)
    for bad in (
        Chunk(damaged.begin, bytes(spoilt), damaged.end),
        Chunk(damaged.begin, chunk.data[:-1], damaged.end),
        Chunk(damaged.begin, other.data, damaged.end),
        other,
    ):
        with pytest.raises(ChunkRefused):
            replica.repair.write([bad])
    assert log_bytes(disk) == before
    assert replica.damage.ranges == [damaged]


def test_damaged_record_never_leaves_for_another_replica() -> None:
    master, disk = master_of(100)
    damaged = record_at(master, 20)
    flip(disk, damaged.begin + 100)
    replica = open_replica(SimulatedDisk())
    with pytest.raises(MessageCorrupted):
        ship_all(master, replica)
    assert replica.end_offset == damaged.begin
    assert damaged.begin in master.damage.suspects
    assert replica.damage.ranges == []
    with pytest.raises(MessageCorrupted):
        chunks_of(master, DamagedRange(damaged.begin, damaged.end))
