"""Random histories of a broker group, and those that random ones seldom meet."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from fault.conftest import Campaign
from fault.replication.failover import (
    bring_a_slave_before_an_old_master,
    failover,
    follow_with_a_slave_that_reports_too_much,
    kill_an_old_master_after_it_has_cut_its_log,
    lose_a_disk_while_all_are_off,
    make_a_deleted_topic_again_while_a_slave_is_away,
    restart_a_master_that_lost_more_than_its_slave,
    run,
)


def test_random_failovers(campaign: Campaign) -> None:
    acknowledged = elections = histories = 0
    for seed in campaign.seeds(short=60, long=5_000):
        try:
            history = failover(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        histories += 1
        acknowledged += len(history.group.acknowledged)
        elections += history.elections
    campaign.report(f"{histories} histories, {elections} elections, {acknowledged} acknowledged")
    assert histories


@pytest.mark.parametrize(
    "scenario",
    [
        restart_a_master_that_lost_more_than_its_slave,
        bring_a_slave_before_an_old_master,
        lose_a_disk_while_all_are_off,
        make_a_deleted_topic_again_while_a_slave_is_away,
        kill_an_old_master_after_it_has_cut_its_log,
        follow_with_a_slave_that_reports_too_much,
    ],
)
def test_what_is_rare_in_random_histories(
    scenario: Callable[[int], Coroutine[Any, Any, None]], campaign: Campaign
) -> None:
    for seed in campaign.seeds(short=5, long=200):
        run(scenario, seed)
