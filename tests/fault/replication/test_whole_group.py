"""F16–F18: whole brokers that replicate, their clients, of lite topics too, and whatever may happen
to them.

A failure names its seed; `pytest tests/fault -k whole_group --fault-seed SEED` plays it again.
"""

from __future__ import annotations

import pytest

from fault.conftest import Campaign
from fault.replication.whole_group import whole_group


@pytest.mark.slow
def test_a_whole_group_keeps_what_it_acknowledged_and_showed(campaign: Campaign) -> None:
    masters = acknowledged = settled = seeds = 0
    lite_acknowledged = lite_settled = lite_expired = 0
    for seed in campaign.seeds(12, 5_000):
        figures = whole_group(seed)
        seeds += 1
        masters += figures.masters
        acknowledged += figures.acknowledged
        settled += figures.settled
        lite_acknowledged += figures.lite_acknowledged
        lite_settled += figures.lite_settled
        lite_expired += figures.lite_expired
    campaign.report(
        f"{seeds:,} seeds, {masters:,} masters, {acknowledged:,} messages acknowledged, "
        f"{settled:,} acknowledgements of consumers, 0 lost, 0 shown and gone; in lite topics "
        f"{lite_acknowledged:,} messages, {lite_settled:,} acknowledgements of three groups, "
        f"{lite_expired:,} messages that expired before a group had them"
    )
