"""F29: disks and etcd go back in time, under whole brokers."""

from __future__ import annotations

import pytest

from fault.conftest import Campaign
from fault.replication import operators, scenarios


@pytest.mark.parametrize(
    "scenario", operators.SCENARIOS, ids=[each.__name__ for each in operators.SCENARIOS]
)
def test_what_goes_back_in_time_loses_nothing(scenario: scenarios.Play, campaign: Campaign) -> None:
    seeds = list(campaign.seeds(short=4, long=200))
    for seed in seeds:
        try:
            scenarios.run(scenario, seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    campaign.tell(f"{len(seeds)} histories")
