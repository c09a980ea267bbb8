"""Keep the in-sync set of a master, and decide what is confirmed and acknowledged.

The module is pure: it maps times and log ends to decisions. Offsets are physical. Times are ms of
one monotonic clock.

The set at the coordinator contains the replicas that may be elected. This master always waits for
at least these replicas:

    join    wait for the replica first, then write the set with it
    leave   write the set without the replica first, then stop waiting
    a write whose outcome is unknown counts as both done and not done, until the set is read

So each elected replica has everything below `confirmed`, even if this master fails.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.in_sync.quorum import Quorum

Members = frozenset[Replica]

NEVER_MS = -(1 << 62)
_MARK_INTERVAL_MS = 20
_MARKS = 256  # 256 × 20 ms: five seconds of a log that always grows


@dataclass(frozen=True, slots=True)
class InSyncRules:
    """The rules of an in-sync set.

    - `synchronous`: if True, the master acknowledges a message when the whole set has it. The set
      must have at least `in_sync_replicas` replicas. If False, the master acknowledges the messages
      that it has, while no replica of the set is late. Then a failover can lose at most the
      messages of `max_not_caught_up_ms`.
    - `auto_in_sync_replicas`: if True, a smaller set is enough, with at least
      `min_in_sync_replicas` replicas.
    - `elected`: if True, only a replica of the set becomes master. If False, the operator may
      promote any replica. Then `in_sync_replicas` ensures that a replica that answers has all
      acknowledged messages.
    - `copies`: the number of replicas in a group without etcd. A replica whose number is not below
      it never joins the set: a promotion does not count it. 1 if there is no such limit.
    - `before`: the quorums of earlier masters. Until the set has met all of them once, a promotion
      may still rely on them, so the master acknowledges nothing with fewer replicas.
    - `max_not_caught_up_ms`: a replica that has been behind for longer leaves the set.
    - `join_within_ms`: a replica that was caught up at most this long ago may join.
    - `max_gap`: the master keeps log files for a replica that is at most this many bytes behind.
    """

    synchronous: bool = False
    elected: bool = True
    in_sync_replicas: int = 1
    auto_in_sync_replicas: bool = False
    min_in_sync_replicas: int = 1
    copies: int = 1
    before: tuple[Quorum, ...] = ()
    max_not_caught_up_ms: int = 2_000
    join_within_ms: int = 500
    max_gap: int = 256 << 20


@dataclass(frozen=True, slots=True)
class FollowerState:
    """The state of a follower.

    `synced` is the end of its log as last reported. `caught_up_ms` is the time at which it last had
    the master's whole log.
    """

    replica: Replica
    lowest: int
    synced: int
    caught_up_ms: int
    connected: bool
    learner: bool


class InSyncSet:
    """The in-sync set of one epoch.

    The set begins with only this replica, so that its whole log counts as confirmed at once.
    `start` is the end of the log at that time.
    """

    def __init__(self, me: Replica, start: int, rules: InSyncRules) -> None:
        self.confirmed = 0  # the whole set has what is below; never falls
        self.shown = 0  # visible below: no other master lacks it; never falls
        self.acknowledged = 0  # sends may be answered below; never falls
        self._me = me
        self._start = start
        self._rules = rules
        self._lowest = 0
        self._end = start
        self._synced = 0
        self._progress = _Progress()
        self._followers: dict[Replica, _Follower] = {}
        self._certain: Members = frozenset({me})  # certainly in the set at the coordinator
        self._possible: Members = self._certain  # in the set if the current write takes effect
        self._joining: Members = frozenset()  # waited for, and not yet written
        self._writing = False
        self._now_ms = NEVER_MS  # the time of the last event
        # The earlier quorums that the set has not met in this epoch yet.
        self._unmet = () if rules.elected else rules.before
        self._look_at_quorums()

    # ---- queries ----

    @property
    def members(self) -> Members:
        """Return the replicas that are certainly in the set at the coordinator."""
        return self._certain

    @property
    def waited_for(self) -> Members:
        return self._possible | self._joining

    @property
    def is_synchronous(self) -> bool:
        return self._rules.synchronous

    @property
    def max_not_caught_up_ms(self) -> int:
        return self._rules.max_not_caught_up_ms

    @property
    def required(self) -> int:
        """Return how many replicas, including this one, must have a message to acknowledge it."""
        rules = self._rules
        if not rules.synchronous:
            return 1
        if not rules.auto_in_sync_replicas:
            return rules.in_sync_replicas
        return max(rules.min_in_sync_replicas, min(rules.in_sync_replicas, len(self._certain)))

    @property
    def suffices(self) -> bool:
        """Return whether the set has the required number of replicas.

        If it has not, the master refuses sends.
        """
        quorum = Quorum(1 if self._rules.elected else self._rules.copies, self.required)
        return not self._unmet and quorum.is_met_by(self._numbers())

    @property
    def unmet(self) -> Quorum | None:
        """Return the earlier quorum that the set must meet first, or None."""
        return max(self._unmet, key=lambda each: each.required, default=None)

    def give_up_unmet(self) -> None:
        """Stop waiting for replicas that know only the quorums of earlier masters."""
        self._unmet = ()
        self._advance()

    def late(self, now_ms: int) -> list[Replica]:
        """Return the replicas that have been behind for too long to stay in the set.

        The set must be written without them before this master stops waiting for them.
        """
        oldest_ms = now_ms - self._rules.max_not_caught_up_ms
        others = self.waited_for - {self._me}
        return [one for one in others if self._followers[one].caught_up_ms < oldest_ms]

    @property
    def is_unresolved(self) -> bool:
        """Return whether a write of the set ended without an answer.

        The set must be read from the coordinator before the next write.
        """
        return not self._writing and self._possible != self._certain

    def heard_of_all_ms(self) -> int | None:
        """Return the earliest of the times at which the other replicas of the set last reported.

        Return None if this replica is the whole set.
        """
        others = self.waited_for - {self._me}
        return min((self._followers[replica].heard_ms for replica in others), default=None)

    def followers(self) -> list[FollowerState]:
        return [follower.state() for follower in self._followers.values()]

    def needed_from(self) -> int:
        """Return the physical offset below which no replica needs the log.

        Neither the set nor the followers need log files that end at or below the offset. Replicas
        that are more than `max_gap` behind do not count.
        """
        ends = [
            follower.position
            for replica, follower in self._followers.items()
            if (follower.connected or replica in self.waited_for)
            and self._end - follower.position <= self._rules.max_gap
        ]
        return min([self._synced, *ends])

    # ---- events ----

    def stored(self, lowest: int, end: int, synced: int, now_ms: int) -> None:
        """Record that the log of this master goes from `lowest` to `end`.

        The log counts as stored below `synced`. With asynchronous flush that part is written;
        otherwise it is on the disk.
        """
        self._now_ms = now_ms
        if end > self._end:
            self._progress.note(self._end, now_ms)
        self._lowest, self._end, self._synced = lowest, end, synced
        self._advance()

    def began(self, replica: Replica, lowest: int, begin: int, *, learner: bool = False) -> None:
        """Record that a replica follows in this epoch, from `begin` on.

        The log of the replica begins at `lowest` and agrees with this log. A `learner` never joins
        the set. A replica has one stream at a time: call `ended` for the previous one first.
        """
        quorum = Quorum(self._rules.copies, 1)
        beyond = not self._rules.elected and not quorum.counts(replica.replica_id)
        follower = _Follower(replica, lowest, begin, learner=learner or beyond)
        if (known := self._followers.get(replica)) is not None:
            follower.take_over(known)
        self._followers[replica] = follower

    def reported(self, replica: Replica, synced: int, now_ms: int) -> None:
        """Record that a follower has everything below `synced` on its disk."""
        caught_up_ms = now_ms if synced >= self._end else self._progress.reached_ms(synced)
        self._followers[replica].report(synced, caught_up_ms, now_ms)
        self._now_ms = now_ms
        self._advance()

    def ended(self, replica: Replica) -> None:
        """Record that a replica no longer follows.

        If the replica is in the set, the master waits for it until it has left the set.
        """
        follower = self._followers[replica]
        follower.disconnect()
        self._joining -= {replica}
        if replica not in self._possible:
            del self._followers[replica]
        self._advance()

    # ---- changes of the set ----

    def next_change(self, now_ms: int) -> Members | None:
        """Return the set to write to the coordinator instead of `members`, or None.

        The result is None if no change is needed, or if a write is pending. After another result,
        the caller writes the set and calls `change_ended`. From this call on, the master waits for
        joining replicas.
        """
        if self._writing or self.is_unresolved:
            return None
        self._joining = frozenset(
            follower.replica
            for follower in self._followers.values()
            if self._joins(follower, now_ms)
        )
        ready = {
            replica
            for replica in self._joining
            if self._followers[replica].synced >= max(self.confirmed, self._start)
        }
        leaving = {
            replica
            for replica in self._certain - {self._me}
            if self._leaves(self._followers[replica], now_ms)
        }
        wanted = (self._certain - leaving) | ready
        self._advance()  # fewer may be waited for: some no longer join
        if wanted == self._certain:
            return None
        self._writing = True
        self._possible = self._certain | wanted
        self._certain &= wanted
        return wanted

    def change_ended(self, members: Iterable[Replica] | None) -> None:
        """Record the set that the coordinator has now, or None if the outcome is unknown.

        Raises ValueError if this master did not write that set.
        """
        self._writing = False
        if members is None:
            return
        found = frozenset(members)
        if not self._certain <= found <= self._possible:
            raise ValueError(f"{sorted(found)} is not of this master")
        self._certain = self._possible = found
        self._joining -= self._certain
        gone = [
            replica
            for replica, follower in self._followers.items()
            if not follower.connected and replica not in self._possible
        ]
        for replica in gone:
            del self._followers[replica]
        self._advance()

    def _joins(self, follower: _Follower, now_ms: int) -> bool:
        if follower.replica in self._certain or follower.learner or not follower.connected:
            return False
        if follower.lowest > self._lowest:
            return False
        # A joining replica that the master waits for has more time: `confirmed` does not grow.
        rules = self._rules
        joining = follower.replica in self._joining
        within_ms = rules.max_not_caught_up_ms if joining else rules.join_within_ms
        return follower.has_reported and now_ms - follower.caught_up_ms <= within_ms

    def _leaves(self, follower: _Follower, now_ms: int) -> bool:
        behind_ms = now_ms - follower.caught_up_ms
        return not follower.connected or behind_ms > self._rules.max_not_caught_up_ms

    def _look_at_quorums(self) -> None:
        """Forget the earlier quorums that the set meets.

        Each member has the entry of this epoch on its disk, so it knows the present quorum.
        """
        self._unmet = tuple(each for each in self._unmet if not each.is_met_by(self._numbers()))

    def _numbers(self) -> list[int]:
        return [each.replica_id for each in self._certain]

    def _advance(self) -> None:
        self._look_at_quorums()
        ends = [self._followers[replica].synced for replica in self.waited_for - {self._me}]
        self.confirmed = max(self.confirmed, min([self._synced, *ends]))
        if self._rules.elected or self.suffices:
            self.shown = max(self.shown, self.confirmed)
        if not self._rules.synchronous:
            if self.suffices and not self.late(self._now_ms):
                self.acknowledged = max(self.acknowledged, self._synced)
        elif self.suffices:
            self.acknowledged = max(self.acknowledged, self.confirmed)


class _Progress:
    """Remember at which times the master's log had which ends."""

    def __init__(self) -> None:
        self._times: deque[int] = deque(maxlen=_MARKS)
        self._ends: deque[int] = deque(maxlen=_MARKS)

    def note(self, end: int, now_ms: int) -> None:
        if not self._times or now_ms - self._times[-1] >= _MARK_INTERVAL_MS:
            self._times.append(now_ms)
            self._ends.append(end)

    def reached_ms(self, offset: int) -> int:
        """Return the latest known time at which the log did not go beyond `offset`."""
        found = bisect_right(self._ends, offset)
        return self._times[found - 1] if found else NEVER_MS


class _Follower:
    """A replica that follows, or a member of the set that followed before."""

    def __init__(self, replica: Replica, lowest: int, begin: int, *, learner: bool) -> None:
        self.replica = replica
        self.lowest = lowest
        self.synced = 0
        self.learner = learner
        self.connected = True
        self.has_reported = False
        self.caught_up_ms = NEVER_MS
        self.heard_ms = NEVER_MS
        self._begin = begin

    @property
    def position(self) -> int:
        return max(self.synced, self._begin)

    def take_over(self, before: _Follower) -> None:
        """Continue from the previous stream of this replica.

        If the new stream begins below the known end, the disk of the replica is an older copy. In
        this case the replica counts as synced only up to where the new stream begins.
        """
        self.synced, self.heard_ms = min(before.synced, self._begin), before.heard_ms
        if self.synced == before.synced:
            self.caught_up_ms = before.caught_up_ms

    def report(self, synced: int, caught_up_ms: int, now_ms: int) -> None:
        self.heard_ms = now_ms
        self.synced = max(self.synced, synced)
        self.caught_up_ms = max(self.caught_up_ms, caught_up_ms)
        self.has_reported = True

    def disconnect(self) -> None:
        self.connected = False

    def state(self) -> FollowerState:
        return FollowerState(
            self.replica,
            self.lowest,
            self.synced,
            self.caught_up_ms,
            self.connected,
            self.learner,
        )
