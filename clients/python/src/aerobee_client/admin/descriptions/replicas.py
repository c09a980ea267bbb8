"""The replicas of a broker group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from aerobee.broker.v1 import replica_pb2

if TYPE_CHECKING:
    from aerobee_wire.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDescription:
    """One replica, by what it says itself and, for `in_sync`, `connected`, `lag_bytes` and
    `behind_ms`, its master. Offsets are physical ones of the commit log, in bytes.

    `role`: "master", "slave", "refused" (a slave that follows nobody until somebody changes
    something: `reason`) or "candidate" (without a role). `replica_id`: its brokerId by its options,
    the same in every role. `epoch`: the highest that it has heard of. `in_sync`: it may become
    master without a loss; None: neither a master tells nor etcd. `lag_bytes`, `behind_ms`: what it
    lacks of its master's log and for how long it has lacked any; None: nobody knows.
    `clock_offset_ms`: how far its wall clock is ahead of its master's; None: not known.
    `master_end_offset`: of a slave, where its master's log ended when it last told; 0: it has not.
    `coordinator_reachable`: whether etcd answers this replica; None: there is none.
    `in_sync_replicas`: of a master, the ids of its set; of another where there is no master, those
    that it last read at etcd.
    `epochs`: epoch → physical offset where the log of its master began.
    `damaged_ranges`, `damaged_bytes`: parts of its log that are known to be damaged, and are not
    repaired. `repaired_records`: repaired from other replicas since it started.
    `scrubbed_timestamp_ms`: when its whole log was last checked, in milliseconds since the epoch;
    0: not since it started.
    """

    broker_name: str
    replica_id: int
    address: str
    role: str
    epoch: int
    in_sync: bool | None
    connected: bool | None
    lag_bytes: int | None
    behind_ms: int | None
    clock_offset_ms: int | None
    reason: str
    master_address: str
    learner: bool
    copying: bool
    elected: bool
    total_replicas: int
    synchronous: bool | None
    required_replicas: int | None
    in_sync_replicas: tuple[int, ...] | None
    lowest_offset: int
    end_offset: int
    synced_offset: int
    confirmed_offset: int
    master_end_offset: int
    coordinator_reachable: bool | None
    store_id: str
    epochs: Mapping[int, int]
    damaged_ranges: int = 0
    damaged_bytes: int = 0
    repaired_records: int = 0
    scrubbed_timestamp_ms: int = 0

    @classmethod
    def of(
        cls,
        status: replica_pb2.GetReplicationStatusResponse,
        master: replica_pb2.GetReplicationStatusResponse | None,
    ) -> Self:
        """`master`: the status of the group's master; None: there is none that answers."""
        log = status.replica
        is_master = status.role == "master"
        seen = _seen_by(master, log.replica_id)
        # Without a master, what the replica has read at etcd.
        members = tuple(status.set_at_coordinator if master is None else master.master.in_sync)
        return cls(
            broker_name=log.broker_name,
            replica_id=log.replica_id,
            address=status.address,
            role=status.role,
            epoch=log.epoch,
            in_sync=log.replica_id in members if members else None,
            connected=True if is_master else seen.connected if seen else None,
            lag_bytes=0 if is_master else seen.lag_bytes if seen else None,
            behind_ms=0 if is_master else seen.behind_ms if seen and seen.behind_ms >= 0 else None,
            clock_offset_ms=0 if is_master else _clock_offset(seen),
            reason=status.reason,
            master_address=status.master_address,
            learner=status.learner,
            copying=status.copying,
            elected=status.elected,
            total_replicas=status.total_replicas,
            synchronous=status.master.synchronous if is_master else None,
            required_replicas=status.master.required_replicas if is_master else None,
            in_sync_replicas=members if is_master or (master is None and members) else None,
            lowest_offset=log.lowest_offset,
            end_offset=log.end_offset,
            synced_offset=status.synced_offset,
            confirmed_offset=log.confirmed_offset,
            master_end_offset=status.master_end_offset,
            coordinator_reachable=(
                status.coordinator_reachable if status.HasField("coordinator_reachable") else None
            ),
            store_id=log.store_id,
            epochs={entry.epoch: entry.start_offset for entry in log.epochs},
            damaged_ranges=status.damaged_ranges,
            damaged_bytes=status.damaged_bytes,
            repaired_records=status.repaired_records,
            scrubbed_timestamp_ms=status.scrubbed_timestamp_ms,
        )

    @property
    def copied_percent(self) -> int | None:
        """Of a replica that copies its master's log: how much of it it has. None: it copies none,
        or does not know how much there is."""
        whole = self.master_end_offset - self.lowest_offset
        if not self.copying or whole <= 0:
            return None
        return min(100, 100 * (self.end_offset - self.lowest_offset) // whole)

    @property
    def reach(self) -> tuple[int, int]:
        """How far its log goes, and in which epoch: the highest has the most."""
        return max(self.epochs, default=0), self.end_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionResult:
    """`handed_over`: the master before it did so, and no send failed for it; else that one could
    not be reached. `was_master`: it was master already."""

    broker_name: str
    replica_id: int
    address: str
    epoch: int
    handed_over: bool
    was_master: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergedFile:
    """A part of a replica's log that was cut, where it left that of a master, and is kept.
    `address`: of the replica. `epoch`: in which it was written, as far as the replica knew.
    `begin_offset`: the physical offset at which it was cut. `size`: in bytes."""

    broker_name: str
    replica_id: int
    address: str
    name: str
    epoch: int
    begin_offset: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergedMessage:
    """A message that was cut. `topic`, `queue_id`: where it was, or was to come after its delay.
    `kind`: "message", "delayed", "retry", "dead letter" or "half message", which is not sent again.
    `physical_offset`: in the log that was cut. `stored`: a broker has a message of this id there,
    and `reconsume_times` at least."""

    topic: str
    kind: str
    message_id: str
    keys: str
    tag: str
    body_size: int
    queue_id: int
    reconsume_times: int
    physical_offset: int
    store_timestamp_ms: int
    stored: bool
    record: Record = field(repr=False)

    @property
    def is_missing(self) -> bool:
        """Whether it is to be sent again."""
        return not self.stored and self.kind != "half message"


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergedPage:
    """`next_position`: where the next page begins; without messages and further on by nothing, the
    file has ended. `internal_count`: records that are no messages of clients. `corrupted_count`:
    records that fail their check."""

    messages: Sequence[DivergedMessage]
    next_position: int
    internal_count: int
    corrupted_count: int


def _seen_by(
    master: replica_pb2.GetReplicationStatusResponse | None, replica_id: int
) -> replica_pb2.FollowerStatus | None:
    followers = master.master.followers if master is not None else ()
    return next((each for each in followers if each.replica_id == replica_id), None)


def _clock_offset(seen: replica_pb2.FollowerStatus | None) -> int | None:
    told = seen is not None and seen.HasField("clock_offset_ms")
    return seen.clock_offset_ms if seen is not None and told else None
