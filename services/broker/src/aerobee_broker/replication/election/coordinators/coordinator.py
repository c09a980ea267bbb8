"""Define the state on which a broker group agrees outside of its logs: epoch, master, in-sync set.

A coordinator stores that state, and replaces it only if it is unchanged since it was read. The
coordinator also has a key for each living replica, which ends when the replica's process ends.
Those keys only hint when to elect. Safety depends on the state alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.log.epochs import NOTHING, Reach
from aerobee_wire.epochs import can_reach


class CoordinatorAway(Exception):
    """The coordinator did not answer, or this replica has no lease under which it can write.

    A requested change may have been made, or may be made later. A later view shows it.
    """


class CoordinatorDamaged(Exception):
    """The data of the coordinator for this group cannot be read, so no decision may use it.

    The message names the key and the reason.
    """


class StoreOpenedElsewhere(Exception):
    """Another process has recorded a later start with a copy of this store."""


@dataclass(frozen=True, slots=True)
class State:
    """The state of a group; it is never deleted.

    - `in_sync` is the set of replicas that may be elected; `master` is one of them.
    - `version` rises with each write, also across elections. A state that was restored from an
      older copy is recognized by its version.
    - `floor` is how far the log of each member goes at least.
    """

    epoch: int
    master: Replica
    in_sync: frozenset[Replica]
    version: int = 0
    floor: Reach = NOTHING


@dataclass(frozen=True, slots=True)
class MasterKey:
    """The key of the master that serves in `epoch`. The key ends with the process that wrote it.

    `address` is "host:port". `nonce` is a random value of the claim that wrote the key. By it, a
    replica recognizes its own claim if the answer was lost.
    """

    replica: Replica
    address: str
    epoch: int
    nonce: str


@dataclass(frozen=True, slots=True)
class Candidacy:
    """The state that a living replica publishes about itself.

    - `epoch` is the newest epoch that its log has reached. `end` is the physical offset at which
      its log on the disk ends. Both may be out of date.
    - `priority` decides between equal candidates: the lower value wins.
    - `heard` is the highest epoch that the replica knows.
    - `seen` is the highest version of a state that the replica has read.
    - `whole` is True if its log has no damaged record and its tables are complete.
    - `learner` is True if the replica never joins the in-sync set.
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

    @property
    def recorded_reach(self) -> Reach:
        """Return what the coordinator records of the store. It falls only if the disk goes back."""
        return Reach(max(self.epoch, self.heard), self.end)


class StoreRecord(NamedTuple):
    """The coordinator's record of a store, which remains while its replica is off.

    `generation` is the number of the store's last start, or 0 before the first start. `reach` is
    the highest epoch that the store knew, and the end of its log on the disk.
    """

    generation: int = 0
    reach: Reach = NOTHING


@dataclass(frozen=True, slots=True)
class View:
    """All data of a group at the coordinator, as of `revision`.

    Views that differ only in `revision` are equal. A key revision of 0 means that the key does not
    exist. `incarnation` rises when the coordinator's data was replaced by an older copy. Revisions
    of different incarnations cannot be compared.
    """

    state: State | None = None
    state_revision: int = 0
    master: MasterKey | None = None
    master_revision: int = 0
    candidacies: Mapping[int, Candidacy] = field(default_factory=dict)  # by replica id
    incarnation: int = 0
    revision: int = field(default=0, compare=False)

    def trusted_state(self, seen: int) -> State | None:
        """Return the state, or None if it is missing or a replica has read a newer state.

        Args:
            seen: the highest version that this replica has read.
        """
        newest = max([seen, *(each.seen for each in self.candidacies.values())])
        return self.state if self.state is not None and self.state.version >= newest else None

    def may_be_elected(self, one: Candidacy) -> bool:
        """Return whether an election of `one` loses no acknowledged messages."""
        state = self.trusted_state(one.seen)
        if state is None or not one.whole:
            return False
        return one.replica in state.in_sync and one.reach >= state.floor

    def shows(self, replica: Replica) -> bool:
        """Return whether the coordinator has the candidacy of `replica`."""
        candidacy = self.candidacies.get(replica.replica_id)
        return candidacy is not None and candidacy.replica == replica

    def next_epoch(self, own: Candidacy) -> int:
        """Return the epoch for an election based on this view.

        The epoch is higher than any epoch that a replica of the view knows, but for epochs that
        the group cannot have reached: the replica that knows such an epoch is corrupt.
        """
        highest = max(self.state.epoch if self.state is not None else 0, own.epoch, own.heard)
        known = [max(each.epoch, each.heard) for each in self.candidacies.values()]
        return max([highest, *(epoch for epoch in known if can_reach(epoch, highest))]) + 1

    def next_version(self, own: Candidacy) -> int:
        """Return the version for the state that replaces the state of this view."""
        known = [self.state.version if self.state is not None else 0, own.seen]
        return max([*known, *(each.seen for each in self.candidacies.values())]) + 1

    def in_sync_ids(self, own: Replica) -> frozenset[int]:
        """Return the replica ids of the in-sync set.

        The id of `own` is included only if the set contains `own` with its present store id.
        """
        members = frozenset() if self.state is None else self.state.in_sync
        others = {each for each in members if each.replica_id != own.replica_id}
        return frozenset(each.replica_id for each in others | (members & {own}))


@dataclass(frozen=True, slots=True)
class Mastership:
    """The mastership that this process won.

    `state` is unchanged since `state_revision`. `is_forgotten` is True if the coordinator has lost
    that state or has restored an older one.
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
        """Return this mastership updated from `view`, or None if another replica was elected.

        If the master key is missing, its revision becomes 0. A view that is older than the
        mastership changes nothing.
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
    """Access the coordinator of one group on behalf of one replica.

    All coroutines may raise CoordinatorAway and CoordinatorDamaged.
    """

    @property
    def view(self) -> View | None:
        """Return the view that was read last, or None before the first read."""

    @property
    def is_reachable(self) -> bool:
        """Return whether the coordinator answered when this replica last renewed its lease."""

    def alive_until_ms(self) -> int:
        """Return the monotonic time in ms until which no other replica considers this one dead.

        The value is right only if the clock of the coordinator runs at the right speed.
        """

    async def changed(self, seen: View | None) -> View:
        """Wait for a view other than `seen`, and return it. Does not raise."""

    async def read(self) -> View:
        """Read the data of the group at the coordinator, and return it as a view."""

    async def recorded(self) -> StoreRecord:
        """Return the coordinator's record of this replica's store."""

    async def enroll(self, generation: int) -> None:
        """Record durably that the store of this replica has started with `generation`.

        Raises:
            StoreOpenedElsewhere: another process has recorded this or a later generation.
        """

    def announce(self, candidacy: Candidacy) -> None:
        """Publish the candidacy of this replica, and keep the replica known as alive until `close`.

        The candidacy is published at the next renewal of the lease. The end of the log is recorded
        permanently.
        """

    async def elect(self, view: View, *, unclean: bool = False) -> Mastership | None:
        """Claim to be master of the next epoch, as the only member of the in-sync set.

        The claim replaces a master that `view` names. The claim fails if the state or the master
        has changed since `view`.

        If `view` has no state, or a state from an older copy, the caller must first make sure that
        this replica has all acknowledged messages.

        Returns:
            The mastership, or None if the state or the master has changed.

        Raises:
            CoordinatorAway: the claim was refused, or has no answer and may still be carried out.
            ValueError: `view` does not allow the election of this replica, and `unclean` is False.
        """

    def claimed_in(self, view: View) -> Mastership | None:
        """Return the mastership that a claim of this process won although the claim had no answer.

        Each mastership is returned once. Return None if `view` shows no such claim.
        """

    async def change_in_sync(
        self, mastership: Mastership, in_sync: frozenset[Replica], floor: Reach
    ) -> Mastership | None:
        """Replace the in-sync set. `floor` is as in `State`.

        Return None if another replica was elected, or if the set at the coordinator is no longer
        the set of `mastership`. In this case the call does not change the set later either.
        """

    async def restore(self, mastership: Mastership) -> Mastership | None:
        """Write the state and the master key of a living master again, after they were lost.

        Return None if the coordinator's data has changed meanwhile.
        """

    async def reclaim(self, mastership: Mastership) -> Mastership | None:
        """Write the master key again, in the same epoch, after the key ended without an election.

        Return None if there was an election, or if the key exists.
        """

    async def resign(self, mastership: Mastership) -> None:
        """Remove the master key, so that another replica is elected at once."""

    async def close(self) -> None:
        """End the announcement, so that this replica no longer counts as alive. Does not raise."""
