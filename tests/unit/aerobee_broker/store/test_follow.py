"""A replica's log is that of its master, byte for byte; it shows what is confirmed, and no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aerobee_broker.errors import (
    ChunkRefused,
    DiskFull,
    MessageCorrupted,
    NotMaster,
    StoreReadError,
)
from aerobee_broker.store.follow import HALT_QUEUE, PIECE_MS
from aerobee_broker.store.log import recent_writes
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewMessage
from aerobee_wire.status import Code
from support.clock.manual_clock import ManualClock
from support.disk.replicated import (
    confirm,
    derive_all,
    log_bytes,
    log_range,
    open_replica,
    promote,
    ship,
    ship_all,
    sync,
)
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import FIRST_FILE, SMALL, numbered_messages, open_store, send, visible

Two = tuple[MessageStore, SimulatedDisk, MessageStore, SimulatedDisk]


@pytest.fixture
def two() -> Two:
    """A master with 120 messages in several log files, and an empty replica."""
    disk, other = SimulatedDisk(), SimulatedDisk(1)
    master, replica = open_store(disk), open_replica(other)
    for n in range(0, 120, 8):
        send(master, numbered_messages(n, 8))
    return master, disk, replica, other


def twenty(master: MessageStore) -> int:
    """The end of the first 20 messages."""
    return master.units("a", 0, 10, 1)[0][0]


# ---- shipping ----


@pytest.mark.parametrize("max_bytes", [1, 300, 1_000, 5_000, 1 << 20])
def test_the_logs_are_alike_whatever_the_chunks(two: Two, max_bytes: int) -> None:
    master, disk, replica, other = two
    ship_all(master, replica, max_bytes)
    assert replica.end_offset == replica.flushed_offset == master.end_offset
    assert log_bytes(other) == log_bytes(disk)


def test_a_chunk_is_whole_records_of_one_file(two: Two) -> None:
    master, _, _, _ = two
    shipper = master.shipper()
    at, chunks = 0, []
    while (chunk := shipper.read(at, 2_000)) is not None:
        assert chunk.physical_offset == at
        assert chunk.end - 1 < at - at % SMALL.commit_log_file_size + SMALL.commit_log_file_size
        assert len(chunk.data) <= 2_000
        chunks.append(chunk)
        at = chunk.end
    shipper.close()
    assert at == master.written_offset
    with_blank = [chunk for chunk in chunks if chunk.end % SMALL.commit_log_file_size == 0]
    assert len(with_blank) == master.end_offset // SMALL.commit_log_file_size
    assert all(len(chunk.data) <= chunk.end - chunk.physical_offset for chunk in with_blank)


def test_one_record_is_shipped_however_large(two: Two) -> None:
    master, _, replica, _ = two
    ship_all(master, replica)
    send(master, [NewMessage("a", 0, b"x" * 2_000)])
    assert ship(master, replica, 100)
    assert replica.end_offset == master.end_offset


def test_nothing_behind_the_limit_is_shipped(two: Two) -> None:
    master, _, _, _ = two
    shipper = master.shipper()
    first = shipper.read(0, 1)
    assert first is not None
    limited = shipper.read(0, 1 << 20, limit=first.end)
    assert limited == first
    assert shipper.read(first.end, 1 << 20, limit=first.end) is None
    shipper.close()


def test_what_is_not_written_is_not_shipped(two: Two) -> None:
    master, _, replica, _ = two
    ship_all(master, replica)
    master.append(numbered_messages(500, 1))
    assert not ship(master, replica)
    master.flush.write()
    assert ship(master, replica)


def test_the_bytes_of_a_failed_write_are_never_shipped() -> None:
    """It spans two files, of which the first one takes its part: those places are given again."""
    disk, other = SimulatedDisk(), SimulatedDisk(1)
    options = replace(SMALL, commit_log_step=SMALL.commit_log_file_size)
    master, replica = open_store(disk, options), open_replica(other)
    send(master, numbered_messages(0, 2))
    written = master.written_offset
    master.append([NewMessage("a", 0, b"lost%d" % n * 300) for n in range(8)])
    assert master.end_offset > SMALL.commit_log_file_size
    disk.capacity = disk.used_bytes()
    with pytest.raises(DiskFull):
        master.flush.write()
    assert b"lost" in log_range(disk, 0, SMALL.commit_log_file_size), "a part of it was written"
    ship_all(master, replica)
    assert replica.end_offset == written
    disk.capacity = None
    send(master, numbered_messages(2, 30))
    ship_all(master, replica)
    assert log_bytes(other) == log_bytes(disk)
    assert not any(b"lost" in data for data in log_bytes(other).values())


def test_what_was_just_written_is_not_read_again(two: Two) -> None:
    """In several files: a write that spans two of them is two pieces."""
    master, disk, replica, other = two
    ship_all(master, replica)
    begin = master.end_offset
    for first in range(120, 144, 8):
        send(master, numbered_messages(first, 8))
    size = SMALL.commit_log_file_size
    assert master.end_offset // size > begin // size
    disk.fail_reads = lambda path: path.parent.name == "commitlog"
    ship_all(master, replica)
    assert log_bytes(other) == log_bytes(disk)


def test_what_was_written_longer_ago_is_read(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_writes, "MOST_WRITES", 2)
    master, disk, replica, other = two
    ship_all(master, replica)
    for first in range(120, 160, 4):
        send(master, numbered_messages(first, 4))
    ship_all(master, replica)
    assert log_bytes(other) == log_bytes(disk)


def test_damage_is_not_shipped(two: Two) -> None:
    master, disk, _, _ = two
    shipper = master.shipper()
    first = shipper.read(0, 1)
    assert first is not None
    disk.flip(FIRST_FILE, (first.end + 5) * 8)
    chunk = shipper.read(0, 1 << 20)
    assert chunk == first
    with pytest.raises(MessageCorrupted):
        shipper.read(first.end, 1 << 20)
    shipper.close()


def test_the_crc_of_what_lies_before_a_place_distinguishes_two_logs(two: Two) -> None:
    master, _, replica, other = two
    ship_all(master, replica)
    mine, theirs = master.shipper(), replica.shipper()
    for place in (1_000, SMALL.commit_log_file_size, master.end_offset):
        assert mine.crc(0, place) == theirs.crc(0, place)
    other.flip(FIRST_FILE, 999 * 8)
    assert mine.crc(0, 1_000) != theirs.crc(0, 1_000)
    mine.close()
    theirs.close()


# ---- following ----


def test_a_replica_refuses_what_does_not_follow_at_its_end(two: Two) -> None:
    master, _, replica, _ = two
    shipper = master.shipper()
    chunk = shipper.read(0, 2_000)
    assert chunk is not None
    for place, data in (
        (chunk.end, chunk.data),
        (0, chunk.data[:-1]),
        (0, bytes(chunk.data) + b"\0"),
        (0, b""),
        (0, bytes(200)),
        (0, chunk.data[200:]),
    ):
        with pytest.raises(ChunkRefused) as caught:
            replica.follower.append(place, data)
        assert caught.value.code is Code.SYSTEM_ERROR
    assert replica.end_offset == 0
    replica.follower.append(0, chunk.data)
    with pytest.raises(ChunkRefused):
        replica.follower.append(0, chunk.data)
    shipper.close()


def test_a_replica_takes_no_appends_and_a_master_no_chunks(two: Two) -> None:
    master, _, replica, _ = two
    with pytest.raises(NotMaster) as caught:
        replica.append(numbered_messages(0, 1))
    assert (caught.value.code, caught.value.retryable) == (Code.SERVICE_NOT_AVAILABLE, True)
    with pytest.raises(ChunkRefused):
        master.follower.append(master.end_offset, b"")


def test_only_what_is_confirmed_is_shown(two: Two) -> None:
    master, _, replica, _ = two
    ship_all(master, replica, 1_000)
    assert visible(replica) == {}
    confirm(replica, master.get(0).store_size)
    assert [len(messages) for messages in visible(replica).values()] == [1]
    confirm(replica, 1 << 40)
    assert visible(replica) == visible(master)
    assert [found.queue_offset for found in replica.query("a", "ID77", unique=True)] == [38]
    confirm(replica, 0)
    assert visible(replica) == visible(master), "the confirm offset never falls"


def test_small_pieces_are_derived_together(two: Two) -> None:
    master, _, replica, _ = two
    follower = replica.follower
    ship(master, replica, 1_000)
    follower.confirm(replica.end_offset, 100)
    assert follower.derive(100) == []
    assert follower.underived == replica.end_offset
    ship(master, replica, 1_000)
    follower.confirm(replica.end_offset, 105)
    arrivals = follower.derive(100 + PIECE_MS)
    assert follower.underived == 0
    assert {(arrival.queue_id, arrival.first_offset) for arrival in arrivals} == {(0, 0), (1, 0)}
    assert sum(arrival.max_offset for arrival in arrivals) * 20 == sum(
        len(arrival.units) for arrival in arrivals
    )
    assert follower.derive(1_000) == []
    ship(master, replica, 1_000)
    follower.confirm(replica.end_offset, 1_000)
    assert follower.derive(1_000) == []
    assert follower.derive(1_000, at_once=True)
    assert follower.underived == 0


def test_a_restarted_replica_shows_what_was_confirmed_and_goes_on(two: Two) -> None:
    master, disk, replica, other = two
    ship_all(master, replica, 3_000)
    confirm(replica, twenty(master))
    for n in (120, 121):  # the checkpoint hears of it with the next flush
        send(master, numbered_messages(n, 1))
        ship_all(master, replica)
    other = other.after_kill()
    replica = open_replica(other)
    assert replica.end_offset == replica.flushed_offset == master.end_offset
    assert sum(map(len, visible(replica).values())) == 20
    confirm(replica, replica.end_offset)
    assert visible(replica) == visible(master)
    assert log_bytes(other) == log_bytes(disk)


def test_a_replica_halts_behind_a_deletion(two: Two) -> None:
    """Nothing behind it counts as confirmed, here and after a kill, before it is told to go on."""
    master, _, replica, other = two
    topic, deletions = HALT_QUEUE
    send(master, [NewMessage(topic, 0, b"no deletion"), NewMessage(topic, deletions, b"one")])
    deleted_at = master.end_offset
    send(master, numbered_messages(120, 4))
    send(master, [NewMessage(topic, deletions, b"another")])
    ship_all(master, replica)
    follower = replica.follower
    confirm(replica, replica.end_offset)
    assert follower.halted
    assert replica.confirmed_offset == deleted_at
    assert follower.derive(1_000) == follower.derive(1_000, at_once=True) == []
    replica.maintain(0)
    while replica.maintain_files():
        pass
    other = other.after_kill()
    replica = open_replica(other)
    follower = replica.follower
    assert replica.confirmed_offset <= deleted_at
    confirm(replica, replica.end_offset)
    halts = []
    while follower.halted:
        halts.append(replica.confirmed_offset)
        follower.resume()
        derive_all(replica)
    assert halts[-1] == replica.end_offset
    assert set(halts[:-1]) <= {deleted_at}, "the first may be derived already"
    assert visible(replica) == visible(master)


def test_a_closed_replica_does_not_show_more_when_it_opens(two: Two) -> None:
    master, _, replica, other = two
    ship_all(master, replica)
    confirm(replica, twenty(master))
    replica.close()
    replica = open_replica(other.after_kill())
    assert sum(map(len, visible(replica).values())) == 20
    assert replica.end_offset == master.end_offset


def test_a_promoted_replica_goes_on_where_the_master_ended(two: Two) -> None:
    master, _, replica, _ = two
    ship_all(master, replica)
    promote(replica)
    assert visible(replica) == visible(master)
    places = [send(store, numbered_messages(120, 4)) for store in (master, replica)]
    assert places[0] == places[1]
    replica.flush.confirm(replica.end_offset)
    assert visible(replica) == visible(master)


def test_a_promoted_replica_whose_clock_is_behind_does_not_let_store_times_fall() -> None:
    disk, other = SimulatedDisk(), SimulatedDisk(1)
    ahead, behind = ManualClock(), ManualClock()
    ahead.advance(2_000)
    master, replica = open_store(disk, clock=ahead), open_replica(other, clock=behind)
    send(master, numbered_messages(0, 4))
    ship_all(master, replica)
    promote(replica)
    [stored] = replica.append(numbered_messages(4, 1))
    replica.flush.confirm(sync(replica))
    assert replica.get(stored.physical_offset).store_timestamp_ms == ahead.now_ms()
    behind.advance(3_000)
    [stored] = replica.append(numbered_messages(5, 1))
    replica.flush.confirm(sync(replica))
    assert replica.get(stored.physical_offset).store_timestamp_ms == behind.now_ms()


def test_without_replicas_a_store_that_had_some_shows_everything(two: Two) -> None:
    master, _, replica, other = two
    ship_all(master, replica)
    confirm(replica, twenty(master))
    store = open_store(other.after_kill())
    assert visible(store) == visible(master)


def test_a_full_or_failed_disk_stops_a_replica(two: Two) -> None:
    master, _, replica, other = two
    ship(master, replica, 3_000)
    end = replica.end_offset
    other.capacity = other.used_bytes() + 3 * SMALL.commit_log_step
    with pytest.raises(DiskFull):
        ship_all(master, replica, 3_000)
    replica.flush.roll_back()
    assert end < replica.end_offset == replica.written_offset
    other.capacity = None
    ship_all(master, replica)
    assert replica.end_offset == master.end_offset


def test_derived_files_that_cannot_be_read_are_reported(two: Two) -> None:
    master, _, replica, other = two
    ship_all(master, replica)
    replica.follower.confirm(replica.end_offset, 0)
    other.fail_reads = lambda path: path == FIRST_FILE
    with pytest.raises(StoreReadError):
        derive_all(replica)
    other.fail_reads = lambda path: False
    derive_all(replica)
    assert visible(replica) == visible(master)


# ---- a copy that begins later ----


def test_a_copy_goes_on_at_the_offsets_of_queues_whose_messages_have_expired() -> None:
    disk, other = SimulatedDisk(), SimulatedDisk(1)
    clock = ManualClock()
    options = replace(SMALL, retain_bytes=2 * SMALL.commit_log_file_size, clean_interval_ms=1)
    master = open_store(disk, options, clock)
    send(master, [NewMessage("old", 0, b"x" * 500) for _ in range(5)])
    for n in range(0, 200, 8):
        send(master, numbered_messages(n, 8))
        clock.advance(1_000)
        master.maintain(clock.now_ms())
        while master.maintain_files():
            pass
    low = master.min_physical_offset
    assert low > 0
    assert master.fronts() == {("old", 0): 5}
    replica = open_replica(other)
    replica.follower.begin_at(low, master.fronts())
    other = other.after_power_cut(7)
    replica = open_replica(other)
    assert replica.end_offset == replica.min_physical_offset == low
    assert replica.max_offset("old", 0) == replica.min_offset("old", 0) == 5
    ship_all(master, replica)
    confirm(replica, replica.end_offset)
    assert visible(replica) == visible(master)
    other = other.after_kill()
    replica = open_replica(other)
    promote(replica)
    assert [place.queue_offset for place in send(replica, [NewMessage("old", 0, b"y")])] == [5]


def test_a_copy_of_the_last_file_knows_where_queues_go_on_that_have_no_message_there(
    two: Two,
) -> None:
    master, _, replica, _ = two
    send(master, [NewMessage("old", 0, b"x")] * 5)
    behind = master.end_offset + SMALL.commit_log_file_size
    while master.end_offset < behind:
        send(master, [NewMessage("a", 0, b"x" * 1_000)] * 2)
    last = master.end_offset - master.end_offset % SMALL.commit_log_file_size
    assert master.fronts() == {}
    fronts = master.fronts(last)
    assert fronts == {("old", 0): 5, ("a", 1): 60}
    replica.follower.begin_at(last, fronts)
    ship_all(master, replica)
    confirm(replica, replica.end_offset)
    assert replica.max_offset("old", 0) == replica.min_offset("old", 0) == 5
    assert 0 < replica.min_offset("a", 0) < replica.max_offset("a", 0) == master.max_offset("a", 0)


def test_a_copy_begins_anew_only_while_it_has_no_record(two: Two) -> None:
    master, _, replica, _ = two
    size = SMALL.commit_log_file_size
    replica.follower.begin_at(size, {})
    replica.follower.begin_at(2 * size, {("b", 1): 3})
    ship(master, replica)
    with pytest.raises(ChunkRefused):
        replica.follower.begin_at(3 * size, {})
    assert replica.max_offset("b", 1) == 3


def test_a_topic_deleted_and_made_again_is_that_of_the_master(two: Two) -> None:
    master, _, replica, _ = two
    place = master.end_offset
    master.delete_topic("a")
    send(master, numbered_messages(200, 5))
    ship_all(master, replica)
    confirm(replica, place)
    assert replica.confirmed_offset == place
    replica.delete_topic("a", below=place)
    confirm(replica, replica.end_offset)
    assert visible(replica) == visible(master) != {}
