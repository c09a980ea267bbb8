"""What a master keeps at the coordinator, step by step.

Random interleavings: `test_elections.py`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from aerobee_broker.replication.election.coordinators.mastership_keeper import (
    MastershipKeeper,
    MayBeReplaced,
)
from aerobee_broker.replication.identity import Replica
from support.clock.polling import until
from support.clock.virtual_loop import LoopClock
from support.etcd.coordinator_contract import Group, candidacy, replica_of
from support.etcd.simulated_etcd import Faults, SimulatedEtcd

ALONE = frozenset({replica_of(0)})
BOTH = frozenset({replica_of(0), replica_of(1)})


@pytest.fixture
def cluster() -> SimulatedEtcd:
    return SimulatedEtcd(random.Random(1))


@pytest.fixture
async def group(cluster: SimulatedEtcd) -> AsyncIterator[Group]:
    group = Group(cluster.client, LoopClock())
    yield group
    await group.close()


class Successors:
    """What the replicas answer after etcd has lost the state. `asked`: the replicas, each time."""

    def __init__(self) -> None:
        self.asked: list[frozenset[Replica]] = []
        self.are_silent = self.was_elected = False

    async def may_restore(self, possible: frozenset[Replica]) -> bool:
        self.asked.append(possible)
        if self.are_silent:
            raise MayBeReplaced("silent")
        return not self.was_elected


@pytest.fixture
def successors() -> Successors:
    return Successors()


@pytest.fixture
async def keeper(group: Group, successors: Successors) -> MastershipKeeper:
    """Of replica 0, which is alone in the set."""
    first = await group.join(0)
    elected = await first.elect(await first.read())
    assert elected
    return MastershipKeeper(first, elected, successors.may_restore)


@pytest.fixture(autouse=True)
async def running(keeper: MastershipKeeper) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(keeper.run())
    yield task
    task.cancel()


async def test_a_replica_that_joins_is_not_settled_before_it_is_in_the_set(
    keeper: MastershipKeeper,
) -> None:
    keeper.want(BOTH, 0)
    assert (keeper.in_sync, keeper.is_settled) == (ALONE, False)
    await until(lambda: keeper.is_settled)
    assert keeper.in_sync == BOTH


async def test_a_replica_that_leaves_is_in_the_set_until_it_is_written(
    cluster: SimulatedEtcd, keeper: MastershipKeeper
) -> None:
    keeper.want(BOTH, 0)
    await until(lambda: keeper.is_settled)
    cluster.go_away()
    keeper.want(ALONE, 0)
    await asyncio.sleep(60)
    assert (keeper.in_sync, keeper.is_settled) == (BOTH, False)
    cluster.come_back()
    await until(lambda: keeper.is_settled)
    assert keeper.in_sync == ALONE


async def test_what_is_not_wanted_any_more_may_still_be_written(
    cluster: SimulatedEtcd, keeper: MastershipKeeper
) -> None:
    cluster.faults = Faults(late_write=1.0)
    keeper.want(BOTH, 0)
    await asyncio.sleep(0.01)
    keeper.want(ALONE, 0)
    assert (keeper.in_sync, keeper.is_settled) == (ALONE, False)
    cluster.faults = Faults()
    await until(lambda: keeper.is_settled)
    assert keeper.in_sync == ALONE


async def test_a_key_that_ended_is_put_again(
    cluster: SimulatedEtcd, keeper: MastershipKeeper
) -> None:
    epoch = keeper.mastership.epoch
    cluster.end_leases()
    await until(lambda: not keeper.is_settled)
    await until(lambda: keeper.is_settled)
    assert keeper.mastership.epoch == epoch


async def test_it_ends_when_another_replica_is_elected(
    group: Group, keeper: MastershipKeeper, running: asyncio.Task[None]
) -> None:
    keeper.want(BOTH, 0)
    await until(lambda: keeper.is_settled)
    second = await group.join(1)
    second.announce(candidacy(replica_of(1), epoch=keeper.mastership.epoch))
    assert await second.elect(await second.read())
    await running


async def test_it_ends_although_etcd_has_lost_the_election_of_its_successor(
    cluster: SimulatedEtcd, group: Group, keeper: MastershipKeeper, running: asyncio.Task[None]
) -> None:
    """It reads of the election while a write of its own has no answer."""
    keeper.want(BOTH, 0)
    await until(lambda: keeper.is_settled)
    second = await group.join(1)
    second.announce(candidacy(replica_of(1), epoch=keeper.mastership.epoch))
    view = await second.read()
    cluster.faults = Faults(late_write=1.0)
    keeper.want(ALONE, 0)
    await asyncio.sleep(0.01)
    cluster.faults = Faults()
    assert await second.elect(view)
    await asyncio.sleep(0.01)
    cluster.restore()
    await asyncio.sleep(10)
    assert running.done()


async def test_a_lost_state_is_written_back_once_all_that_may_be_elected_have_answered(
    cluster: SimulatedEtcd, group: Group, keeper: MastershipKeeper, successors: Successors
) -> None:
    keeper.want(BOTH, 0)
    await until(lambda: keeper.is_settled)
    other = await group.join(1)
    successors.are_silent = True
    cluster.restore()
    await asyncio.sleep(10)
    assert (await other.read()).state is None and not keeper.is_settled
    successors.are_silent = False
    await until(lambda: keeper.is_settled)
    state = (await other.read()).state
    assert state is not None and state.in_sync == BOTH == successors.asked[-1]


async def test_a_set_without_an_answer_may_have_been_in_the_lost_data(
    cluster: SimulatedEtcd, keeper: MastershipKeeper, successors: Successors
) -> None:
    cluster.faults = Faults(late_write=1.0)
    keeper.want(BOTH, 0)
    await asyncio.sleep(0.01)
    cluster.faults = Faults()
    cluster.restore()
    await until(lambda: keeper.is_settled)
    assert successors.asked == [BOTH]


async def test_a_lost_state_is_not_written_back_after_an_election(
    cluster: SimulatedEtcd,
    group: Group,
    successors: Successors,
    running: asyncio.Task[None],
) -> None:
    other = await group.join(1)
    successors.was_elected = True
    cluster.restore()
    await running
    assert (await other.read()).state is None
