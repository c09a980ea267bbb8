"""Epochs of a log: a value, and its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_broker.disk import read_file, replace_file
from aerobee_broker.errors import ConfigFileDamaged
from aerobee_broker.replication.in_sync.quorum import Quorum
from aerobee_broker.replication.log.epochs import (
    NUMBERS,
    EpochEntry,
    EpochFile,
    EpochHistory,
    promotion_epoch,
)
from aerobee_wire.checked_json import decode, encode
from aerobee_wire.epochs import PROMOTION_STEP
from support.disk.simulated_disk import PowerCut, SimulatedDisk

FILE = Path("/data/config/epochs.json")
A, B, C = "a" * 16, "b" * 16, "c" * 16
ORIGIN = EpochEntry(0, A, 0)
HISTORY = EpochHistory().begin(1, A, 0).begin(2, B, 100).begin(4, A, 250)


def test_an_epoch_ends_where_the_next_begins_or_with_the_log() -> None:
    assert HISTORY.end_of(1, 300) == 100
    assert HISTORY.end_of(2, 300) == 250
    assert HISTORY.end_of(4, 300) == 300


def test_an_epoch_of_a_master_that_is_being_copied_ends_with_the_log_at_most() -> None:
    assert HISTORY.end_of(2, 120) == 120
    assert HISTORY.end_of(4, 120) == 120
    with pytest.raises(KeyError):
        HISTORY.end_of(3, 300)


def test_an_epoch_counts_when_the_log_has_reached_its_begin() -> None:
    copied = EpochHistory((EpochEntry(0, A, 0), EpochEntry(1, A, 100), EpochEntry(3, B, 500)), 7)
    reaches = [copied.reach(end) for end in (0, 99, 100, 499, 500, 900)]
    assert reaches == [(0, 0), (0, 99), (1, 100), (1, 499), (3, 500), (3, 900)]
    assert EpochHistory((), 7).reach(300) == (0, 300)


def test_of_epochs_with_one_start_only_the_last_counts() -> None:
    history = HISTORY.begin(5, B, 250).begin(6, C, 250)
    assert [entry.epoch for entry in history.entries] == [0, 1, 2, 6]
    assert history.highest == 6


def test_a_promotion_is_above_all_that_a_master_reaches_by_its_own_starts() -> None:
    assert promotion_epoch(1, 1) == promotion_epoch(PROMOTION_STEP - 1, 1) == PROMOTION_STEP
    assert promotion_epoch(PROMOTION_STEP, 2) == promotion_epoch(PROMOTION_STEP + 7, 2)
    assert promotion_epoch(PROMOTION_STEP, 2) == 2 * PROMOTION_STEP


def test_promotions_of_two_replicas_never_take_one_epoch() -> None:
    highest = (0, 1, PROMOTION_STEP, 3 * PROMOTION_STEP + 5, 64 * PROMOTION_STEP)
    taken = [{promotion_epoch(each, number) for each in highest} for number in range(NUMBERS)]
    assert all(promotion_epoch(each, 5) > each for each in highest)
    assert all(epoch % PROMOTION_STEP == 0 for epochs in taken for epoch in epochs)
    assert len(set.union(*taken)) == sum(map(len, taken))


def test_a_new_master_drops_epochs_that_begin_at_or_behind_the_end_of_its_log() -> None:
    assert [entry.epoch for entry in HISTORY.begin(5, B, 251).entries] == [0, 1, 2, 4, 5]
    assert [entry.epoch for entry in HISTORY.begin(5, B, 250).entries] == [0, 1, 2, 5]
    assert [entry.epoch for entry in HISTORY.begin(5, B, 0).entries] == [0, 5]


def test_the_origin_of_a_log_stays_when_its_first_epoch_had_no_byte() -> None:
    history = EpochHistory().begin(1, A, 0).begin(2, B, 0)
    assert history.entries == (ORIGIN, EpochEntry(2, B, 0))
    assert history.newest_common(EpochHistory().begin(1, A, 0)) == ORIGIN
    assert history.end_of(0, 7) == 0


def test_a_master_takes_only_an_epoch_above_all_that_it_has_heard_of() -> None:
    history = HISTORY.note(7)
    assert history.entries == HISTORY.entries
    with pytest.raises(ValueError):
        history.begin(7, C, 300)
    assert history.begin(8, C, 300).newest_epoch == 8
    assert history.note(3).highest == 7


def test_a_slave_adopts_all_entries_of_its_master_and_forgets_no_epoch() -> None:
    adopted = EpochHistory().begin(9, C, 40).adopt(HISTORY.entries)
    assert adopted.entries == HISTORY.entries
    assert adopted.highest == 9


def test_the_newest_common_entry_has_one_epoch_one_store_and_one_start() -> None:
    other = EpochHistory().begin(1, A, 0).begin(2, C, 100).begin(3, B, 200).begin(4, A, 260)
    assert HISTORY.newest_common(other) == EpochEntry(1, A, 0)
    assert HISTORY.newest_common(EpochHistory()) is None


@pytest.mark.parametrize(
    ("entries", "highest"),
    [
        ((ORIGIN, EpochEntry(2, A, 0), EpochEntry(2, A, 5)), 2),
        ((ORIGIN, EpochEntry(1, A, 5), EpochEntry(2, A, 5)), 2),
        ((ORIGIN, EpochEntry(1, A, -1)), 2),
        ((EpochEntry(0, A, 5),), 2),
        ((EpochEntry(1, A, 0),), 2),
        ((ORIGIN, EpochEntry(2, A, 5)), 1),
    ],
)
def test_entries_that_are_no_history_are_refused(
    entries: tuple[EpochEntry, ...], highest: int
) -> None:
    with pytest.raises(ValueError):
        EpochHistory(entries, highest)


def test_the_file_holds_what_was_saved() -> None:
    disk = SimulatedDisk(0)
    file = EpochFile(disk, FILE)
    assert file.load() == EpochHistory()
    file.save(HISTORY.note(9))
    assert file.load() == HISTORY.note(9)


def test_the_file_holds_the_quorums_and_one_of_an_older_version_has_none() -> None:
    disk = SimulatedDisk(1)
    history = EpochHistory().begin(1, A, 0, Quorum(3, 2)).settle(1)
    EpochFile(disk, FILE).save(history)
    assert EpochFile(disk.after_power_cut(1), FILE).load() == history
    content = decode(read_file(disk, FILE))
    del content["settledEpoch"]
    for entry in content["epochs"]:
        entry.pop("copies", None)
        entry.pop("required", None)
    replace_file(disk, FILE, encode(content))
    found = EpochFile(disk, FILE).load()
    assert (found.quorums, found.settled) == ((), 0)
    assert found.newest_common(history) == EpochEntry(1, A, 0)


def test_the_quorums_from_the_newest_settled_epoch_on_count() -> None:
    history = EpochHistory().begin(1, A, 0, Quorum(3, 3)).begin(2, A, 10, Quorum(3, 2))
    assert history.quorums == (Quorum(3, 3), Quorum(3, 2))
    assert not history.can_settle(2, 10) and not history.can_settle(1, 20)
    assert history.can_settle(2, 11)
    settled = history.settle(2)
    assert settled.quorums == (Quorum(3, 2),)
    later = settled.note(7).begin(9, A, 20, Quorum(3, 3))
    assert later.quorums == (Quorum(3, 2), Quorum(3, 3))
    assert not EpochHistory().can_settle(0, 1)


def test_a_slave_keeps_the_quorums_that_its_master_does_not_know() -> None:
    """The master is of an older version."""
    history = EpochHistory().begin(1, A, 0, Quorum(3, 2))
    forgotten = [entry._replace(quorum=None) for entry in history.entries]
    assert history.adopt(forgotten) == history
    newer = history.adopt([*forgotten, EpochEntry(2, B, 10)])
    assert newer.quorums == (Quorum(3, 2),)


def test_a_saved_history_survives_a_power_cut_at_every_step_of_the_next_save() -> None:
    outcomes = set()
    for step in range(1, 12):
        disk = SimulatedDisk(step)
        EpochFile(disk, FILE).save(HISTORY)
        disk.crash_at = disk.steps + step
        try:
            EpochFile(disk, FILE).save(HISTORY.note(9))
        except PowerCut:
            for seed in range(20):
                found = EpochFile(disk.after_power_cut(seed), FILE).load()
                assert found in (HISTORY, HISTORY.note(9))
                outcomes.add(found.highest)
        else:
            assert EpochFile(disk.after_power_cut(0), FILE).load() == HISTORY.note(9)
    assert outcomes == {4, 9}


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{}",
        encode({"highestEpoch": -1, "epochs": [{"epoch": 0, "storeId": A, "start": 0}]}),
        encode({"highestEpoch": 1, "epochs": [{"epoch": 0, "start": 0}]}),
        encode({"highestEpoch": 1, "epochs": None}),
    ],
)
def test_a_damaged_file_is_not_taken_for_none(damage: bytes) -> None:
    disk = SimulatedDisk(0)
    disk.make_directory(FILE.parent)
    disk.open(FILE, create=True).pwrite(damage, 0)
    with pytest.raises(ConfigFileDamaged):
        EpochFile(disk, FILE).load()


def test_every_flipped_bit_is_found() -> None:
    disk = SimulatedDisk(0)
    EpochFile(disk, FILE).save(HISTORY)
    file = disk.open(FILE)
    for bit in range(8 * file.size()):
        byte = file.pread(1, bit // 8)[0]
        file.pwrite(bytes([byte ^ (1 << bit % 8)]), bit // 8)
        try:
            loaded = EpochFile(disk, FILE).load()
        except ConfigFileDamaged:
            pass
        else:  # a flip of white space
            assert loaded == HISTORY
        file.pwrite(bytes([byte]), bit // 8)


def test_requirement_of_an_epoch_without_a_byte_counts_until_one_is_settled() -> None:
    """Other replicas know that epoch, and rely on its quorum in a promotion."""
    strict, loose = Quorum(3, 2), Quorum(3, 1)
    history = EpochHistory().begin(1, A, 0, strict).begin(2, A, 0, loose).begin(3, A, 0, loose)
    assert set(history.quorums) == {strict, loose}
    follower = EpochHistory().begin(1, A, 0, strict).adopt(history.entries)
    assert set(follower.quorums) == {strict, loose}
    disk = SimulatedDisk()
    file = EpochFile(disk, FILE)
    file.save(history)
    assert EpochFile(disk, FILE).load() == history
    assert history.settle(3).quorums == (loose,)
