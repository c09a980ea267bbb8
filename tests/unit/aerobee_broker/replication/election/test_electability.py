"""Who may be made master by hand, in a group without etcd."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from aerobee_broker.config import BrokerOptions
from aerobee_broker.replication.election.electability import (
    check_copies,
    check_electable,
    check_enough,
    check_furthest,
    check_related,
    check_whole,
    knows_of_promotions,
    leads_already,
    master_among,
    related,
)
from aerobee_broker.replication.election.log_records import LogRecord
from aerobee_broker.replication.errors import NotElectable, UnrelatedLogs
from aerobee_broker.replication.in_sync.quorum import Quorum
from aerobee_broker.replication.log.epochs import EpochEntry, EpochHistory
from aerobee_broker.replication.log.handshake import LogDescription
from aerobee_broker.replication.log.status import (
    DamageStatus,
    MasterStatus,
    ReplicaStatus,
    Role,
)
from aerobee_broker.store.damage import DamagedRange
from aerobee_chassis.config import load
from aerobee_wire.status import Code
from support.codes import raises_about, raises_code
from support.etcd.coordinator_contract import replica_of


def log(number: int, epoch: int = 1, end: int = 100) -> LogDescription:
    history = EpochHistory((EpochEntry(0, "s", 0), EpochEntry(epoch, "s", 10)), epoch)
    return LogDescription("c", "b", replica_of(number), history, epoch, 0, end, end, 1 << 20)


def status(number: int, role: Role = Role.SLAVE, *, epoch: int = 1) -> ReplicaStatus:
    return ReplicaStatus(log(number, epoch), f"host:{number}", role, 100, 3, elected=False)


def options(*settings: str) -> BrokerOptions:
    return load(BrokerOptions, sets=[*settings])


def slave(*settings: str) -> BrokerOptions:
    return options("brokerRole=SLAVE", "brokerId=1", *settings)


@pytest.mark.parametrize("total", [2, 3, 4, 5])
def test_as_many_answer_as_meet_every_set_that_an_acknowledged_message_may_be_on(
    total: int,
) -> None:
    everybody = range(total)
    for required in range(1, total + 1):
        keys = slave(f"totalReplicas={total}", f"inSyncReplicas={required}")
        for count in range(1, total + 1):
            for answering in combinations(everybody, count):
                safe = all(
                    set(answering) & set(holders) for holders in combinations(everybody, required)
                )
                found = [replace(status(each), total_replicas=total) for each in answering]
                if safe:
                    check_enough(found[0], found[1:], keys)
                else:
                    with raises_code(Code.ILLEGAL_OPERATION):
                        check_enough(found[0], found[1:], keys)


def test_a_requirement_that_may_fall_counts_as_far_as_it_may() -> None:
    keys = slave("totalReplicas=2", "inSyncReplicas=2", "enableAutoInSyncReplicas=true")
    first, second = (replace(status(number), total_replicas=2) for number in range(2))
    check_enough(first, [second], keys)
    with raises_code(Code.ILLEGAL_OPERATION):
        check_enough(second, [], keys)


def test_a_replica_that_knows_too_few_copies_believes_the_others() -> None:
    """An operator has added copies, and has not told this replica yet."""
    keys = slave("totalReplicas=3", "inSyncReplicas=3")
    check_enough(status(1), [], keys)
    more = replace(status(2), total_replicas=5)
    with raises_code(Code.ILLEGAL_OPERATION):
        check_enough(status(1), [more], keys)
    check_enough(status(1), [more, status(3)], keys)


def test_nobody_knows_without_the_number_of_copies() -> None:
    with raises_code(Code.ILLEGAL_OPERATION):
        check_enough(status(0), [status(1), status(2)], slave("inSyncReplicas=2"))


def test_what_is_no_full_replica_does_not_count() -> None:
    keys = slave("totalReplicas=3", "inSyncReplicas=2")
    check_enough(status(1), [status(2)], keys)
    empty = replace(status(2), log=replace(log(2, end=0), history=EpochHistory()))
    copying, learner = replace(status(2), copying=True), replace(status(2), learner=True)
    for missing in (empty, copying, learner):
        with raises_code(Code.ILLEGAL_OPERATION):
            check_enough(status(1), [missing], keys)
    # What it cut nobody had acknowledged: tables alone are missing.
    check_enough(status(1), [replace(copying, has_its_log=True)], keys)


def test_the_newest_epoch_goes_before_the_longest_log() -> None:
    check_furthest(log(1, epoch=2, end=50), [log(2, epoch=1, end=100)])
    check_furthest(log(1), [log(2)])
    check_furthest(log(1), [])
    ahead = EpochHistory((EpochEntry(0, "s", 0), EpochEntry(2, "s", 101)), 2)
    check_furthest(log(1), [replace(log(2, end=50), history=ahead)])
    for other in (log(2, epoch=2, end=50), log(2, epoch=1, end=101)):
        with raises_code(Code.ILLEGAL_OPERATION):
            check_furthest(log(1, epoch=1, end=100), [other])


def test_a_damaged_replica_is_not_made_master_while_another_one_has_the_records() -> None:
    damaged = [DamagedRange(60, 70)]
    other = status(2)
    with raises_code(Code.ILLEGAL_OPERATION):
        check_whole(log(1), damaged, [other])
    check_whole(log(1), [], [other])
    for lacking in (
        replace(other, damage=DamageStatus(ranges=1)),
        replace(other, log=log(2, end=60)),
        replace(other, log=replace(log(2), lowest=61)),
        replace(other, learner=True),
    ):
        check_whole(log(1), damaged, [lacking])


def test_a_master_of_an_epoch_that_is_over_is_none() -> None:
    present = status(0, Role.MASTER, epoch=2)
    assert master_among([status(1), present, status(2)]) is present
    assert master_among([present, status(1, epoch=3)]) is None
    assert master_among([status(1)]) is None


def test_a_successor_asks_for_as_many_copies_as_its_master() -> None:
    two = MasterStatus(synchronous=True, required=2, in_sync=frozenset({replica_of(0)}))
    master = replace(status(0, Role.MASTER), master=two)
    check_copies(status(1), slave("inSyncReplicas=2"), master)
    check_copies(status(1), slave("inSyncReplicas=3"), master)
    with raises_code(Code.ILLEGAL_OPERATION):
        check_copies(status(1), slave(), master)
    alone = MasterStatus(synchronous=False, required=1, in_sync=frozenset({replica_of(0)}))
    check_copies(status(1), slave(), replace(status(0, Role.MASTER), master=alone))


def test_a_replica_that_only_reads_is_not_made_master() -> None:
    check_electable(status(1))
    with raises_code(Code.ILLEGAL_OPERATION):
        check_electable(replace(status(1), learner=True))


def test_logs_without_a_common_epoch_are_neither_counted_nor_compared() -> None:
    keys = slave("totalReplicas=3", "inSyncReplicas=2")
    foreign = EpochHistory((EpochEntry(0, "x", 0), EpochEntry(9, "x", 10)), 9)
    other = replace(status(2, epoch=9), log=replace(log(2, epoch=9, end=500), history=foreign))
    check_furthest(log(1), [other.log])
    with raises_about(UnrelatedLogs, "storePathRootDir") as refused:
        check_enough(status(1), [other], keys)
    assert "epoch 9, bytes 0 to 500" in refused.value.message
    check_enough(status(1), [other, status(0)], keys)
    assert related(log(1), [other, status(0)]) == [status(0)]
    assert not knows_of_promotions(log(1), [other], options(*NAMED, "brokerRole=SYNC_MASTER"))
    assert knows_of_promotions(log(1), [status(0)], options(*NAMED, "brokerRole=SYNC_MASTER"))
    check_related(log(1), [other])
    with raises_about(UnrelatedLogs, "storePathRootDir"):
        check_related(log(1), [replace(other, role=Role.MASTER)])
    empty = replace(other, log=replace(other.log, end=0))
    with raises_code(Code.ILLEGAL_OPERATION):
        check_enough(status(1), [empty], keys)


NAMED = ("totalReplicas=3", "inSyncReplicas=2", "namesrvAddr=10.0.0.1:9876")


def with_quorums(number: int, *quorums: Quorum | None, settled: int = 0) -> ReplicaStatus:
    """A replica that knows these masters, of the epochs 1, 2, …"""
    entries = [EpochEntry(epoch, "s", epoch, each) for epoch, each in enumerate(quorums, 1)]
    history = EpochHistory((EpochEntry(0, "s", 0), *entries), len(entries), settled)
    known = status(number)
    return replace(known, log=replace(known.log, history=history))


@pytest.mark.parametrize(
    ("own", "needed"),
    [
        (with_quorums(0, Quorum(3, 2)), 2),
        (with_quorums(0, Quorum(3, 1)), 3),
        (with_quorums(0, Quorum(3, 3)), 1),
        (with_quorums(0, Quorum(3, 2), Quorum(3, 3)), 2),
        (with_quorums(0, Quorum(3, 2), Quorum(3, 3), settled=2), 1),
        (with_quorums(0, Quorum(3, 3), Quorum(3, 2), settled=1), 2),
        (with_quorums(0, Quorum(4, 3), Quorum(3, 3)), 2),
        (with_quorums(0, None, Quorum(3, 2)), 2),
        (with_quorums(0, None), 1),  # of an older version: the options say 3
    ],
)
def test_strictest_requirement_that_a_master_may_have_had_counts(
    own: ReplicaStatus, needed: int
) -> None:
    keys = slave("totalReplicas=3", "inSyncReplicas=3")
    others = [with_quorums(number) for number in (1, 2)]
    for count in range(3):
        if count + 1 >= needed:
            check_enough(own, others[:count], keys)
        else:
            with raises_code(Code.ILLEGAL_OPERATION):
                check_enough(own, others[:count], keys)


def test_what_another_replica_knows_of_its_masters_counts_too() -> None:
    keys = slave("totalReplicas=3", "inSyncReplicas=3")
    own, lower = with_quorums(0, Quorum(3, 3)), with_quorums(1, Quorum(3, 3), Quorum(3, 1))
    check_enough(own, [with_quorums(1, Quorum(3, 3))], keys)
    with raises_code(Code.ILLEGAL_OPERATION):
        check_enough(own, [lower], keys)


def test_replica_beyond_the_copies_does_not_count() -> None:
    keys = slave("totalReplicas=3", "inSyncReplicas=2")
    with raises_code(Code.ILLEGAL_OPERATION):
        check_enough(status(1), [status(3)], keys)


def test_nobody_knows_the_copies_of_a_master_that_did_not() -> None:
    keys = slave("totalReplicas=3", "inSyncReplicas=2")
    with raises_code(Code.ILLEGAL_OPERATION):
        check_enough(with_quorums(1, Quorum(1, 2)), [with_quorums(0), with_quorums(2)], keys)


def test_former_master_that_requires_less_waits_for_as_many_as_before() -> None:
    keys = options("totalReplicas=3", "inSyncReplicas=1", "brokerRole=SYNC_MASTER", NAMED[-1])
    before = with_quorums(0, Quorum(3, 3)).log
    assert not knows_of_promotions(before, [with_quorums(1)], keys)
    assert knows_of_promotions(before, [with_quorums(1), with_quorums(2)], keys)
    asynchronous = options("totalReplicas=3", "brokerRole=ASYNC_MASTER", NAMED[-1])
    assert not knows_of_promotions(before, [with_quorums(1)], asynchronous)


@pytest.mark.parametrize(
    ("record", "counts"),
    [
        (LogRecord(3, 100, 1), True),
        (LogRecord(2, 500, 1), True),
        (LogRecord(3, 101, 1), False),
        (LogRecord(4, 50, 1), False),
    ],
    ids=["as it is", "before a start or a cut", "its log was longer", "a later start"],
)
def test_replica_below_its_record_does_not_count(record: LogRecord, *, counts: bool) -> None:
    keys = slave("totalReplicas=3", "inSyncReplicas=2")
    own, other = (replace(status(number), generation=3) for number in (1, 2))
    records = {other.log.replica.store_id: record}
    if counts:
        check_enough(own, [other], keys, records)
    else:
        with pytest.raises(NotElectable, match=f"up to {record.end} at least"):
            check_enough(own, [other], keys, records)


def test_replica_that_knew_a_higher_epoch_does_not_count() -> None:
    """Its log is longer than its record: only its file of epochs is an older copy."""
    keys = slave("totalReplicas=3", "inSyncReplicas=2")
    own, other = (replace(status(number), generation=3) for number in (1, 2))
    records = {other.log.replica.store_id: LogRecord(3, 0, other.log.epoch + 1)}
    with pytest.raises(NotElectable, match=f"knew epoch {other.log.epoch + 1}"):
        check_enough(own, [other], keys, records)


def test_replica_with_damage_does_not_count() -> None:
    """The damaged bytes may be the only copy of what the lost master acknowledged."""
    keys = slave("totalReplicas=3", "inSyncReplicas=2")
    damaged = replace(status(2), damage=DamageStatus(1, 70))
    check_enough(status(1), [status(2)], keys)
    with pytest.raises(NotElectable, match="70 bytes of its log are damaged"):
        check_enough(status(1), [damaged], keys)


def test_process_that_leads_the_last_epoch_is_found() -> None:
    """It has the number of the former master, and so a copy of its disk."""
    of_old = status(0, Role.MASTER, epoch=1)
    assert leads_already([status(1), status(2)], 1) is None
    assert leads_already([replace(of_old, master_address="host:0")], 1) == "host:0"
    following = replace(status(1), following=True, master_address="host:0")
    assert leads_already([following], 1) == "host:0"
    assert leads_already([of_old, following], 2) is None, "this replica was promoted after that"


def test_refusal_names_what_would_be_given_up() -> None:
    keys = slave("totalReplicas=3", "inSyncReplicas=2")
    with pytest.raises(NotElectable, match="has all that the master reported to them"):
        check_enough(replace(status(1), master_end=100), [], keys)
    with pytest.raises(NotElectable, match="gives up these 50 bytes"):
        check_enough(replace(status(1), master_end=150), [], keys)
    with pytest.raises(NotElectable, match="gives up these 50 bytes"):
        check_enough(replace(status(1), master_end=150), [status(2)], slave())
