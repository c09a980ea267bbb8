"""Let a replica outside the in-sync set stand for election (`enableElectUncleanMaster`).

Members of the set usually return, and then no message is lost. So an unclean election waits until
no member has seemed alive for UNCLEAN_WAIT_MS.
"""

from __future__ import annotations

import structlog

from aerobee_broker.replication.election.coordinators.candidates import RANK_MS, place_among
from aerobee_broker.replication.election.coordinators.coordinator import View
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.in_sync.counts import ReplicaCounts
from aerobee_broker.replication.role.replica_store import ReplicaStore

UNCLEAN_WAIT_MS = 10_000


class UncleanElection:
    """Decide when replica `number` stands for an unclean election.

    The class is pure. All times are milliseconds of one monotonic clock.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._gone_since_ms: int | None = None  # since when no member of the set seems alive
        self._furthest = 0
        self._reported_ms: int | None = None  # when the end of a member's log was last reported

    def look(self, view: View, now_ms: int) -> None:
        """Record from `view` whether a member of the in-sync set seems alive.

        Call this about once a second.
        """
        members = view.state.in_sync if view.state is not None else frozenset()
        alive = [each for each in view.candidacies.values() if each.replica in members]
        if alive:
            self.heard_of(max(each.end for each in alive), now_ms)
        if alive or view.state is None or view.master is not None:
            self._gone_since_ms = None
        elif self._gone_since_ms is None:
            self._gone_since_ms = now_ms

    def heard_of(self, end: int, now_ms: int) -> None:
        """Record that the log of a member or of the master reached the physical offset `end`."""
        self._furthest, self._reported_ms = max(self._furthest, end), now_ms

    def wait_ms(self, view: View, now_ms: int) -> int | None:
        """Return the ms until this replica claims mastership, 0 or less if it may claim now.

        Return None if a member of the in-sync set seems alive or a master is known.
        """
        if self._gone_since_ms is None or self._number not in view.candidacies:
            return None
        ahead = place_among(view.candidacies.values(), self._number)
        return self._gone_since_ms + UNCLEAN_WAIT_MS + ahead * RANK_MS - now_ms

    def given_up(self, end: int, now_ms: int) -> tuple[int | None, int | None]:
        """Return how many bytes the in-sync set had beyond `end`, and the report's age in ms.

        The number of bytes is a lower bound. Both values are None if this process has no report of
        the members' logs.
        """
        if self._reported_ms is None:
            return None, None
        return max(0, self._furthest - end), now_ms - self._reported_ms


def may_stand(own: ReplicaStore) -> bool:
    """Return whether this replica may stand for an unclean election.

    Its store must be complete, and its options must allow a loss of messages.
    """
    options = own.environment.options
    allowed = options.enable_elect_unclean_master and not options.is_learner
    return allowed and not own.is_unfinished and not own.unfinished.since


def log_given_up(
    counts: ReplicaCounts, epoch: int, end: int, size: int | None, reported_ms_ago: int | None
) -> None:
    """Count and log that the new master of `epoch` gives up `size` bytes of other replicas' logs.

    `end` is the end of its log. `size` and `reported_ms_ago` are the results of
    `UncleanElection.given_up`.
    """
    counts.gave_up(size or 0)
    structlog.get_logger().error(
        "elected_unclean",
        epoch=epoch,
        given_up_bytes="unknown" if size is None else size,
        reported_ms_ago=reported_ms_ago,
        end=end,
    )


def not_in_sync(me: Replica, reason: str) -> str:
    """Return the message that says why a promotion of `me` may lose acknowledged messages."""
    return (
        f"replica {me} may lack acknowledged messages: {reason}; or, if the others are gone for "
        "good, give up what only they have (--unclean)"
    )
