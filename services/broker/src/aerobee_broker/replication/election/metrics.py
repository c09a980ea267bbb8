"""Export the metrics of a replica. RocketMQ has none of replication, so the names are our own."""

from __future__ import annotations

from collections.abc import Iterable

from aerobee_broker import declared_metrics as declared
from aerobee_broker.replication.in_sync.counts import Reason, ReplicaCounts
from aerobee_broker.replication.log.status import ReplicaStatus, Role
from aerobee_chassis.metrics.series import Labels, Metric, Registry

# The names are those of ReplicaCounts.
_COUNTERS = {
    "received_bytes": declared.REPLICA_RECEIVED,
    "cuts": declared.REPLICA_CUTS,
    "diverged_bytes": declared.REPLICA_DIVERGED_BYTES,
    "diverged_messages": declared.REPLICA_DIVERGED_MESSAGES,
    "given_up_bytes": declared.REPLICA_GIVEN_UP,
}
_GAUGES = (
    declared.REPLICA_ROLE,
    declared.REPLICA_EPOCH,
    declared.REPLICA_IN_SYNC,
    declared.REPLICA_REQUIRED,
    declared.REPLICA_UNCONFIRMED,
    declared.REPLICA_FOLLOWING,
    declared.REPLICA_COPYING,
    declared.REPLICA_COORDINATOR,
    declared.REPLICA_LAG,
    declared.REPLICA_BEHIND,
    declared.REPLICA_CLOCK_OFFSET,
)


class ReplicaMetrics:
    """The metrics `aerobee_replica_…`."""

    def __init__(self, registry: Registry, replica_id: int) -> None:
        self._replica = str(replica_id)
        self._gauges = {metric: registry.series(metric) for metric in _GAUGES}
        self._counters = {name: registry.series(metric) for name, metric in _COUNTERS.items()}
        self._elections = registry.series(declared.REPLICA_ELECTIONS)
        self._waits = registry.series(declared.REPLICA_WAIT)
        self.count(ReplicaCounts(), ())

    def measure(self, status: ReplicaStatus) -> None:
        replica, master = (self._replica,), status.master
        values: dict[Metric, dict[Labels, float]] = {metric: {} for metric in _GAUGES}
        values[declared.REPLICA_ROLE] = {
            (self._replica, role.value): status.role is role for role in Role
        }
        values[declared.REPLICA_EPOCH][replica] = status.log.epoch
        values[declared.REPLICA_UNCONFIRMED][replica] = status.log.end - status.log.confirmed
        values[declared.REPLICA_FOLLOWING][replica] = status.following
        values[declared.REPLICA_COPYING][replica] = status.copying
        values[declared.REPLICA_COORDINATOR][replica] = status.coordinator_reachable is not False
        if master:
            values[declared.REPLICA_IN_SYNC][replica] = len(master.in_sync)
            values[declared.REPLICA_REQUIRED][replica] = master.required
        for follower in master.followers if master else ():
            slave = (self._replica, str(follower.replica.replica_id))
            values[declared.REPLICA_LAG][slave] = follower.lag_bytes
            if follower.behind_ms >= 0:
                values[declared.REPLICA_BEHIND][slave] = follower.behind_ms / 1_000
            if follower.clock_offset_ms is not None:
                values[declared.REPLICA_CLOCK_OFFSET][slave] = follower.clock_offset_ms / 1_000
        for metric, found in values.items():
            self._gauges[metric].replace(found)

    def count(self, counts: ReplicaCounts, waits_ms: Iterable[int]) -> None:
        """Set the counters.

        Args:
            counts: totals since the start of the process.
            waits_ms: the master's waits for its replicas since the last call, in ms.
        """
        for name, series in self._counters.items():
            series.set(getattr(counts, name), self._replica)
        for reason in Reason:
            self._elections.set(counts.elections[reason], self._replica, reason.value)
        for wait_ms in waits_ms:
            self._waits.observe(wait_ms / 1_000, self._replica)
