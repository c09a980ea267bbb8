"""docs/configuration.md names every metric of a broker, and no other."""

from __future__ import annotations

import re

from prometheus_client import CollectorRegistry

from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.replication.election.metrics import ReplicaMetrics
from aerobee_chassis.rpc.in_flight import InFlight, InFlightCollector
from support.repository.tree import ROOT


def test_every_metric_is_described() -> None:
    registry = CollectorRegistry()
    BrokerMetrics(registry, cluster="DefaultCluster", node_id="broker-a")
    ReplicaMetrics(registry, "DefaultCluster", "broker-a", 0)
    registry.register(InFlightCollector("rocketmq_", InFlight()))
    exposed = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in registry.collect()
    }
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `rocketmq_")]
    assert {name for row in rows for name in re.findall(r"`(rocketmq_\w+)`", row)} == exposed
