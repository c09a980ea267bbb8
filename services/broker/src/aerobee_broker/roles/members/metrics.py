"""The metrics of a replica. Decides nothing."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from aerobee_broker.replication.status import ReplicaStatus, Role

_NODE = ("cluster", "node_type", "node_id", "replica_id")
_GAUGES = {
    "epoch": "The highest epoch that this replica has heard of.",
    "in_sync": "Replicas in sync, the master among them; 0 where this is no master.",
    "required": "Replicas that must be in sync for sends; 0 where this is no master.",
    "unconfirmed_bytes": "Bytes of the log that are not known to be on every replica in sync.",
    "following": "1: the stream to the master is open.",
    "copying": "1: it copies its master's log or tables.",
}


class ReplicaMetrics:
    """`rocketmq_replica_…`, ours: RocketMQ has no metrics of its replication."""

    def __init__(self, registry: CollectorRegistry, cluster: str, name: str, number: int) -> None:
        self._node = (cluster, "broker", name, str(number))

        def gauge(metric: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"rocketmq_replica_{metric}", text, [*_NODE, *labels], registry=registry)

        self._gauges = {
            metric: gauge(metric, text).labels(*self._node) for metric, text in _GAUGES.items()
        }
        self._role = gauge("role", "1: its role.", "role")
        self._lag = gauge("lag_bytes", "Bytes of the master's log that a slave lacks.", "slave")
        self._behind = gauge("behind_seconds", "How long a slave has lacked any.", "slave")

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
        }
        for metric, value in values.items():
            self._gauges[metric].set(value)
        self._lag.clear()
        self._behind.clear()
        for follower in master.followers if master else ():
            slave = (*self._node, str(follower.replica.replica_id))
            self._lag.labels(*slave).set(follower.lag_bytes)
            if follower.behind_ms >= 0:
                self._behind.labels(*slave).set(follower.behind_ms / 1_000)
