"""The options of the brokers of one group, which `aerobee up --replicas N` runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

METRICS_PORTS = 5_570
# What is set for each broker of the group: `--set` may not.
DECIDED = frozenset({"brokerId", "totalReplicas", "etcdEndpoints", "haMasterAddress"})


@dataclass(frozen=True, slots=True)
class Replicas:
    """`copies`: of each message in all, 1 for a broker without replicas. `etcd`: "H:P,H:P", who
    decides which broker is master; "": the first one is, until a person promotes another."""

    copies: int = 1
    etcd: str = ""

    def settings(self, number: int) -> list[str]:
        """ "key=value" for the broker with this number, from 0 on."""
        if self.copies == 1:
            return []
        found = [f"totalReplicas={self.copies}", "inSyncReplicas=2"]
        if number:  # where metrics are exported, the first broker has the port of a broker alone
            found.append(f"metricsPromExporterPort={METRICS_PORTS + number}")
        if self.copies == 2:
            found.append("enableAutoInSyncReplicas=true")
        if self.etcd:
            found += ["brokerRole=SYNC_MASTER", f"brokerId={number + 1}"]
            return [*found, f"etcdEndpoints={self.etcd}"]
        role = "SLAVE" if number else "SYNC_MASTER"
        return [*found, f"brokerRole={role}", f"brokerId={number}"]

    def check(self, sets: Sequence[str]) -> str:
        """Why the broker's `sets` do not go with replicas; "" when they do."""
        for item in sets:
            key = item.partition("=")[0].removeprefix("broker.")
            if self.copies > 1 and (key in DECIDED or key == "brokerRole"):
                return f"--set {key}: --replicas decides it for each broker"
        return ""

    @property
    def remark(self) -> str:
        """What the user of such a group is to know."""
        if self.copies == 1:
            return ""
        least = (
            "two copies: sends go on with one while a broker is away (enableAutoInSyncReplicas), "
            "and what is acknowledged then is on one disk"
            if self.copies == 2
            else f"{self.copies} copies: a send is acknowledged when all brokers in sync have it, "
            "two at least"
        )
        if self.etcd:
            return f"{least}; etcd at {self.etcd} decides who is master"
        return (
            f"{least}; without etcd nobody is elected: when the master is gone for good, "
            "aerobee broker promote BROKER"
        )


ONE_COPY = Replicas()
