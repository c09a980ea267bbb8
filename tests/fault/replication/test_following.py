"""F12, F16: histories of two replicas of one log.

A failure names its seed; `pytest tests/fault -k follow --fault-seed SEED` plays it again.
"""

from __future__ import annotations

from fault.conftest import Campaign
from fault.following import following
from support.disk.stores import reporting


def test_a_replica_that_follows_is_its_master(campaign: Campaign) -> None:
    failovers = power_cuts = cut_bytes = seeds = 0
    for seed in campaign.seeds(25, 2_000):
        with reporting(f"seed {seed}"):
            history = following(seed)
        seeds += 1
        failovers += history.failovers
        power_cuts += history.power_cuts
        cut_bytes += history.cut_bytes
    campaign.report(
        f"{seeds:,} seeds, {failovers:,} failovers, {power_cuts:,} power cuts, "
        f"{cut_bytes:,} bytes of diverged logs, 0 messages gone that were shown"
    )
