"""The fault suite is itself tested: a history must fail on every mutated store or broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aerobee_broker.errors import CommitLogBroken
from fault.conftest import Campaign
from fault.damage.test_bit_flips import flip_many, recorded
from fault.disk.test_slow_disk import BODY, ONE_MORE, stand_still
from fault.following import following
from fault.history import power_cuts
from fault.mutations import (
    MUTATIONS,
    WHILE_A_REPLICA_FOLLOWS,
    WHILE_THE_DISK_IS_SLOW,
    WITH_LITE_TOPICS,
    Mutation,
    drop_the_back_pressure,
    name_of,
    skip_the_crc,
)
from fault.slow_disk import LIMIT, on_a_virtual_loop, slow_history
from support.lite.crash_history import LiteHistory

IN_HISTORIES = [mutation for mutation in MUTATIONS if mutation is not skip_the_crc]
ENOUGH = 200  # seeds; half of them with a disk that fails


def assert_caught(history: Callable[[int], object], campaign: Campaign) -> None:
    """A history fails, with an AssertionError or since a file of the log is missing.

    Anything else is a defect of the mutation.
    """
    for seed in range(ENOUGH):
        try:
            history(seed)
        except (AssertionError, CommitLogBroken) as error:
            campaign.report(f"caught with seed {seed}: {str(error)[:100]}")
            return
    pytest.fail(f"{ENOUGH} histories did not notice")


@pytest.mark.parametrize("mutation", IN_HISTORIES, ids=name_of)
def test_a_mutated_store_is_caught(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch, campaign: Campaign
) -> None:
    mutation(monkeypatch)
    assert_caught(lambda seed: power_cuts(seed, disk_fails=seed % 2 == 1), campaign)


@pytest.mark.parametrize("mutation", WHILE_A_REPLICA_FOLLOWS, ids=name_of)
def test_a_broken_replica_is_caught(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch, campaign: Campaign
) -> None:
    mutation(monkeypatch)
    assert_caught(following, campaign)


@pytest.mark.parametrize("mutation", WITH_LITE_TOPICS, ids=name_of)
def test_a_broker_that_forgets_settlements_of_lite_topics_is_caught(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch, campaign: Campaign
) -> None:
    mutation(monkeypatch)
    assert_caught(lambda seed: on_a_virtual_loop(LiteHistory(seed, "power cut").run), campaign)


def test_a_store_that_skips_the_crc_is_caught(
    monkeypatch: pytest.MonkeyPatch, campaign: Campaign
) -> None:
    disk, sent = recorded()
    skip_the_crc(monkeypatch)
    flips = flip_many(disk, sent, range(300))
    assert flips.served_wrong > 0
    campaign.report(f"caught: {flips.served_wrong} of {flips.flips} flips were served")


@pytest.mark.parametrize("mutation", WHILE_THE_DISK_IS_SLOW, ids=name_of)
def test_a_broken_group_commit_is_caught(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch, campaign: Campaign
) -> None:
    mutation(monkeypatch)
    assert_caught(slow_history, campaign)


def test_a_broker_without_back_pressure_is_caught(
    monkeypatch: pytest.MonkeyPatch, campaign: Campaign
) -> None:
    drop_the_back_pressure(monkeypatch)
    fits = LIMIT // BODY
    busy, unflushed, memory = stand_still(20 * fits)
    assert busy == 0 and unflushed > 10 * (LIMIT + ONE_MORE)
    campaign.report(f"caught: {unflushed:,} bytes waited, {memory:,} bytes of memory")
