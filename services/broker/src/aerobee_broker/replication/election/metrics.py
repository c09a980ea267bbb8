"""Export the metrics of a replica."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from aerobee_broker.replication.in_sync.counts import Reason, ReplicaCounts
from aerobee_broker.replication.log.status import ReplicaStatus, Role

_NODE = ("cluster", "node_type", "node_id", "replica_id")
_GAUGES = {
    "epoch": "The highest epoch that this replica has heard of.",
    "in_sync": "Replicas in sync, the master among them; 0 if this replica is not the master.",
    "required": "Replicas that must be in sync for sends; 0 if this replica is not the master.",
    "unconfirmed_bytes": "Bytes of the log that are not known to be on every replica in sync.",
    "following": "1: the stream to the master is open.",
    "copying": "1: it copies its master's log or tables.",
    "coordinator_reachable": "1: etcd answered last, or is not needed.",
}
# The names are those of ReplicaCounts.
_COUNTERS = {
    "received_bytes": "Bytes of its masters' logs that it was sent.",
    "cuts": "Times that it cut its log.",
    "diverged_bytes": "Bytes that it cut off its log.",
    "diverged_messages": "Messages of clients in what it cut off its log.",
    "given_up_bytes": "Bytes of the logs of others that its elections gave up, at least.",
}
_WAIT_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 2, 5)


class ReplicaMetrics:
    """Export the metrics `rocketmq_replica_…`.

    RocketMQ has no metrics of replication, so the names are our own.
    """

    def __init__(self, registry: CollectorRegistry, cluster: str, name: str, number: int) -> None:
        self._node = (cluster, "broker", name, str(number))

        def gauge(metric: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"rocketmq_replica_{metric}", text, [*_NODE, *labels], registry=registry)

        def counter(metric: str, text: str, *labels: str) -> Counter:
            return Counter(f"rocketmq_replica_{metric}", text, [*_NODE, *labels], registry=registry)

        self._gauges = {
            metric: gauge(metric, text).labels(*self._node) for metric, text in _GAUGES.items()
        }
        self._role = gauge("role", "1: its role.", "role")
        self._lag = gauge("lag_bytes", "Bytes of the master's log that a slave lacks.", "slave")
        self._behind = gauge("behind_seconds", "How long a slave has lacked any.", "slave")
        self._clocks = gauge(
            "clock_offset_seconds", "How far a slave's clock is ahead of the master's.", "slave"
        )
        self._counters = {
            metric: counter(metric, text).labels(*self._node) for metric, text in _COUNTERS.items()
        }
        elections = counter("elections", "Times that it became master.", "reason")
        self._elections = {reason: elections.labels(*self._node, reason.value) for reason in Reason}
        self._waits = Histogram(
            "rocketmq_replica_wait_seconds",
            "From a flush of the master until every replica in sync has what it covers.",
            _NODE,
            registry=registry,
            buckets=_WAIT_SECONDS,
        ).labels(*self._node)
        self._counted = ReplicaCounts()

    def measure(self, status: ReplicaStatus) -> None:
        for role in Role:
            self._role.labels(*self._node, role.value).set(status.role is role)
        master = status.master
        values = {
            "epoch": status.log.epoch,
            "in_sync": len(master.in_sync) if master else 0,
            "required": master.required if master else 0,
            "unconfirmed_bytes": status.log.end - status.log.confirmed,
            "following": status.following,
            "copying": status.copying,
            "coordinator_reachable": status.coordinator_reachable is not False,
        }
        for metric, value in values.items():
            self._gauges[metric].set(value)
        for by_slave in (self._lag, self._behind, self._clocks):
            by_slave.clear()
        for follower in master.followers if master else ():
            slave = (*self._node, str(follower.replica.replica_id))
            self._lag.labels(*slave).set(follower.lag_bytes)
            if follower.behind_ms >= 0:
                self._behind.labels(*slave).set(follower.behind_ms / 1_000)
            if follower.clock_offset_ms is not None:
                self._clocks.labels(*slave).set(follower.clock_offset_ms / 1_000)

    def count(self, counts: ReplicaCounts, waits_ms: Iterable[int]) -> None:
        """Add the counts since the last call to the counters.

        Args:
            counts: totals since the start of the process.
            waits_ms: the master's waits for its replicas since the last call, in ms.
        """
        before, self._counted = self._counted, counts.copy()
        for metric, total in self._counters.items():
            total.inc(getattr(counts, metric) - getattr(before, metric))
        for reason, elections in self._elections.items():
            elections.inc(counts.elections[reason] - before.elections[reason])
        for wait_ms in waits_ms:
            self._waits.observe(wait_ms / 1_000)
