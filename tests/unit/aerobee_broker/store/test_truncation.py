"""A log is cut where it leaves that of the master; what is cut is kept, and does not return."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_broker.errors import CutRefused, StoreReadOnly
from aerobee_broker.store.messages import NewMessage
from aerobee_broker.store.truncation import Cut
from support.disk.replicated import (
    DIVERGED,
    confirm,
    log_bytes,
    log_range,
    open_replica,
    promote,
    ship_all,
    sync,
)
from support.disk.simulated_disk import PowerCut, SimulatedDisk
from support.disk.stores import SMALL, numbered_messages, open_store, send, visible

SIZE = SMALL.commit_log_file_size


class Diverged:
    """A replica that was master for a while: `own` bytes of its log from `agreed` on are its own.
    The master has other messages there.
    """

    def __init__(self, *, own: int = 60, seed: int = 1, shown: bool = False) -> None:
        self.master_disk, self.disk = SimulatedDisk(), SimulatedDisk(seed)
        self.master, replica = open_store(self.master_disk), open_replica(self.disk)
        send(self.master, numbered_messages(0, 50))
        ship_all(self.master, replica)
        self.agreed = self.master.end_offset
        promote(replica)
        for n in range(0, own, 4):
            replica.append([NewMessage("a", 1, b"own %d|" % m * 40) for m in range(n, n + 4)])
            flushed = sync(replica)
            if shown:
                replica.flush.confirm(flushed)
        self.end = replica.end_offset
        self.tail = log_range(self.disk, self.agreed, self.end)
        send(self.master, numbered_messages(50, 70))
        self.disk = self.disk.after_kill()
        self.replica = open_replica(self.disk)

    def copies(self) -> list[Path]:
        return [path for path in self.disk.files() if path.parent == DIVERGED]

    def follow(self) -> None:
        """The replica gets the log of the master, and shows it."""
        ship_all(self.master, self.replica, 3_000)
        confirm(self.replica, self.replica.end_offset)
        assert log_bytes(self.disk) == log_bytes(self.master_disk)
        assert visible(self.replica) == visible(self.master)
        assert self.replica.corruption_count == 0


@pytest.mark.parametrize("own", [4, 60, 200])
def test_what_is_cut_is_kept_and_the_log_goes_on_as_the_masters(own: int) -> None:
    there = Diverged(own=own)
    path = DIVERGED / f"3-{there.agreed}.log"
    assert there.replica.cut(there.agreed, 3) == Cut(there.agreed, there.end, path, False)
    assert there.copies() == [path]
    assert there.disk.files()[path] == there.tail
    assert there.replica.end_offset == there.replica.flushed_offset == there.agreed
    assert not any(log_range(there.disk, there.agreed, there.agreed + 3 * SIZE))
    there.follow()


def test_nothing_is_cut_at_the_end() -> None:
    there = Diverged()
    assert there.replica.cut(there.end, 3) == Cut(there.end, there.end, None, False)
    assert there.copies() == []


def test_a_cut_outside_of_the_log_is_refused() -> None:
    there = Diverged()
    with pytest.raises(CutRefused):
        there.replica.cut(there.end + 1, 3)
    with pytest.raises(CutRefused):
        there.replica.cut(-1, 3)


def test_a_store_with_appends_of_its_own_is_not_cut() -> None:
    """Their units are in memory: it is opened anew first."""
    there = Diverged()
    promote(there.replica)
    there.replica.append(numbered_messages(500, 1))
    with pytest.raises(CutRefused):
        there.replica.cut(there.agreed, 3)
    sync(there.replica)
    with pytest.raises(CutRefused):
        there.replica.cut(there.agreed, 3)


def test_after_a_cut_to_its_begin_a_log_still_begins_there() -> None:
    disk = SimulatedDisk()
    store = open_replica(disk)
    store.follower.begin_at(SIZE, {})
    promote(store)
    store.append(numbered_messages(0, 4))
    sync(store)
    disk = disk.after_kill()
    store = open_replica(disk)
    store.cut(SIZE, 1)
    disk = disk.after_power_cut(3)
    store = open_replica(disk)
    assert store.end_offset == store.min_physical_offset == SIZE


@pytest.mark.parametrize("shown", [60, 300])
def test_a_cut_of_what_was_shown_rebuilds_queues_and_index(shown: int) -> None:
    there = Diverged(own=shown, shown=True)
    confirmed = there.replica.max_offset("a", 1)
    assert confirmed > 25
    cut = there.replica.cut(there.agreed, 3)
    assert cut.confirmed
    with pytest.raises(StoreReadOnly):
        there.replica.append(numbered_messages(0, 1))
    there.disk = there.disk.after_kill()
    there.replica = open_replica(there.disk)
    assert there.replica.max_offset("a", 1) == 25
    there.follow()
    assert len(there.replica.query("a", "ID60", unique=True)) == 1


def keep_cutting(there: Diverged, crash_at: int) -> int:
    """Cuts until it is done; the power goes in call `crash_at` of the disk, once. Returns how many
    times the power went."""
    there.disk.crash_at = there.disk.steps + crash_at
    try:
        there.replica.cut(there.agreed, 3)
    except PowerCut:
        there.disk = there.disk.after_power_cut(crash_at)
        there.replica = open_replica(there.disk)
        assert there.replica.corruption_count == 0, "a cut is no damage"
        assert there.replica.end_offset >= there.agreed
        there.replica.cut(there.agreed, 3)
        return 1
    there.disk.crash_at = None
    return 0


def test_a_power_cut_anywhere_in_a_cut_loses_nothing_of_either() -> None:
    """Each call of the disk, with sectors torn in several ways."""
    cuts = 0
    for seed in range(3):
        for crash_at in range(1, 40):
            there = Diverged(own=60, seed=seed)
            cuts += keep_cutting(there, crash_at)
            copies = [bytes(there.disk.files()[path]) for path in there.copies()]
            assert there.tail in copies
            there.follow()
            there.disk = there.disk.after_power_cut(crash_at)
            there.replica = open_replica(there.disk)
            there.follow()
    assert cuts > 20


def test_bytes_behind_a_cut_never_come_back_after_a_power_cut() -> None:
    """The master's record ends inside of a page that held records of the replica."""
    for seed in range(20):
        there = Diverged(own=40, seed=seed)
        there.replica.cut(there.agreed, 3)
        shipper = there.master.shipper()
        chunk = shipper.read(there.agreed, 1)
        shipper.close()
        assert chunk is not None
        there.replica.follower.append(there.agreed, chunk.data)
        sync(there.replica)
        there.disk = there.disk.after_power_cut(seed)
        there.replica = open_replica(there.disk)
        assert there.replica.end_offset == chunk.end
