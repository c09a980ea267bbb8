"""Random interleavings of elections and changes of the set: one master an epoch, elected from the
set, waiting for all of it. And the rules notice what breaks them."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_broker.replication.election.coordinators.coordinator import View
from aerobee_broker.replication.election.coordinators.etcd_coordinator import EtcdCoordinator
from aerobee_broker.replication.election.coordinators.mastership_keeper import MastershipKeeper
from aerobee_broker.replication.identity import Replica
from support.etcd.election_model import Broken, ElectionModel, MakeKeeper

SEEDS = range(20)
SECONDS = 120


async def play(seed: int, make_keeper: MakeKeeper = MastershipKeeper) -> ElectionModel:
    """Raises Broken."""
    model = ElectionModel(seed, make_keeper)
    running = asyncio.create_task(model.run(SECONDS))
    while not running.done():
        await asyncio.wait([running], timeout=0.02)
        model.check_waits_now()
    await running
    return model


async def test_elections_keep_the_rules() -> None:
    epochs = changes = 0
    for seed in SEEDS:
        try:
            model = await play(seed)
        except Broken as error:
            raise AssertionError(f"seed {seed}") from error
        epochs, changes = epochs + model.epochs, changes + model.changes
    assert epochs > 10 * len(SEEDS) and changes > 10 * len(SEEDS)


class SettlesAtOnce(MastershipKeeper):
    """A replica that joins is not waited for before it is in the set."""

    async def settled(self) -> frozenset[Replica]:
        return self.in_sync


class LeavesAtOnce(MastershipKeeper):
    """A replica that leaves is not waited for any more, although it is in the set."""

    async def settled(self) -> frozenset[Replica]:
        return self._wanted


class ForgetsUnanswered(MastershipKeeper):
    """A write whose answer is lost counts as one that was not carried out."""

    @property
    def is_settled(self) -> bool:
        return self.in_sync == self._wanted and self._mastership.master_revision != 0


async def play_all(make_keeper: MakeKeeper = MastershipKeeper) -> None:
    for seed in SEEDS:
        await play(seed, make_keeper)


@pytest.mark.parametrize("broken", [SettlesAtOnce, LeavesAtOnce, ForgetsUnanswered])
async def test_a_master_that_waits_for_too_few_is_noticed(broken: MakeKeeper) -> None:
    with pytest.raises(Broken):
        await play_all(broken)


async def test_an_election_from_outside_of_the_set_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(View, "may_be_elected", lambda view, replica: view.state is not None)
    with pytest.raises(Broken):
        await play_all()


async def test_an_election_that_compares_nothing_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(EtcdCoordinator, "_unchanged", lambda *revisions: [])
    with pytest.raises(Broken):
        await play_all()
