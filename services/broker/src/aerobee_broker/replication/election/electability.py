"""Decide whether a replica of a group without etcd may become master. Pure functions.

An acknowledged message is on `required` of `totalReplicas` replicas. So among any totalReplicas -
required + 1 replicas, at least one has all acknowledged messages. That replica has the longest log
in the newest epoch that a log has reached.

Both numbers are those of the master that acknowledged. Its replicas have them in their epochs
(`Quorum`). Replicas may know different masters, so the strictest numbers count. Options of this
replica count too, because a master of an older version does not report its numbers.

Only logs with a common epoch are compared, or counted: the epochs and offsets of other logs mean
nothing in this log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from aerobee_broker.config import BrokerOptions
from aerobee_broker.replication.election.log_records import LogRecord
from aerobee_broker.replication.errors import NotElectable, UnrelatedLogs
from aerobee_broker.replication.in_sync.quorum import Quorum
from aerobee_broker.replication.log.epochs import Reach
from aerobee_broker.replication.log.handshake import LogDescription, alike_below
from aerobee_broker.replication.log.status import ReplicaStatus, Role
from aerobee_broker.store.damage import DamagedRange

NO_RECORDS: Mapping[str, LogRecord] = MappingProxyType({})
GIVE_UP = "or give up what only they have (--unclean)"


def master_among(found: Sequence[ReplicaStatus]) -> ReplicaStatus | None:
    """Return the master of the highest epoch, or None if that epoch has no master.

    A master of a lower epoch has been replaced.
    """
    highest = max((each.log.epoch for each in found), default=0)
    masters = [each for each in found if each.role is Role.MASTER and each.log.epoch == highest]
    return masters[0] if masters else None


def check_copies(own: ReplicaStatus, options: BrokerOptions, master: ReplicaStatus) -> None:
    """Check that this replica would require at least as many in-sync replicas as its master does.

    Raises NotElectable.
    """
    asked = master.master
    assert asked is not None, "a master reports its set"
    alone = asked.synchronous and not options.is_synchronous
    if alone or options.required_replicas < asked.required:
        raise NotElectable(
            f"replica {own.log.replica} would acknowledge with fewer copies than its master, which "
            f"asks for {asked.required}: set inSyncReplicas on it too"
        )


def check_electable(own: ReplicaStatus) -> None:
    """Check that this replica is not a learner. Raises NotElectable.

    A learner was never in the in-sync set, and may lack any message.
    """
    if own.learner:
        raise NotElectable(
            f"replica {own.log.replica} only reads (asyncLearner, syncFromLastFile, or a brokerId "
            f"from totalReplicas on): promote another one, {GIVE_UP}"
        )


def check_whole(
    own: LogDescription, damaged: Sequence[DamagedRange], others: Sequence[ReplicaStatus]
) -> None:
    """Check that no other replica has whole records where this replica's log is damaged.

    A master skips its damage, so no consumer would receive these records, also after a repair.
    `damaged` is the known damage of this replica. Raises NotElectable.
    """

    def has_some(log: LogDescription) -> bool:
        alike = alike_below(own, log) or 0
        return any(log.lowest <= each.begin < alike for each in damaged)

    whole = [
        each.log
        for each in others
        if _has_what_it_confirmed(each) and not each.damage.ranges and has_some(each.log)
    ]
    if whole:
        numbers = ", ".join(sorted(str(log.replica.replica_id) for log in whole))
        raise NotElectable(
            f"the log of replica {own.replica} has damaged records, and replica {numbers} has them "
            "whole: wait until it has repaired its log (aerobee broker ha-status), promote a whole "
            f"replica, {GIVE_UP}"
        )


def related(own: LogDescription, found: Sequence[ReplicaStatus]) -> list[ReplicaStatus]:
    """Return the replicas whose log has an epoch in common with `own`."""
    return [each for each in found if alike_below(own, each.log) is not None]


def check_related(own: LogDescription, found: Sequence[ReplicaStatus]) -> None:
    """Check that no master of another log would be deposed. Raises UnrelatedLogs."""
    masters = [each for each in found if each.role is Role.MASTER and _hides(own, each)]
    if masters:
        reason = "another master would end"
        raise UnrelatedLogs(str(own.replica), reason, list(map(_lost, masters)))


def check_enough(
    own: ReplicaStatus,
    others: Sequence[ReplicaStatus],
    options: BrokerOptions,
    records: Mapping[str, LogRecord] = NO_RECORDS,
) -> None:
    """Check that enough replicas answer to find all acknowledged messages.

    `own` is this replica, and `others` are the other replicas that answer. `records` are those of
    their stores at the name servers, from before the replicas answered.

    Raises NotElectable, and UnrelatedLogs if logs of another origin are among those that answer.
    """
    found = [own, *related(own.log, others)]
    strictest = _strictest(found, options)
    if strictest is None:
        raise NotElectable(
            "the master cannot be reached, and it, or this replica, does not have totalReplicas, "
            "so it is unknown how many copies there are: bring the master back, or give up what "
            f"only it has (--unclean).{_given_up(found)} Then set totalReplicas on all replicas"
        )
    total, required = strictest
    needed = total - required + 1
    counted = [
        each
        for each in found
        if _has_what_it_confirmed(each)
        and not each.damage.ranges
        and not _went_back(each, records)
        and strictest.counts(each.log.replica.replica_id)
    ]
    if len(counted) < needed:
        unrelated = [each for each in others if _hides(own.log, each)]
        if unrelated:
            reason = f"{len(counted)} of {total} replicas with its log answer, and {needed} must"
            raise UnrelatedLogs(str(own.log.replica), reason, list(map(_lost, unrelated)))
        names = ", ".join(sorted(str(each.log.replica.replica_id) for each in counted))
        verb = "answers" if len(counted) == 1 else "answer"
        listed = f" ({names})" if names else ""
        raise NotElectable(
            f"the master cannot be reached, and {len(counted)} of {total} replicas {verb}{listed}; "
            f"{needed} must: a message that was acknowledged with {required} of them may be on "
            f"none of these.{_why_not(found, records)}{_given_up(found)} Bring others back, "
            f"{GIVE_UP}"
        )


def knows_of_promotions(
    own: LogDescription, found: Sequence[ReplicaStatus], options: BrokerOptions
) -> bool:
    """Return whether `found` would have reported a promotion that this former master missed.

    `found` is the list of the other replicas that answer. At least total - required + 1 replicas
    note a promotion (`check_enough`). So at most required - 2 of the other replicas do not know of
    it. The options of this master may have changed since, so its earlier quorums count too.
    """
    if options.total_replicas < 2 or not options.namesrvs:
        return True
    quorums = {*own.history.quorums, Quorum(options.total_replicas, options.least_copies)}
    numbers = [
        each.log.replica.replica_id for each in related(own, found) if _has_what_it_confirmed(each)
    ]
    return all(quorum.is_met_by(numbers, lacking=1) for quorum in quorums)


def lacks_confirmed(own: LogDescription, others: Sequence[ReplicaStatus]) -> ReplicaStatus | None:
    """Return a replica that has confirmed messages which `own` lacks, or None.

    If there is one, the disk of this replica is an older copy, or has lost data.
    """
    newer = (
        each
        for each in others
        if each.log.history.newest_epoch >= own.history.newest_epoch
        and each.log.history.newest_common(own.history) is not None
        and each.log.confirmed > own.end
    )
    return max(newer, key=lambda each: each.log.confirmed, default=None)


def leads_already(found: Sequence[ReplicaStatus], epoch: int) -> str | None:
    """Return the address of another process that leads `epoch` or a later one, or None.

    `epoch` is the last one that this former master knows. Such a process has a copy of its disk,
    or was promoted to the same epoch. A replica that follows shows the process too, if that process
    itself does not answer.
    """
    for each in found:
        if each.log.epoch >= epoch and (each.role is Role.MASTER or each.following):
            return each.master_address
    return None


def check_furthest(own: LogDescription, others: Sequence[LogDescription]) -> None:
    """Check that the log of no other replica goes further. Raises NotElectable.

    Logs without an epoch in common cannot be compared, and are left out.
    """
    alike = [each for each in others if alike_below(own, each) is not None]
    furthest = max(alike, key=_reach, default=own)
    if _reach(furthest) > _reach(own):
        number = furthest.replica.replica_id
        raise NotElectable(
            f"replica {furthest.replica} has more of the log than {own.replica}: promote that one "
            f"(--to {number})"
        )


def _has_what_it_confirmed(found: ReplicaStatus) -> bool:
    """Return whether this replica still has the messages that it confirmed to a master.

    This is False for a learner, and for a replica that is copying its log. It is also False for a
    replica with a new disk that has not followed a master yet, and for one that kept only its
    configuration: its epochs say that something was confirmed, and its log is empty.
    """
    is_emptied = found.log.is_empty and found.log.history.settled > 0
    lacks_log = is_emptied or (found.copying and not found.has_its_log)
    return bool(found.log.history.entries) and not (lacks_log or found.learner)


def _went_back(found: ReplicaStatus, records: Mapping[str, LogRecord]) -> bool:
    """Return whether the disk of this replica is older than its record."""
    known = records.get(found.log.replica.store_id)
    state = found.generation, found.synced, found.log.epoch
    return known is not None and known.shows_older(*state)


def _why_not(found: Sequence[ReplicaStatus], records: Mapping[str, LogRecord]) -> str:
    """Return the sentences that say which replicas answer and do not count."""
    text = ""
    for each in found:
        replica, known = each.log.replica, records.get(each.log.replica.store_id)
        if known is not None and _went_back(each, records):
            text += (
                f" Replica {replica} does not count: its disk ends at physical offset "
                f"{each.synced}, and it had more, up to {known.end} at least."
                if known.epoch <= each.log.epoch
                else f" Replica {replica} does not count: its epochs end at {each.log.epoch}, and "
                f"it knew epoch {known.epoch}."
            )
        elif each.damage.ranges:
            text += (
                f" Replica {replica} does not count: {each.damage.bytes} bytes of its log are "
                "damaged."
            )
        elif each.copying and not each.has_its_log:
            text += f" Replica {replica} does not count: its log is incomplete, or an older copy."
    return text


def _given_up(found: Sequence[ReplicaStatus]) -> str:
    """Return the sentence that says what `--unclean` gives up, as far as these replicas know."""
    end = max(each.log.end for each in found)
    known = max(max(each.master_end, each.log.confirmed) for each in found)
    if known > end:
        return (
            f" The longest log of these ends at physical offset {end}, and that of the master went "
            f"to {known} at least: --unclean gives up these {known - end} bytes, and what followed."
        )
    return (
        f" The longest log of these ends at physical offset {end}, and has all that the master "
        "reported to them: --unclean gives up what the master wrote after that, if anything."
    )


def _reach(log: LogDescription) -> Reach:
    return log.history.reach(log.end)


def _strictest(found: Sequence[ReplicaStatus], options: BrokerOptions) -> Quorum | None:
    """Return the highest number of copies and the lowest requirement, or None if one is unknown."""
    quorums = [quorum for each in found for quorum in each.log.history.quorums]
    if min([options.total_replicas, *(each.copies for each in quorums)]) < 2:
        return None
    totals = [*(each.total_replicas for each in found), *(each.copies for each in quorums)]
    required = min([options.least_copies, *(each.required for each in quorums)])
    return Quorum(max([options.total_replicas, *totals]), required)


def _hides(own: LogDescription, found: ReplicaStatus) -> bool:
    """Return whether the messages of another log are hidden while `own` is that of the master."""
    return not found.log.is_empty and alike_below(own, found.log) is None


def _lost(found: ReplicaStatus) -> str:
    log, (epoch, end) = found.log, _reach(found.log)
    role = "the master" if found.role is Role.MASTER else "the log"
    return f"{role} of replica {log.replica} (epoch {epoch}, bytes {log.lowest} to {end})"
