"""Define what a broker group agrees on outside of its logs: epoch, master, in-sync set.

A coordinator stores it, and changes it only if it is still what was read. It knows which replicas
seem to be alive, by keys that end with their writer. That is a hint when to elect; it never keeps
data from being acknowledged or shown. Safety depends on the state alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.log.epochs import NOTHING, Reach


class CoordinatorAway(Exception):
    """The coordinator did not answer, or this replica has no lease to write under.

    A requested change may have been made, or may be made later; a later view shows it.
    """


class CoordinatorDamaged(Exception):
    """The data of the coordinator for this group cannot be read, so no decision may use it.

    The message names the key and the reason.
    """


class StoreOpenedElsewhere(Exception):
    """Another process has meanwhile enrolled with a copy of this store."""


@dataclass(frozen=True, slots=True)
class State:
    """The state of a group; it is never deleted.

    - `in_sync`: the replicas that may be elected; `master` is one of them.
    - `version`: rises with each write, also across elections, so that a state which went back in
      time is recognized.
    - `floor`: the log of each member goes at least this far.
    """

    epoch: int
    master: Replica
    in_sync: frozenset[Replica]
    version: int = 0
    floor: Reach = NOTHING


@dataclass(frozen=True, slots=True)
class MasterKey:
    """The key of the master that serves in `epoch`. It ends with its writer.

    `address` is "host:port". `nonce` is that of the claim which wrote the key, so that a claim
    without an answer is found again.
    """

    replica: Replica
    address: str
    epoch: int
    nonce: str


@dataclass(frozen=True, slots=True)
class Candidacy:
    """The state that a living replica publishes of itself.

    - `epoch`: the newest epoch of its log; `end`: the end of its log on the disk, a physical
      offset. Both may be out of date.
    - `priority`: among equals, the lower one is preferred.
    - `heard`: the highest epoch that it knows.
    - `seen`: the highest version of a state that it has read.
    - `whole`: its log has no damaged record, and its tables are complete.
    - `learner`: it never joins the in-sync set.
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
    """The coordinator's record of a store, which remains while its replica is off.

    `generation` is that of its last start; 0: it has not started yet. `reach` is how far its log on
    the disk went.
    """

    generation: int = 0
    reach: Reach = NOTHING


@dataclass(frozen=True, slots=True)
class View:
    """All data of a group at one moment, `revision`.

    Views that differ only in `revision` are equal. A key revision of 0 means that the key does not
    exist. `incarnation` rises when the coordinator's data went back in time: revisions of different
    incarnations cannot be compared.
    """

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
        """Return whether the coordinator has the candidacy of `replica`."""
        candidacy = self.candidacies.get(replica.replica_id)
        return candidacy is not None and candidacy.replica == replica

    def next_epoch(self, own: Candidacy) -> int:
        """Return the epoch of an election by this view, which no replica knows yet."""
        known = [self.state.epoch if self.state is not None else 0, own.epoch, own.heard]
        known += [max(each.epoch, each.heard) for each in self.candidacies.values()]
        return max(known) + 1

    def next_version(self, own: Candidacy) -> int:
        """Return the version of a state that replaces this one."""
        known = [self.state.version if self.state is not None else 0, own.seen]
        return max([*known, *(each.seen for each in self.candidacies.values())]) + 1

    def in_sync_ids(self, own: Replica) -> frozenset[int]:
        """Return the ids of the set; that of `own` only if the set has its present store."""
        members = frozenset() if self.state is None else self.state.in_sync
        others = {each for each in members if each.replica_id != own.replica_id}
        return frozenset(each.replica_id for each in others | (members & {own}))


@dataclass(frozen=True, slots=True)
class Mastership:
    """The mastership of this process, by `state`, which is unchanged since `state_revision`.

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
        """Return this mastership as a view shows it; None if another replica was elected.

        If the master key is missing, its revision is 0. An earlier view changes nothing.
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
    """The coordinator of one group, as one replica uses it.

    All coroutines may raise CoordinatorAway and CoordinatorDamaged.
    """

    @property
    def view(self) -> View | None:
        """Return the view that was read last; None before the first read."""

    @property
    def is_reachable(self) -> bool:
        """Return whether it answered when this replica last renewed its lease."""

    def alive_until_ms(self) -> int:
        """Return until when no other replica considers this one dead, in monotonic ms.

        This requires that the clock of the coordinator is right.
        """

    async def changed(self, seen: View | None) -> View:
        """Return the first view that is not `seen`. Does not raise."""

    async def read(self) -> View:
        """Return the present view."""

    async def recorded(self) -> StoreRecord:
        """Return what the coordinator knows of this replica's store."""

    async def enroll(self, generation: int) -> None:
        """Record durably that the store of this replica has started, for this and later processes.

        Raises: StoreOpenedElsewhere: another process has enrolled it with this or a later
        generation.
        """

    def announce(self, candidacy: Candidacy) -> None:
        """Keep this replica known as alive, until `close`, and publish its candidacy.

        The candidacy is published from the next renewal on. How far the log goes is recorded
        permanently.
        """

    async def elect(self, view: View, *, unclean: bool = False) -> Mastership | None:
        """Claim to be master of the next epoch, as the only member of the set.

        The claim fails if the state or the master has changed since `view`. A master that `view`
        names is replaced.

        If `view` has no state, or one that went back in time, the caller has made sure that this
        replica has all that was acknowledged.

        Returns: None if the state or the master has changed.

        Raises: CoordinatorAway: also if the claim is refused, or may still be carried out.
        ValueError: `view` does not allow the election of this replica, and `unclean` is False.
        """

    def claimed_in(self, view: View) -> Mastership | None:
        """Return this process's mastership, won by a claim whose answer was lost.

        It is returned once; otherwise None.
        """

    async def change_in_sync(
        self, mastership: Mastership, in_sync: frozenset[Replica], floor: Reach
    ) -> Mastership | None:
        """Replace the set. `floor` is as in `State`.

        Returns None if another replica was elected, or if the set is no longer that of
        `mastership`. Then this call will never change it.
        """

    async def restore(self, mastership: Mastership) -> Mastership | None:
        """Write back the state and the master key of a living master that the coordinator has lost.

        Returns None if the data has changed meanwhile.
        """

    async def reclaim(self, mastership: Mastership) -> Mastership | None:
        """Put the master key back, in the same epoch, after it ended without an election.

        Returns None if there was an election, or the key exists.
        """

    async def resign(self, mastership: Mastership) -> None:
        """Remove the master key, so that another replica is elected at once."""

    async def close(self) -> None:
        """End the announcement: this replica is not alive any more. Does not raise."""
