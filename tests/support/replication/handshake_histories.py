"""All short histories of three replicas, and what a handshake must agree on in each."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

from aerobee_broker.errors import ReplicaRefused
from aerobee_broker.replication.log import handshake
from aerobee_broker.replication.log.handshake import Action
from support.replication.logs_by_letter import LetterLog, common_prefix, followed

Group = tuple[LetterLog, ...]
EMPTY: Group = tuple(LetterLog(number) for number in range(3))


def assert_agreed(slave: LetterLog, master: LetterLog) -> None:
    """What the slave keeps is what both logs begin with, all of it, and nothing is wiped or cut of
    a log that shares no epoch."""
    try:
        agreement, prepared = slave.follow(master)
    except ReplicaRefused:
        assert slave.family != master.family and slave.end > slave.lowest
        return
    assert slave.family == master.family or slave.end == slave.lowest, "a stranger's log is touched"
    prefix = common_prefix(slave, master)
    assert prepared.data == master.data[: prepared.end]
    assert prepared.end == agreement.begin
    if agreement.action in (Action.FOLLOW, Action.CUT):
        assert agreement.agreed == agreement.begin == prefix
        assert (agreement.action is Action.CUT) == (slave.end > prefix)
    else:
        assert slave.end == slave.lowest or prefix < max(master.lowest, slave.lowest)
        assert agreement.agreed == max(prefix, slave.lowest)


def next_epoch(groups: set[Group], epoch: int) -> set[Group]:
    """All that one epoch can make of the groups: any replica is master, however it was elected; it
    writes 0 to 2 bytes; the others follow or not, and copy as many bytes as they get to."""
    result: set[Group] = set()
    for group in groups:
        for number, count in product(range(3), range(3)):
            master = group[number].lead(epoch, count)
            for other in (log for log in group if log.number != number):
                assert_agreed(other, master)
            slaves = [
                [master] if log.number == number else list(followed(log, master)) for log in group
            ]
            result |= set(product(*slaves))
    return result


def compare_all_histories() -> int:
    """Three replicas and three epochs, some of them empty, and any replica as master. Returns the
    number of pairs that were compared in the third epoch."""
    groups = next_epoch(next_epoch({EMPTY}, 1), 2)
    pairs = {(one, other) for group in groups for one, other in permutations(group, 2)}
    for (one, other), count in product(pairs, range(3)):
        master = one.lead(3, count)
        for slave in followed(other, master):  # also when its stream breaks, and begins again
            assert_agreed(slave, master)
    for stranger, count in product(strangers(), range(3)):
        for slave in {slave for slave, _ in pairs}:
            assert_agreed(slave, stranger.lead(3, count))
    return len(pairs)


def strangers() -> list[LetterLog]:
    """Logs of another group, written in epochs of the same numbers."""
    return [
        LetterLog(3).lead(1, first).lead(2, second) for first, second in product(range(3), range(3))
    ]


def compare_clean_elections() -> int:
    """All histories in which the next master is of the in-sync set: nobody is cut to less than was
    confirmed. Returns their number after three epochs."""
    states: set[tuple[Group, frozenset[int]]] = {(EMPTY, frozenset({0, 1, 2}))}
    for epoch in (1, 2, 3):
        following = set()
        for group, in_sync in states:
            for number, count in product(sorted(in_sync), range(2)):
                begun = group[number].lead(epoch, 0)
                master = replace(begun, data=group[number].lead(epoch, count).data)
                for other in (log for log in group if log.number != number):
                    assert_keeps_confirmed(other, master)
                slaves = [
                    [master] if log.number == number else list(followed(log, master))
                    for log in group
                ]
                for logs in product(*slaves):
                    joined = frozenset(
                        log.number
                        for log in logs
                        if log.history.newest_epoch == epoch and log.end >= begun.end
                    )
                    confirmed = min(logs[member].end for member in joined)
                    reported = tuple(
                        replace(log, confirmed=min(log.end, confirmed))
                        if log.history.newest_epoch == epoch
                        else log
                        for log in logs
                    )
                    following.add((reported, joined))
        states = following
    return len(states)


def assert_keeps_confirmed(slave: LetterLog, master: LetterLog) -> None:
    try:
        agreement = handshake.agree(slave.describe(), master.describe())
    except ReplicaRefused as error:
        raise AssertionError("a replica of the group is refused") from error
    assert agreement.agreed >= slave.confirmed
    assert agreement.begin >= slave.confirmed
