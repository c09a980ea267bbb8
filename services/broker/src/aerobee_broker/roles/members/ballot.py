"""Whether a replica of a group without etcd may become master, by what the others say. Pure.

What was acknowledged is on `required` of `totalReplicas` replicas. So among any totalReplicas -
required + 1 of them one has all of it, and it is the one whose log goes furthest in the newest
epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

from aerobee_broker.config import BrokerOptions
from aerobee_broker.replication.errors import NotElectable
from aerobee_broker.replication.handshake import LogDescription
from aerobee_broker.replication.status import ReplicaStatus, Role

GIVE_UP = "or give up what only they have (--unclean)"


def master_among(found: Sequence[ReplicaStatus]) -> ReplicaStatus | None:
    """The one of the highest epoch, if one is master in it: a lower one is no master any more."""
    highest = max((each.log.epoch for each in found), default=0)
    masters = [each for each in found if each.role is Role.MASTER and each.log.epoch == highest]
    return masters[0] if masters else None


def check_copies(own: ReplicaStatus, options: BrokerOptions, master: ReplicaStatus) -> None:
    """Raises NotElectable: as master this replica would acknowledge with fewer copies."""
    asked = master.master
    assert asked is not None, "a master tells its set"
    alone = asked.synchronous and not options.is_synchronous
    if alone or options.required_replicas < asked.required:
        raise NotElectable(
            f"replica {own.log.replica} would acknowledge with fewer copies than its master, which "
            f"asks for {asked.required}: set inSyncReplicas on it too"
        )


def check_electable(own: ReplicaStatus) -> None:
    """Raises NotElectable: it was never in the in-sync set, and may lack anything."""
    if own.learner:
        raise NotElectable(
            f"replica {own.log.replica} only reads (asyncLearner, syncFromLastFile, or a brokerId "
            f"from totalReplicas on): promote another one, {GIVE_UP}"
        )


def check_enough(found: Sequence[ReplicaStatus], options: BrokerOptions) -> None:
    """`found`: this replica and the others that answer. Raises NotElectable."""
    total, required = options.total_replicas, _least(options)
    if total < 2:
        raise NotElectable(
            "the master cannot be reached, and totalReplicas does not say how many copies there "
            "are: set it on all replicas, bring the master back, "
            "or give up what only it has (--unclean)"
        )
    needed = total - required + 1
    counted = [each for each in found if _has_what_it_confirmed(each)]
    if len(counted) < needed:
        names = ", ".join(sorted(str(each.log.replica.replica_id) for each in counted))
        verb = "answers" if len(counted) == 1 else "answer"
        told = f" ({names})" if names else ""
        raise NotElectable(
            f"the master cannot be reached, and {len(counted)} of {total} replicas {verb}{told}; "
            f"{needed} must: a message that was acknowledged with {required} of them may be on "
            f"none of these. Bring others back, {GIVE_UP}"
        )


def knows_of_promotions(found: Sequence[ReplicaStatus], options: BrokerOptions) -> bool:
    """Whether a replica that was master would have heard from `found`, the others that answer, of
    one that was promoted without its word: `check_enough` let as many others note that as leave
    fewer than these."""
    if options.total_replicas < 2 or not options.namesrvs or not options.is_synchronous:
        return True
    return sum(map(_has_what_it_confirmed, found)) >= _least(options) - 1


def lacks_confirmed(own: LogDescription, others: Sequence[ReplicaStatus]) -> ReplicaStatus | None:
    """Return a replica by which messages were confirmed that `own` does not have: the disk of this
    replica is an older copy, or has lost something."""
    newer = (
        each
        for each in others
        if each.log.history.newest_epoch >= own.history.newest_epoch
        and each.log.history.newest_common(own.history) is not None
        and each.log.confirmed > own.end
    )
    return max(newer, key=lambda each: each.log.confirmed, default=None)


def check_furthest(own: LogDescription, others: Sequence[LogDescription]) -> None:
    """Raises NotElectable: another log goes further."""
    furthest = max(others, key=_reach, default=own)
    if _reach(furthest) > _reach(own):
        number = furthest.replica.replica_id
        raise NotElectable(
            f"replica {furthest.replica} has more of the log than {own.replica}: promote that one "
            f"(--to {number})"
        )


def _has_what_it_confirmed(found: ReplicaStatus) -> bool:
    """Not a replica whose disk is another one, and has followed no master yet, or is copying its
    log."""
    lacks_log = found.copying and not found.has_its_log
    return bool(found.log.history.entries) and not (lacks_log or found.learner)


def _reach(log: LogDescription) -> tuple[int, int]:
    return log.history.newest_epoch, log.end


def _least(options: BrokerOptions) -> int:
    """The fewest replicas that an acknowledged message is on."""
    if options.enable_auto_in_sync_replicas:
        return options.min_in_sync_replicas
    return options.required_replicas
