"""The histories of replication are themselves tested: each must fail when it is broken."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from fault.conftest import Campaign
from fault.mutations import Mutation, name_of
from fault.replication import failover, scenarios
from fault.replication.broker_mutations import PROMOTIONS, UNCLEAN
from fault.replication.mutations import FAILOVER, HANDSHAKE, IN_SYNC, RARE
from fault.test_mutations import assert_caught
from support.replication.handshake_histories import compare_all_histories, compare_clean_elections
from support.replication.in_sync_model import random_history


def test_random_histories_of_an_in_sync_set(campaign: Campaign) -> None:
    seeds = list(campaign.seeds(short=300, long=20_000))
    for seed in seeds:
        try:
            random_history(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    campaign.report(f"{len(seeds)} histories")


@pytest.mark.parametrize("mutation", IN_SYNC, ids=name_of)
def test_a_broken_in_sync_set_is_caught(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch, campaign: Campaign
) -> None:
    mutation(monkeypatch)
    assert_caught(random_history, campaign)


@pytest.mark.parametrize("mutation", HANDSHAKE, ids=name_of)
def test_a_broken_handshake_is_caught(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch)
    with pytest.raises(AssertionError):
        compare_histories()


def compare_histories() -> None:
    compare_all_histories()
    compare_clean_elections()


@pytest.mark.parametrize("mutation", FAILOVER, ids=name_of)
def test_a_broken_broker_group_is_caught(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch, campaign: Campaign
) -> None:
    mutation(monkeypatch)
    assert_caught(failover.failover, campaign)


@pytest.mark.parametrize(
    ("mutation", "scenario"), RARE, ids=[name_of(mutation) for mutation, _ in RARE]
)
def test_a_broken_broker_group_is_caught_where_it_must_be(
    mutation: Mutation,
    scenario: Callable[[int], Coroutine[Any, Any, None]],
    monkeypatch: pytest.MonkeyPatch,
    campaign: Campaign,
) -> None:
    mutation(monkeypatch)
    assert_caught(lambda seed: failover.run(scenario, seed), campaign)


WHOLE = PROMOTIONS + UNCLEAN
SCENARIOS = [scenario for _, scenario in WHOLE]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[each.__name__ for each in SCENARIOS])
def test_a_promotion_loses_nothing(scenario: scenarios.Play) -> None:
    for seed in range(3):
        scenarios.run(scenario, seed)


@pytest.mark.parametrize(
    ("mutation", "scenario"), WHOLE, ids=[name_of(mutation) for mutation, _ in WHOLE]
)
def test_a_broken_promotion_is_caught(
    mutation: Mutation,
    scenario: scenarios.Play,
    monkeypatch: pytest.MonkeyPatch,
    campaign: Campaign,
) -> None:
    mutation(monkeypatch)
    assert_caught(lambda seed: scenarios.run(scenario, seed), campaign)
