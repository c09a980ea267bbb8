"""Describe the state of a replica, for operators and for a replica that is being promoted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.in_sync.in_sync_set import NEVER_MS, InSyncSet
from aerobee_broker.replication.log.handshake import LogDescription


class Role(StrEnum):
    """The role of a replica.

    REFUSED is a slave that no master accepts until the operator changes something. CANDIDATE is a
    replica without a role yet.
    """

    MASTER = "master"
    SLAVE = "slave"
    REFUSED = "refused"
    CANDIDATE = "candidate"


@dataclass(frozen=True, slots=True)
class FollowerStatus:
    """The state of a slave as its master sees it.

    - `lag_bytes`: the bytes of the master's log that the slave lacks.
    - `behind_ms`: milliseconds since the slave was last caught up; -1 if it never was.
    - `clock_offset_ms`: how far the slave's wall clock is ahead of the master's; None if unknown.
    """

    replica: Replica
    in_sync: bool
    connected: bool
    learner: bool
    synced: int
    lag_bytes: int
    behind_ms: int
    clock_offset_ms: int | None = None


@dataclass(frozen=True, slots=True)
class MasterStatus:
    """The state of a master.

    It rejects messages if fewer than `required` replicas are in sync.
    """

    synchronous: bool
    required: int
    in_sync: frozenset[Replica]
    followers: tuple[FollowerStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class DamageStatus:
    """The known damage of a log.

    - `ranges`, `bytes`: number and total size of the damaged parts that are not repaired yet.
    - `repaired_records`: number of records repaired since the start.
    - `scrubbed_ms`: when the whole log was last checked, in ms since the epoch; 0 if it was not
      checked yet.
    """

    ranges: int = 0
    bytes: int = 0
    repaired_records: int = 0
    scrubbed_ms: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """The state of a replica.

    - `synced`: the physical offset at which the log on its disk ends.
    - `reason`: why the replica is refused, cannot write or may not become master.
    - `master_address`: the master's "host:port"; "" while no master is known.
    - `total_replicas`: the option of this name; 1 if it is not set.
    - `elected`: True if etcd elects the master.
    - `following`: True if a stream to a master is open.
    - `copying`: True if the replica still lacks a part of its master's log or tables.
    - `has_its_log`: True if the replica has all the log that it ever confirmed. If it is also
      copying, it lacks only tables.
    - `master_end`: for a slave, the end of its master's log as last reported; 0 if not reported.
    - `generation`: the generation of the store (`EnrollmentFile`); 0 from an older version.
    - `learner`: True if the replica never joins the in-sync set.
    - `coordinator_reachable`: whether the coordinator answers; None if there is none.
    - `set_at_coordinator`: the replica ids of the in-sync set as last read at the coordinator. The
      replica's own id is included only if the set contains its present store. Empty if the set is
      unknown.
    """

    log: LogDescription
    address: str
    role: Role
    synced: int
    total_replicas: int
    elected: bool
    reason: str = ""
    master_address: str = ""
    following: bool = False
    copying: bool = False
    has_its_log: bool = False
    master_end: int = 0
    generation: int = 0
    learner: bool = False
    master: MasterStatus | None = None
    coordinator_reachable: bool | None = None
    set_at_coordinator: frozenset[int] = frozenset()
    damage: DamageStatus = DamageStatus()


def master_status(
    in_sync: InSyncSet, end: int, now_ms: int, clock_offsets: Mapping[Replica, int]
) -> MasterStatus:
    """Return the status of a master whose log ends at `end`.

    `now_ms` is the time of the clock that the in-sync set uses. `clock_offsets` has ms for each
    slave, as in `FollowerStatus`.
    """
    followers = []
    for state in sorted(in_sync.followers(), key=lambda each: each.replica):
        lag = max(0, end - state.synced)
        behind_ms = 0 if not lag else now_ms - state.caught_up_ms
        followers.append(
            FollowerStatus(
                state.replica,
                state.replica in in_sync.members,
                state.connected,
                state.learner,
                state.synced,
                lag,
                -1 if lag and state.caught_up_ms == NEVER_MS else behind_ms,
                clock_offsets.get(state.replica),
            )
        )
    return MasterStatus(in_sync.is_synchronous, in_sync.required, in_sync.members, tuple(followers))
