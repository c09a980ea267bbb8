"""The demo on three brokers that elect their master at etcd, with `--campaign`.

The master is killed in the middle; what the demo computed is what the file of flights says.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fault.conftest import Campaign
from support.etcd.etcd_process import etcd_members
from support.processes.demo import DEMO_TIMEOUT_S, Demo, check_failover, check_figures, no_java

pytestmark = pytest.mark.slow

RUNS = 5
MESSAGES = 20_000


def test_the_figures_hold_when_the_master_is_killed_and_another_elected(
    tmp_path: Path, campaign: Campaign
) -> None:
    if not campaign.long:
        pytest.skip("only in the campaign")
    for run in range(RUNS):
        folder = tmp_path / str(run)
        folder.mkdir()
        with etcd_members(folder, 1) as [etcd]:
            arguments = ("--failover", "--messages", str(MESSAGES), "--etcd", etcd.endpoint)
            with Demo(folder, *arguments, **no_java(folder)) as demo:
                assert demo.wait(DEMO_TIMEOUT_S) == 0
                demo.check_nothing_is_left()
        check_failover(demo, "elected")
        check_figures(demo.summary(), MESSAGES)
