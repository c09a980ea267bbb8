"""F29: disks and etcd go back in time, under whole brokers."""

from __future__ import annotations

import pytest

from fault.conftest import Campaign
from fault.mutations import Mutation, name_of
from fault.replication import operators, scenarios
from fault.replication.going_back_mutations import MUTATIONS
from fault.test_mutations import assert_caught


@pytest.mark.parametrize(
    "scenario", operators.SCENARIOS, ids=[each.__name__ for each in operators.SCENARIOS]
)
def test_what_goes_back_in_time_loses_nothing(scenario: scenarios.Play, campaign: Campaign) -> None:
    seeds = list(campaign.seeds(short=4, long=450))
    for seed in seeds:
        try:
            scenarios.run(scenario, seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    campaign.report(f"{len(seeds)} histories")


@pytest.mark.parametrize(
    ("mutation", "scenario"), MUTATIONS, ids=[name_of(mutation) for mutation, _ in MUTATIONS]
)
def test_a_broken_rule_is_caught(
    mutation: Mutation,
    scenario: scenarios.Play,
    monkeypatch: pytest.MonkeyPatch,
    campaign: Campaign,
) -> None:
    mutation(monkeypatch)
    assert_caught(lambda seed: scenarios.run(scenario, seed), campaign)
