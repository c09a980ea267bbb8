"""Who stands for election, and how long a candidate lets others go first. Pure.

The wait is manners: whoever has the longest log is elected, mostly. What makes an election safe is
the coordinator's transaction.
"""

from __future__ import annotations

from collections.abc import Iterable

from aerobee_broker.replication.coordinators.coordinator import Candidacy, View
from aerobee_broker.replication.identity import Replica

RANK_MS = 300  # a candidate waits so long for each one that goes first
FIRST_WAIT_MS = 10_000  # of empty replicas for others that may have messages


def wait_before_election(view: View, me: Replica, copies: int) -> int | None:
    """Milliseconds since the group has no master after which `me` claims to be it. None: it may
    not, by this view. `copies`: how many replicas a new group has, as far as its options say."""
    if view.state is not None:
        return rank(view, me) * RANK_MS if view.may_be_elected(me) else None
    if not view.shows(me):
        return None
    full = [each.replica for each in view.candidacies.values() if each.end > 0]
    if full:  # whose log would be lost if another was elected; of two nobody knows whose counts
        return 0 if full == [me] else None
    first_wait_ms = 0 if 1 < copies <= len(view.candidacies) else FIRST_WAIT_MS
    return first_wait_ms + rank(view, me) * RANK_MS


def rank(view: View, me: Replica) -> int:
    """How many other candidates that seem to be alive go first: the master that `view` names is
    none of them."""
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
    """How many of them go before that of replica `number`, which is one of them."""
    places = sorted(candidacies, key=_preference)
    return [each.replica.replica_id for each in places].index(number)


def _preference(candidacy: Candidacy) -> tuple[int, int, int, int]:
    """The lowest goes first: newest epoch, longest log, lowest brokerElectionPriority."""
    number = candidacy.replica.replica_id
    return -candidacy.epoch, -candidacy.end, candidacy.priority, number
