"""What a broker group agrees on outside of its logs: the epoch, the master, the in-sync set.

A coordinator keeps it, and changes it by comparing with what was read. It knows who seems to be
alive, by keys that end with their writer; that is a hint when to elect, never a reason why nothing
may be acknowledged or shown. Safety rests on the state alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from aerobee_broker.replication.identity import Replica


class CoordinatorAway(Exception):
    """No answer, or no lease to write under. A change that was asked for may have been made, or may
    yet be: a later view says so."""


class CoordinatorDamaged(Exception):
    """What the coordinator holds for this group cannot be read: nothing may be concluded from it.
    The message names the key and the reason."""


class StoreOpenedElsewhere(Exception):
    """Another process has enrolled with a copy of this store since."""


class Reach(NamedTuple):
    """How far a log goes. Of two logs of one group the greater one has all that was confirmed in
    the lesser one. `epoch`: the newest of its log; `end`: a physical offset."""

    epoch: int
    end: int


NOTHING = Reach(0, 0)


@dataclass(frozen=True, slots=True)
class State:
    """The state of a group; it is never deleted.

    `in_sync`: the replicas that may be elected; `master` is one of them. `version`: rises with each
    write, also across elections, so that a state which went back in time is recognized. `floor`:
    how far the log of each member goes at least.
    """

    epoch: int
    master: Replica
    in_sync: frozenset[Replica]
    version: int = 0
    floor: Reach = NOTHING


@dataclass(frozen=True, slots=True)
class MasterKey:
    """Who serves in `epoch`; it ends with its writer. `address`: "host:port". `nonce`: of the claim
    that put it there, so that a claim without an answer is found again."""

    replica: Replica
    address: str
    epoch: int
    nonce: str


@dataclass(frozen=True, slots=True)
class Candidacy:
    """What a replica that is alive says of itself.

    `epoch`: the newest of its log; `end`: the end of its log on the disk, a physical offset; both
    as of some moment. `priority`: the lower is preferred among equals. `heard`: the highest epoch
    that it has heard of. `seen`: the highest version of a state that it has read. `whole`: its log
    has no damaged record, and its tables are complete. `learner`: it never joins the in-sync set.
    """

    replica: Replica
    address: str
    epoch: int
    end: int
    priority: int
    heard: int = 0
    seen: int = 0
    whole: bool = True
    learner: bool = False

    @property
    def reach(self) -> Reach:
        return Reach(self.epoch, self.end)


class StoreRecord(NamedTuple):
    """What the coordinator knows of a store, also while its replica is off. `generation`: of its
    last start; 0: it has not started yet. `reach`: how far its log went, on the disk."""

    generation: int = 0
    reach: Reach = NOTHING


@dataclass(frozen=True, slots=True)
class View:
    """All of it at one moment, `revision`; views that differ in nothing else are equal. A revision
    of 0: there is no such key. `incarnation`: rises when the coordinator's data went back in time:
    revisions of different incarnations do not compare."""

    state: State | None = None
    state_revision: int = 0
    master: MasterKey | None = None
    master_revision: int = 0
    candidacies: Mapping[int, Candidacy] = field(default_factory=dict)  # by replica id
    incarnation: int = 0
    revision: int = field(default=0, compare=False)

    def trusted_state(self, seen: int) -> State | None:
        """Return the state, unless this replica or a candidate has read a newer one.

        Args:
            seen: the highest version that this replica has read.
        """
        newest = max([seen, *(each.seen for each in self.candidacies.values())])
        return self.state if self.state is not None and self.state.version >= newest else None

    def may_be_elected(self, one: Candidacy) -> bool:
        """Return whether an election of `one` loses nothing that was acknowledged."""
        state = self.trusted_state(one.seen)
        if state is None or not one.whole:
            return False
        return one.replica in state.in_sync and one.reach >= state.floor

    def shows(self, replica: Replica) -> bool:
        """Return whether the coordinator has its candidacy."""
        candidacy = self.candidacies.get(replica.replica_id)
        return candidacy is not None and candidacy.replica == replica

    def next_epoch(self, own: Candidacy) -> int:
        """Return the epoch of an election by this view: no replica has heard of it yet."""
        known = [self.state.epoch if self.state is not None else 0, own.epoch, own.heard]
        known += [max(each.epoch, each.heard) for each in self.candidacies.values()]
        return max(known) + 1

    def next_version(self, own: Candidacy) -> int:
        """Return the version of a state that replaces this one."""
        known = [self.state.version if self.state is not None else 0, own.seen]
        return max([*known, *(each.seen for each in self.candidacies.values())]) + 1

    def in_sync_ids(self, own: Replica) -> frozenset[int]:
        """Of the set; the id of `own` only where the set has the store that it has now."""
        members = frozenset() if self.state is None else self.state.in_sync
        others = {each for each in members if each.replica_id != own.replica_id}
        return frozenset(each.replica_id for each in others | (members & {own}))


@dataclass(frozen=True, slots=True)
class Mastership:
    """This process is master: by `state`, which no other has changed since `state_revision`.

    `is_forgotten`: the coordinator has lost that state, or has an older one back.
    """

    state: State
    nonce: str
    master_revision: int
    state_revision: int
    incarnation: int = 0
    is_forgotten: bool = False

    @property
    def epoch(self) -> int:
        return self.state.epoch

    @property
    def revisions(self) -> tuple[int, int, int]:
        return self.incarnation, self.master_revision, self.state_revision

    def seen_in(self, view: View) -> Mastership | None:
        """Return what is left of it by a view; None: another replica was elected.

        If the master key is missing, its revision is 0. A view from before leaves it as it is.
        """
        newest = max(self.master_revision, self.state_revision)
        if (view.incarnation, view.revision) < (self.incarnation, newest):
            return self
        state = view.state
        if state is not None and state.epoch > self.epoch:
            return None
        seen = replace(
            self,
            master_revision=view.master_revision,
            state_revision=view.state_revision,
            incarnation=view.incarnation,
        )
        if state is None or state.version < self.state.version:
            return replace(seen, is_forgotten=True)
        if state.epoch < self.epoch or state.master != self.state.master:
            return None
        holds = view.master is not None and view.master.nonce == self.nonce
        master_revision = view.master_revision if holds else 0
        return replace(seen, state=state, master_revision=master_revision, is_forgotten=False)


class Coordinator(Protocol):
    """For one replica of one group. What is awaited may raise CoordinatorAway and
    CoordinatorDamaged."""

    @property
    def view(self) -> View | None:
        """As it was read last; None before the first time."""

    @property
    def is_reachable(self) -> bool:
        """Whether it answered when this replica last renewed its lease."""

    def alive_until_ms(self) -> int:
        """Until then, in monotonic milliseconds, no other replica takes this one for dead, provided
        that the coordinator keeps time."""

    async def changed(self, seen: View | None) -> View:
        """The first view that is not `seen`. Does not raise."""

    async def read(self) -> View:
        """As it is now."""

    async def recorded(self) -> StoreRecord:
        """Return what the coordinator knows of this replica's store."""

    async def enroll(self, generation: int) -> None:
        """Record that the store of this replica has started, durably, for this and later processes.

        Raises:
            StoreOpenedElsewhere: another process has enrolled it with this or a later generation.
        """

    def announce(self, candidacy: Candidacy) -> None:
        """Keep this replica known as alive, until `close`, and publish its candidacy from the next
        renewal on. How far its log goes is recorded beyond its life."""

    async def elect(self, view: View, *, unclean: bool = False) -> Mastership | None:
        """Claim to be master of the next epoch, as the only member of the set, provided that
        neither state nor master has changed since `view`. A master that `view` names is replaced.

        If `view` has no state, or one that went back in time, the caller has made sure that this
        replica has all that was acknowledged.

        Returns:
            None if something has changed.

        Raises:
            CoordinatorAway: also if the claim is refused, or may be carried out yet.
            ValueError: this replica may not be elected by `view`, and this is not `unclean`.
        """

    def claimed_in(self, view: View) -> Mastership | None:
        """That of this process, by an election whose answer was lost. It is told once."""

    async def change_in_sync(
        self, mastership: Mastership, in_sync: frozenset[Replica], floor: Reach
    ) -> Mastership | None:
        """Replaces the set. None: another was elected, or the set is not that of `mastership` any
        more; then it never will be changed by this call. `floor`: as `State`."""

    async def restore(self, mastership: Mastership) -> Mastership | None:
        """Write the state and the master key of a living master back, where the coordinator has
        forgotten them. None: something has changed meanwhile."""

    async def reclaim(self, mastership: Mastership) -> Mastership | None:
        """Puts the master key back, in the same epoch, after it ended without an election. None:
        there was an election, or the key is there."""

    async def resign(self, mastership: Mastership) -> None:
        """Takes the master key away, so that another replica is elected at once."""

    async def close(self) -> None:
        """This replica is not alive any more. Does not raise."""
