"""F3, F8, F28: histories of a store whose power is cut at any moment, torn and reordered by sector.

A failure names its seed; `pytest tests/fault -k power --fault-seed SEED` plays it again.
"""

from __future__ import annotations

from fault.conftest import Campaign
from fault.history import power_cuts
from support.disk.stores import reporting


def run(campaign: Campaign, short: int, cuts: int, *, disk_fails: bool) -> None:
    """Histories up to a number of power cuts; each seed sees about two."""
    acknowledged = seen = seeds = 0
    for seed in campaign.seeds(short, 1 << 30):
        with reporting(f"seed {seed}"):
            history = power_cuts(seed, disk_fails=disk_fails)
        seeds += 1
        seen += history.power_cuts
        acknowledged += history.acknowledged
        if seen >= cuts:
            break
    campaign.report(
        f"{seeds:,} seeds, {seen:,} power cuts, {acknowledged:,} acknowledged messages, 0 lost"
    )


def test_acknowledged_messages_survive_power_cuts(campaign: Campaign) -> None:
    run(campaign, 60, 5_000, disk_fails=False)


def test_acknowledged_messages_survive_failed_syncs_and_full_disks(campaign: Campaign) -> None:
    """Nothing is acknowledged after a sync that failed, and what was before stays, also when the
    process starts again over the same page cache.
    """
    run(campaign, 60, 1_000, disk_fails=True)
