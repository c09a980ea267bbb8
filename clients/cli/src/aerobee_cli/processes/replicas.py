"""The options of the brokers of one group, which `aerobee up --replicas N` runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

METRICS_PORTS = 5_570
# Keys that are set for each broker of the group. `--set` must not set them.
DECIDED = frozenset({"brokerId", "totalReplicas", "etcdEndpoints", "haMasterAddress"})


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas of a broker group.

    `copies` is the number of copies of each message, 1 for a broker without replicas. `etcd` is
    "H:P,H:P" for elections; if it is "", the first broker is master until a promotion.
    """

    copies: int = 1
    etcd: str = ""

    def settings(self, number: int) -> list[str]:
        """Return "key=value" settings for the broker with this number, from 0 on."""
        if self.copies == 1:
            return []
        found = [f"totalReplicas={self.copies}", "inSyncReplicas=2"]
        if number:  # the first broker exports metrics on the port of a single broker
            found.append(f"metricsPromExporterPort={METRICS_PORTS + number}")
        if self.copies == 2:
            found.append("enableAutoInSyncReplicas=true")
        if self.etcd:
            found += ["brokerRole=SYNC_MASTER", f"brokerId={number + 1}"]
            return [*found, f"etcdEndpoints={self.etcd}"]
        role = "SLAVE" if number else "SYNC_MASTER"
        return [*found, f"brokerRole={role}", f"brokerId={number}"]

    def check(self, sets: Sequence[str]) -> str:
        """Return why the broker's `sets` conflict with replicas, or ""."""
        for item in sets:
            key = item.partition("=")[0].removeprefix("broker.")
            if self.copies > 1 and (key in DECIDED or key == "brokerRole"):
                return f"--set {key}: --replicas decides it for each broker"
        return ""

    @property
    def remark(self) -> str:
        """A remark for the user of such a group."""
        if self.copies == 1:
            return ""
        least = (
            "two copies: sends continue with one while a broker is down "
            "(enableAutoInSyncReplicas), and what is acknowledged then is on one disk"
            if self.copies == 2
            else f"{self.copies} copies: a send is acknowledged when all brokers in sync have it, "
            "two at least"
        )
        if self.etcd:
            return f"{least}; etcd at {self.etcd} decides who is master"
        return (
            f"{least}; without etcd there is no election: if the master is gone for good, "
            "aerobee broker promote BROKER"
        )


ONE_COPY = Replicas()
