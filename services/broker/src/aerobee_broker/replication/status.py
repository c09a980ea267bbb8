"""What a replica says of itself: to an operator, and to a replica that is to become master."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from aerobee_broker.replication.handshake import LogDescription
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.in_sync import NEVER_MS, InSyncSet


class Role(StrEnum):
    """REFUSED: a slave that follows nobody until somebody changes something. CANDIDATE: no role
    yet."""

    MASTER = "master"
    SLAVE = "slave"
    REFUSED = "refused"
    CANDIDATE = "candidate"


@dataclass(frozen=True, slots=True)
class FollowerStatus:
    """As its master sees it. `lag_bytes`: of the master's log, that it lacks; `behind_ms`: for so
    long it has lacked any, -1 where it never was up to date. `clock_offset_ms`: how far its wall
    clock is ahead of its master's; None: not known."""

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
    """`required`: so many replicas must be in sync, or it takes no messages."""

    synchronous: bool
    required: int
    in_sync: frozenset[Replica]
    followers: tuple[FollowerStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class DamageStatus:
    """`ranges`, `bytes`: of the log, known to be damaged and not repaired. `repaired_records`:
    since the start. `scrubbed_ms`: when the whole log was last checked, since the epoch; 0: not
    yet."""

    ranges: int = 0
    bytes: int = 0
    repaired_records: int = 0
    scrubbed_ms: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """`synced`: the end of what is on its disk. `reason`: why it is refused, cannot write or may
    not become master. `master_address`: "" while none is known. `total_replicas`: 1 where the
    options do not say. `elected`: by etcd. `master_end`: of a slave, where its master's log
    ended when it last told; 0: it has not. `learner`: it never joins the in-sync set.
    `has_its_log`: all that it ever confirmed; while it is copying, it lacks tables alone then.
    `coordinator_reachable`: None where there is none. `set_at_coordinator`: replica ids, as last
    read there, its own only with the store that it has; empty: nothing is known."""

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
    learner: bool = False
    master: MasterStatus | None = None
    coordinator_reachable: bool | None = None
    set_at_coordinator: frozenset[int] = frozenset()
    damage: DamageStatus = DamageStatus()


def master_status(
    in_sync: InSyncSet, end: int, now_ms: int, clock_offsets: Mapping[Replica, int]
) -> MasterStatus:
    """`end`: of the master's log. `now_ms`: of the clock that the set is told of. `clock_offsets`:
    ms, as `FollowerStatus`."""
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
