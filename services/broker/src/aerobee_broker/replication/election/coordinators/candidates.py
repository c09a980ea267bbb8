"""Decide whether a replica stands for election, and how long it lets other candidates claim first.

The functions are pure. An election is safe for two reasons. The coordinator's transaction depends
on a state that can be trusted, and the replica checks that its disk is not an older copy.

    the state                             elected replica
    trusted; some member is current       the current member with the longest log; the other current
                                          members follow 0.3 s apart
    trusted; all members have restarted   the member with the longest log, once all members are
                                          present, or after electionWaitForSet
    lost, or older than a replica knows   the replica with the longest log, once all `totalReplicas`
                                          replicas are present
    none, and no log has an epoch         a new group: the only replica with messages, or the first

A member is *current* if its process has had all data that the master of the state's epoch
confirmed. A process that has just started cannot know that, because its disk may be an older copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aerobee_broker.replication.election.coordinators.coordinator import Candidacy, State, View
from aerobee_broker.replication.identity import Replica

RANK_MS = 300  # a candidate waits this long for each candidate that claims before it
FIRST_WAIT_MS = 10_000  # empty replicas wait this long for others that may have messages


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of a replica in an election.

    - `wait_ms` is how long after the group lost its master this replica claims mastership. It is
      None if the replica does not claim.
    - `reason` says why the replica waits or does not stand, and which action is safe. It is "" if
      the replica claims without a reason to wait.
    - `yields` is True if another running replica has a longer log and is to become master.
    """

    wait_ms: int | None
    reason: str = ""
    yields: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """The data about a replica itself on which its decision depends.

    `is_current` is explained in the module docstring. `copies` is the number of replicas in the
    group by the options, or 1 if it is unknown. `set_wait_ms` is the option electionWaitForSet.
    """

    me: Candidacy
    is_current: bool
    copies: int
    set_wait_ms: int


def decide(view: View, standing: Standing) -> Decision:
    state = view.trusted_state(standing.me.seen)
    if state is not None:
        return _as_member(view, state, standing)
    if not view.shows(standing.me.replica):
        return Decision(None, "it is not registered at etcd yet")
    if view.state is None and not any(map(_had_master, view.candidacies.values())):
        return _in_a_new_group(view, standing)
    return _without_a_state(view, standing)


def _as_member(view: View, state: State, standing: Standing) -> Decision:
    me, members = standing.me, _names(state.in_sync)
    if me.replica not in state.in_sync:
        return Decision(
            None,
            f"it is not in sync, and replica {members} has messages that it lacks: start that one",
        )
    if me.reach < state.floor:
        return Decision(
            None,
            f"its log ends at {me.end} in epoch {me.epoch}, and etcd knows that it went to "
            f"{state.floor.end} in epoch {state.floor.epoch}: its disk is an older copy; start "
            "another member of the set",
        )
    place_ms = rank(view, me.replica) * RANK_MS
    missing = [each for each in state.in_sync if each.replica_id not in view.candidacies]
    present = [
        each
        for each in view.candidacies.values()
        if each.replica in state.in_sync and each.replica != me.replica
    ]
    whole = [each.replica for each in present if each.whole]
    if not me.whole and (missing or whole):
        waits_for = _names(whole or missing)
        return Decision(
            None,
            f"its log has damaged records, and replica {waits_for} may have them whole: start that "
            "one; this replica then repairs its log",
        )
    if standing.is_current:
        return Decision(place_ms)
    return _after_a_start(standing, present, missing, place_ms)


def _after_a_start(
    standing: Standing, present: list[Candidacy], missing: list[Replica], place_ms: int
) -> Decision:
    """Decide for a member whose process has just started.

    Such a member cannot know that its disk is the newest.
    """
    me = standing.me
    further = [each.replica for each in present if each.whole and each.reach > me.reach]
    if further:
        return Decision(
            None,
            f"it has just started, and the log of replica {_names(further)}, which is in sync and "
            "runs, goes further: that one becomes master",
            yields=True,
        )
    if me.whole and not missing:
        return Decision(place_ms)
    waits_for = _names(missing or [me.replica])
    return Decision(
        standing.set_wait_ms + place_ms,
        f"all members of the in-sync set were gone; it waits for replica {waits_for} for up to "
        f"{standing.set_wait_ms} ms (electionWaitForSet)",
    )


def _without_a_state(view: View, standing: Standing) -> Decision:
    """Decide after the coordinator has lost the state, or has restored an older state.

    The in-sync set is unknown. But if all replicas are present, one of them has all acknowledged
    messages.
    """
    me, copies = standing.me, standing.copies
    what = "no state of this group" if view.state is None else "only an older state of this group"
    present = [each for each in view.candidacies.values() if not each.learner]
    if me.learner:
        return Decision(None, f"etcd has {what}, and this replica only reads (asyncLearner)")
    if copies < 2 or len(present) < copies:
        asked = f"all {copies} replicas" if copies > 1 else "all replicas, and set totalReplicas"
        return Decision(
            None,
            f"etcd has {what}, and its log has epoch {max(me.epoch, me.heard)}: start {asked}; "
            f"present: {_names(each.replica for each in present)}",
        )
    ahead = [each for each in present if each.whole and each.reach > me.reach]
    if not me.whole:
        ahead += [each for each in present if each.whole]
    if ahead:
        first = max(ahead, key=lambda each: each.reach).replica
        return Decision(
            None, f"etcd has {what}; replica {_names([first])} goes furthest", yields=True
        )
    equal = [each for each in present if each.whole and each.reach == me.reach]
    return Decision(place_among({*equal, me}, me.replica.replica_id) * RANK_MS)


def _in_a_new_group(view: View, standing: Standing) -> Decision:
    me, copies = standing.me.replica, standing.copies
    full = [each.replica for each in view.candidacies.values() if each.end > 0]
    # If another replica was elected, the messages of these replicas would be lost. If two
    # replicas have messages, it is unknown which log counts.
    if full:
        if full == [me]:
            return Decision(0)
        return Decision(None, f"replica {_names(full)} of this new group has messages already")
    first_wait_ms = 0 if 1 < copies <= len(view.candidacies) else FIRST_WAIT_MS
    return Decision(first_wait_ms + rank(view, me) * RANK_MS)


def _had_master(candidacy: Candidacy) -> bool:
    return bool(candidacy.epoch or candidacy.heard or candidacy.seen)


def _names(replicas: Iterable[Replica]) -> str:
    return ", ".join(str(each.replica_id) for each in sorted(replicas)) or "none"


def rank(view: View, me: Replica) -> int:
    """Return how many other living candidates claim before the replica `me`.

    The master that `view` names does not count.
    """
    gone = view.master.replica if view.master is not None else None
    standing = [
        each
        for each in view.candidacies.values()
        if each.replica not in (me, gone)
        and (view.state is None or each.replica in view.state.in_sync)
    ]
    mine = view.candidacies.get(me.replica_id)
    return len(standing) if mine is None else place_among([*standing, mine], me.replica_id)


def place_among(candidacies: Iterable[Candidacy], number: int) -> int:
    """Return the index of replica `number` among the candidacies in their order of preference."""
    places = sorted(candidacies, key=_preference)
    return [each.replica.replica_id for each in places].index(number)


def _preference(candidacy: Candidacy) -> tuple[int, int, int, int]:
    """Return the sort key: newest epoch, longest log and lowest brokerElectionPriority first."""
    number = candidacy.replica.replica_id
    return -candidacy.epoch, -candidacy.end, candidacy.priority, number
