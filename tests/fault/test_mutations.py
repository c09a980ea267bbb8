"""The suite is tested itself: the store is broken on purpose, and a history must notice."""

from __future__ import annotations

import pytest

from fault.conftest import Campaign
from fault.history import power_cuts
from fault.mutations import MUTATIONS, Mutation, name_of, skip_the_crc
from fault.test_bit_flips import flip_many, recorded

IN_HISTORIES = [mutation for mutation in MUTATIONS if mutation is not skip_the_crc]
ENOUGH = 200  # seeds; half of them with a disk that fails


@pytest.mark.parametrize("mutation", IN_HISTORIES, ids=name_of)
def test_a_store_that_is_broken_on_purpose_is_caught(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch, campaign: Campaign
) -> None:
    mutation(monkeypatch)
    for seed in range(ENOUGH):
        try:
            power_cuts(seed, disk_fails=seed % 2 == 1)
        except Exception as error:
            campaign.tell(f"caught with seed {seed}: {str(error)[:100]}")
            return
    pytest.fail(f"{name_of(mutation)}: {ENOUGH} histories did not notice")


def test_a_store_that_skips_the_crc_is_caught(
    monkeypatch: pytest.MonkeyPatch, campaign: Campaign
) -> None:
    disk, sent = recorded()
    skip_the_crc(monkeypatch)
    flips = flip_many(disk, sent, range(300))
    assert flips.served_wrong > 0
    campaign.tell(f"caught: {flips.served_wrong} of {flips.flips} flips were served")
