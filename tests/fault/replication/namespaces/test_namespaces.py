"""A broker group of real processes, each on a host of its own, while processes, machines, links,
disks and clocks fail.

`--campaign` meets each fault in both modes, several times; a seed chooses the faults of a history,
their victims and how long they last. It leaves what it counted in build/namespaces, for `python -m
fault.replication.namespaces.figures`.
"""

from __future__ import annotations

import dataclasses
import os
import random
import sys
from pathlib import Path

import pytest

from fault.conftest import Campaign
from fault.replication.namespaces import broken_broker, figures
from fault.replication.namespaces.faults import FAULTS, Fault
from fault.replication.namespaces.group import MODES
from fault.replication.namespaces.history import lived
from fault.replication.namespaces.verdict import counted, problems
from support.etcd.etcd_process import require_etcd
from support.processes.network_namespaces import require_namespaces
from support.proxy.official_sdk import newest

pytestmark = pytest.mark.slow

# In `make test`, and for how long at most; the second for longer than the lease of the master.
SHORT = {"kill -9 of the master": 1.0, "master + clients | slaves + etcd": 6.0}
ROUNDS = 6  # of a history of the campaign
HISTORIES = 60


def faults_of(seed: int) -> list[Fault]:
    """Of the campaign. As many seeds as parts, one after the other, meet each fault once."""
    parts = -(-len(FAULTS) // ROUNDS)
    turn, part = divmod(seed // len(MODES), parts)
    return random.Random(turn).sample(FAULTS, len(FAULTS))[part::parts]


def mode_of(seed: int) -> str:
    return list(MODES)[seed % len(MODES)]


def short_faults() -> list[Fault]:
    return [
        dataclasses.replace(fault, hold_s=(0.8 * SHORT[fault.name], SHORT[fault.name]))
        for fault in FAULTS
        if fault.name in SHORT
    ]


def test_nothing_that_was_acknowledged_is_lost(tmp_path: Path, campaign: Campaign) -> None:
    require_etcd()
    require_namespaces()
    official = newest("python")
    sdk = official if official.is_built or official.is_required else None
    for seed in campaign.seeds(1, HISTORIES):
        faults = faults_of(seed) if campaign.long else short_faults()
        path = tmp_path / str(seed)
        path.mkdir()
        print(f"seed {seed}: {', '.join(fault.name for fault in faults)}")
        history = lived(seed, mode_of(seed), faults, path, sdk)
        counts = counted(history)
        if campaign.long:
            figures.keep(seed, counts)
        for count in counts:
            campaign.report(f"seed {seed}: {count}")
        assert list(problems(history)) == []
        assert all(count.acknowledged for count in counts)


@pytest.mark.parametrize("rule", broken_broker.BREAKAGES)
def test_a_broker_that_breaks_a_rule_is_noticed(
    rule: str, tmp_path: Path, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not campaign.long:
        pytest.skip("only in the campaign")
    require_etcd()
    require_namespaces()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv(broken_broker.VARIABLE, rule)
    # What an isolated master shows may be sent again, and lie at the same place: three times.
    isolated = [fault for fault in short_faults() if fault.hits == "network"] * 3
    module = broken_broker.__name__
    history = lived(0, "SYNC_MASTER", isolated, tmp_path, None, module=module)
    found = list(problems(history))
    campaign.report(f"{rule}: {len(found)} problems, such as {found[:1]}")
    assert found
