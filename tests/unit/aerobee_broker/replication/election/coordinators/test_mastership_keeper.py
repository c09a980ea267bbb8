"""What a master keeps at the coordinator, step by step.

Random interleavings: `test_elections.py`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from aerobee_broker.replication.election.coordinators.mastership_keeper import MastershipKeeper
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


@pytest.fixture
async def keeper(group: Group) -> MastershipKeeper:
    """Of replica 0, which is alone in the set."""
    first = await group.join(0)
    elected = await first.elect(await first.read())
    assert elected
    return MastershipKeeper(first, elected)


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
