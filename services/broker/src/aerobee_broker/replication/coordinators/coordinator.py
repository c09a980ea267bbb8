"""What a broker group agrees on outside of its logs: the epoch, the master, the in-sync set.

A coordinator keeps it, and changes it by comparing with what was read. It knows who seems to be
alive, by keys that end with their writer; that is a hint when to elect, never a reason why nothing
may be acknowledged or shown. Safety rests on the state alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from aerobee_broker.replication.identity import Replica


class CoordinatorAway(Exception):
    """No answer, or no lease to write under. A change that was asked for may have been made, or may
    yet be: a later view says so."""


class CoordinatorDamaged(Exception):
    """What the coordinator holds for this group cannot be read: nothing may be concluded from it.
    The message names the key and the reason."""


@dataclass(frozen=True, slots=True)
class State:
    """Never deleted. `in_sync`: the replicas that may be elected; `master` is one of them."""

    epoch: int
    master: Replica
    in_sync: frozenset[Replica]


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
    """What a replica that is alive says of itself. `epoch`: the newest of its log, `end`: the log's
    end, a physical offset, both as of some moment. `priority`: the lower is preferred among equals.
    """

    replica: Replica
    address: str
    epoch: int
    end: int
    priority: int


@dataclass(frozen=True, slots=True)
class View:
    """All of it at one moment, `revision`; views that differ in nothing else are equal. A revision
    of 0: there is no such key."""

    state: State | None = None
    state_revision: int = 0
    master: MasterKey | None = None
    master_revision: int = 0
    candidacies: Mapping[int, Candidacy] = field(default_factory=dict)  # by replica id
    revision: int = field(default=0, compare=False)

    def may_be_elected(self, replica: Replica) -> bool:
        """Whether an election of `replica` loses nothing that was acknowledged."""
        return self.state is not None and replica in self.state.in_sync

    def shows(self, replica: Replica) -> bool:
        """Whether the coordinator has its candidacy."""
        candidacy = self.candidacies.get(replica.replica_id)
        return candidacy is not None and candidacy.replica == replica

    def in_sync_ids(self, own: Replica) -> frozenset[int]:
        """Of the set; the id of `own` only where the set has the store that it has now."""
        members = frozenset() if self.state is None else self.state.in_sync
        others = {each for each in members if each.replica_id != own.replica_id}
        return frozenset(each.replica_id for each in others | (members & {own}))


@dataclass(frozen=True, slots=True)
class Mastership:
    """This process is master: by `state`, which nobody has changed since `state_revision`."""

    state: State
    nonce: str
    master_revision: int
    state_revision: int

    @property
    def epoch(self) -> int:
        return self.state.epoch

    @property
    def revisions(self) -> tuple[int, int]:
        return self.master_revision, self.state_revision

    def seen_in(self, view: View) -> Mastership | None:
        """What is left of it by a view: with the key gone its revision is 0. None: another replica
        was elected. A view from before leaves it as it is.

        Raises CoordinatorDamaged when the coordinator has lost its epoch.
        """
        if view.revision < max(self.revisions):
            return self
        if view.state is None or view.state.epoch < self.epoch:
            raise CoordinatorDamaged(f"the coordinator has forgotten epoch {self.epoch}")
        if view.state.epoch > self.epoch:
            return None
        stands = view.master is not None and view.master.nonce == self.nonce
        revision = view.master_revision if stands else 0
        return Mastership(view.state, self.nonce, revision, view.state_revision)


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

    def announce(self, candidacy: Candidacy) -> None:
        """Keeps this replica known as alive, until `close`, and says this of it from the next
        renewal on."""

    async def elect(self, view: View, *, unclean: bool = False) -> Mastership | None:
        """Claims to be master of the next epoch, as the only member of the set, provided that
        nothing has changed since `view`. A master that `view` names is replaced.

        None: something has changed. CoordinatorAway, too, where the claim is refused, or may be
        carried out yet. Raises ValueError when this replica may not be elected by `view`, unless
        `unclean`.
        """

    def claimed_in(self, view: View) -> Mastership | None:
        """That of this process, by an election whose answer was lost. It is told once."""

    async def change_in_sync(
        self, mastership: Mastership, in_sync: frozenset[Replica]
    ) -> Mastership | None:
        """Replaces the set. None: another was elected, or the set is not that of `mastership` any
        more; then it never will be changed by this call."""

    async def reclaim(self, mastership: Mastership) -> Mastership | None:
        """Puts the master key back, in the same epoch, after it ended without an election. None:
        there was an election, or the key is there."""

    async def resign(self, mastership: Mastership) -> None:
        """Takes the master key away, so that another replica is elected at once."""

    async def close(self) -> None:
        """This replica is not alive any more. Does not raise."""
