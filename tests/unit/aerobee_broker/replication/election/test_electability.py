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
    check_whole,
    master_among,
)
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
from support.codes import raises_code
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
