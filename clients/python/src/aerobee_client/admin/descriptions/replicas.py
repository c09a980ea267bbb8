"""Describe the replicas of a broker group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from aerobee.broker.v1 import replica_pb2

if TYPE_CHECKING:
    from aerobee_wire.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDescription:
    """One replica. Offsets are physical offsets of the commit log, in bytes.

    Most fields are reported by the replica. `in_sync`, `connected`, `lag_bytes` and `behind_ms` are
    reported by its master.

    Attributes:
        role: "master", "slave", "candidate" (without a role) or "refused" (a slave that follows no
            master until an operator changes something: see `reason`).
        replica_id: Its configured brokerId, the same in every role.
        epoch: The highest epoch that it knows.
        in_sync: Whether it can become master without a loss; None if neither a master nor etcd
            reports it.
        lag_bytes: The missing bytes of its master's log; None if unknown.
        behind_ms: Milliseconds since it was last up to date; None if unknown.
        clock_offset_ms: How far its wall clock is ahead of its master's; None if unknown.
        master_end_offset: For a slave, the last reported end of its master's log; 0 if it was not
            reported yet.
        coordinator_reachable: Whether etcd answers this replica; None if etcd is not used.
        in_sync_replicas: For a master, the ids of its in-sync set. Without a master, the ids that
            the replica last read from etcd.
        epochs: Epoch → physical offset at which the log of its master began.
        damaged_ranges: The number of parts of its log that are damaged and not repaired.
        damaged_bytes: The size of these parts.
        repaired_records: Records repaired from other replicas since it started.
        scrubbed_timestamp_ms: When its whole log was last checked, in milliseconds since the epoch;
            0 if not since it started.
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
        """Make a description. `master`: the status of the master; None without an answer."""
        log = status.replica
        is_master = status.role == "master"
        seen = _seen_by(master, log.replica_id)
        # Without a master, use the ids that the replica has read from etcd.
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
        """How much of its master's log a replica that copies it has, in percent.

        None if it does not copy a log or does not know the size.
        """
        whole = self.master_end_offset - self.lowest_offset
        if not self.copying or whole <= 0:
            return None
        return min(100, 100 * (self.end_offset - self.lowest_offset) // whole)

    @property
    def reach(self) -> tuple[int, int]:
        """How far its log reaches, as (epoch, end offset). The highest value is furthest."""
        return max(self.epochs, default=0), self.end_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionResult:
    """The result of a promotion.

    `handed_over`: the previous master handed over, and no send failed for it. False: it could not
    be reached. `was_master`: the replica was already the master.
    """

    broker_name: str
    replica_id: int
    address: str
    epoch: int
    handed_over: bool
    was_master: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergedFile:
    """A part of a replica's log that was cut off because it differs from the master's, and kept.

    `address` is that of the replica. `epoch` is the epoch in which it was written, as far as the
    replica knew. `begin_offset` is the physical offset of the cut. `size` is in bytes.
    """

    broker_name: str
    replica_id: int
    address: str
    name: str
    epoch: int
    begin_offset: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergedMessage:
    """A message in a part that was cut off.

    `topic` and `queue_id` are its place, or its destination after a delay. `kind` is "message",
    "delayed", "retry", "dead letter" or "half message"; a half message is not sent again.
    `physical_offset` is its offset in the log that was cut. `stored`: a broker has a message with
    this id there, with at least the same `reconsume_times`.
    """

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
        """True if the message should be sent again."""
        return not self.stored and self.kind != "half message"


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergedPage:
    """A page of such messages.

    `next_position` is the start of the next page. If it does not advance and the page is empty, the
    file has ended. `internal_count` counts records that are not messages of clients.
    `corrupted_count` counts records that failed their check.
    """

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
    if seen is None or not seen.HasField("clock_offset_ms"):
        return None
    return seen.clock_offset_ms
