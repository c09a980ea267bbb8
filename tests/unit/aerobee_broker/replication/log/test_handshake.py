"""Where two logs part: compared with their bytes, over all short histories and random long ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.errors import EpochNotBelieved, MasterOutdated, ReplicaRefused
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.log.epochs import EpochEntry, EpochHistory
from aerobee_broker.replication.log.handshake import (
    BEFORE_FEATURES,
    CHECKED_BYTES,
    Action,
    agree,
    checked_range,
)
from aerobee_broker.store.format import THIS_BUILD, Build
from aerobee_wire.epochs import MOST_MISSED, PROMOTION_STEP
from support.codes import raises_about
from support.replication.handshake_histories import (
    assert_agreed,
    compare_all_histories,
    compare_clean_elections,
)
from support.replication.logs_by_letter import FILE_SIZE, LetterLog


def test_all_histories_of_three_replicas_and_three_epochs() -> None:
    assert compare_all_histories() > 1_000


@given(st.data())
def test_random_histories_of_five_replicas_with_retention(data: st.DataObject) -> None:
    group = [LetterLog(number) for number in range(5)]
    for epoch in range(1, data.draw(st.integers(2, 9), label="epochs")):
        number = data.draw(st.integers(0, 4), label="master")
        master = group[number].lead(epoch, data.draw(st.integers(0, 6), label="written"))
        lowest = data.draw(st.integers(0, master.end // FILE_SIZE), label="files gone") * FILE_SIZE
        group[number] = master = replace(master, lowest=max(master.lowest, lowest))
        for log in [log for log in group if log.number != number]:
            if data.draw(st.booleans(), label="follows"):
                assert_agreed(log, master)
                try:
                    _, prepared = log.follow(master)
                except ReplicaRefused:
                    continue
                missing = master.end - prepared.end
                copied = data.draw(st.integers(0, max(0, missing)), label="copied")
                group[log.number] = prepared.copy(master, copied)


def test_no_clean_election_takes_back_what_was_confirmed() -> None:
    assert compare_clean_elections() > 1_000


def test_an_old_rich_store_is_never_cut_for_a_young_empty_master() -> None:
    rich = LetterLog(0).lead(1, 9)
    young = LetterLog(1).lead(2, 0)
    with raises_about(ReplicaRefused, "storePathRootDir"):
        agree(rich.describe(), young.describe())


def test_a_log_from_before_replication_is_copied_and_not_cut() -> None:
    legacy = LetterLog(0, data=LetterLog(9).lead(1, 6).data)  # bytes, and no epoch
    master = legacy.lead(1, 2)
    _, slave = LetterLog(1).follow(master)
    assert_agreed(slave.copy(master, 3), master)
    other = LetterLog(2, data=legacy.data)
    with raises_about(ReplicaRefused, "storePathRootDir"):
        agree(other.describe(), master.describe())


def test_a_master_of_an_older_epoch_than_the_slave_knows_is_reported() -> None:
    master = LetterLog(0).lead(3, 1)
    slave = LetterLog(1).describe(epoch=4, history=EpochHistory((), 4))
    with pytest.raises(MasterOutdated) as raised:
        agree(slave, master.describe())
    assert raised.value.highest == 4


def test_an_epoch_that_the_group_cannot_have_reached_is_not_believed() -> None:
    master = LetterLog(0).lead(3, 1).describe()
    highest = 3 + MOST_MISSED * PROMOTION_STEP
    slave = LetterLog(1).describe(epoch=highest, history=EpochHistory((), highest))
    with pytest.raises(MasterOutdated):
        agree(slave, master)
    with pytest.raises(EpochNotBelieved):
        agree(replace(slave, epoch=highest + 1), master)


def test_a_copy_that_ends_below_the_masters_log_is_wiped_and_copied() -> None:
    master = LetterLog(0).lead(1, 20)
    _, slave = LetterLog(1).follow(master)
    slave = slave.copy(master, 5)
    master = replace(master, lowest=8)
    agreement = agree(slave.describe(), master.describe())
    assert (agreement.action, agreement.begin, agreement.agreed) == (Action.WIPE, 8, 5)


def test_an_empty_slave_begins_with_the_lowest_offset_or_with_the_last_file() -> None:
    master = replace(LetterLog(0).lead(1, 18), lowest=4)
    slave = LetterLog(1)
    assert agree(slave.describe(), master.describe()).begin == 4
    assert agree(slave.describe(from_last_file=True), master.describe()).begin == 16


@pytest.mark.parametrize(
    ("changes", "about"),
    [
        ({"cluster": "other"}, "brokerClusterName"),
        ({"broker_name": "other"}, "brokerName"),
        ({"file_size": 8}, "mappedFileSizeCommitLog"),
        ({"settings": {"messageDelayLevel": "1s"}}, "messageDelayLevel"),
        ({"replica": Replica(0, "store-1")}, "brokerId"),
        ({"replica": Replica(1, "store-0")}, "storePathRootDir"),
        ({"protocol_version": 2}, "protocol_version"),
    ],
)
def test_a_difference_is_refused_by_name(changes: dict[str, object], about: str) -> None:
    master = LetterLog(0).lead(1, 3)
    with raises_about(ReplicaRefused, about):
        agree(LetterLog(1).describe(**changes), master.describe())


OLDER, NEWER = Build("1.0.0", {"a": "0.9.0"}), Build("2.1.0", {"a": "0.9.0", "b": "2.0.0"})


@pytest.mark.parametrize("required", [frozenset[str](), frozenset({"b"})])
def test_slave_that_lacks_a_feature_of_its_masters_build_is_refused_by_name(
    required: frozenset[str],
) -> None:
    """Also before its master uses the feature: it would have to stop that very moment."""
    master = LetterLog(0).lead(1, 3).describe(build=NEWER, required=required)
    with raises_about(ReplicaRefused, "features") as refused:
        agree(LetterLog(1).describe(build=OLDER), master)
    assert "b" in refused.value.message and "2.0.0" in refused.value.message
    with raises_about(ReplicaRefused, "features"):
        agree(LetterLog(1).describe(build=BEFORE_FEATURES), master)


def test_slave_that_knows_more_than_its_master_follows() -> None:
    for master in (OLDER, BEFORE_FEATURES):
        slave = Build("3.0.0", {**master.features, "c": "3.0.0"})
        described = LetterLog(0).lead(1, 3).describe(build=master)
        assert agree(LetterLog(1).describe(build=slave), described).action is Action.COPY


def test_slave_of_this_build_follows_a_master_that_names_no_features() -> None:
    """The slaves are upgraded first: this build has a feature that the master does not know."""
    early, this = BEFORE_FEATURES, THIS_BUILD
    described = LetterLog(0).lead(1, 3).describe(build=early)
    agree(LetterLog(1).describe(build=this), described)
    described = LetterLog(0).lead(1, 3).describe(build=this)
    with raises_about(ReplicaRefused, "features"):
        agree(LetterLog(1).describe(build=early), described)


def test_master_of_an_older_epoch_hears_that_from_a_slave_of_an_older_build() -> None:
    slave = LetterLog(1).lead(5, 2).describe(build=OLDER)
    with pytest.raises(MasterOutdated):
        agree(slave, LetterLog(0).lead(1, 3).describe(build=NEWER))


def test_the_checked_bytes_end_at_the_agreed_point_and_are_of_both_logs() -> None:
    master = LetterLog(0).describe(lowest=1_000, end=200_000)
    slave = LetterLog(1).describe(lowest=0, end=150_000)
    assert checked_range(slave, master, 150_000) == (150_000 - CHECKED_BYTES, 150_000)
    assert checked_range(slave, master, 1_500) == (1_000, 1_500)
    assert checked_range(slave, master, 900) == (900, 900)


def test_an_epoch_of_another_store_with_the_same_number_is_not_common() -> None:
    master = LetterLog(0).lead(2, 3)
    slave = LetterLog(1).lead(2, 3)
    with raises_about(ReplicaRefused, "storePathRootDir"):
        agree(slave.describe(), master.describe())
    assert EpochEntry(2, "store-0", 0) in master.history.entries
