"""The coordinator on a simulated etcd: its contract, and what happens when answers are lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence

import pytest

from aerobee_broker.replication.election.coordinators.coordinator import (
    CoordinatorAway,
    CoordinatorDamaged,
    View,
)
from aerobee_broker.replication.election.coordinators.etcd import Delete, EtcdRefused, Put, Write
from aerobee_broker.replication.election.coordinators.etcd_coordinator import EtcdCoordinator
from aerobee_broker.replication.log.epochs import NOTHING
from support.clock.polling import until
from support.clock.virtual_loop import LoopClock
from support.etcd.coordinator_contract import (
    LEASE_TTL_S,
    CoordinatorContract,
    Group,
    replica_of,
    until_view,
)
from support.etcd.simulated_etcd import Faults, SimulatedEtcd, SimulatedEtcdClient


@pytest.fixture
def cluster() -> SimulatedEtcd:
    return SimulatedEtcd(random.Random(1))


@pytest.fixture
async def group(cluster: SimulatedEtcd) -> AsyncIterator[Group]:
    group = Group(cluster.client, LoopClock())
    yield group
    await group.close()


class TestOnSimulatedEtcd(CoordinatorContract):
    """What brokers rely on."""


async def test_an_election_whose_answer_is_lost_is_found_by_its_nonce(
    cluster: SimulatedEtcd, group: Group
) -> None:
    first = await group.join(0)
    view = await first.read()
    cluster.faults = Faults(lost_answer=1.0)
    electing = asyncio.create_task(first.elect(view))
    await until(lambda: cluster.snapshot(group.prefix + "master").items)
    cluster.faults = Faults()
    elected = await electing
    assert elected and elected.epoch == 1
    assert elected.seen_in(await first.read()) == elected


@pytest.mark.parametrize("value", [b'{"epoch": 1e999, "inSync": []}', b"[]", b"{"])
async def test_a_value_that_no_broker_wrote_is_damage_until_it_is_replaced(
    cluster: SimulatedEtcd, group: Group, value: bytes
) -> None:
    replica = await group.join(0)
    operator = cluster.client(timeout_s=2.0)
    state = group.prefix + "state"
    await operator.write([], [Put(state, value)])
    await until(lambda: not replica.is_reachable, "it finds the damage")
    with pytest.raises(CoordinatorDamaged):
        await replica.read()
    await operator.write([], [Delete(state)])
    await until(lambda: replica.is_reachable, "it reads the keys again")


async def test_a_lease_is_renewed_after_a_defect(
    cluster: SimulatedEtcd, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await group.join(0)
    good = SimulatedEtcdClient.keep_alive

    async def fails_once(client: SimulatedEtcdClient, lease_id: int) -> None:
        monkeypatch.setattr(SimulatedEtcdClient, "keep_alive", good)
        raise RuntimeError("a defect")

    monkeypatch.setattr(SimulatedEtcdClient, "keep_alive", fails_once)
    await until(lambda: SimulatedEtcdClient.keep_alive is good, "the renewal fails")
    before_ms = replica.alive_until_ms()
    await until(lambda: replica.alive_until_ms() > before_ms, "the lease is renewed")


async def claim_late(cluster: SimulatedEtcd, replica: EtcdCoordinator) -> View:
    """Etcd carries the claim out once nobody waits for its answer. The view that it was made by."""
    view = await replica.read()
    cluster.faults = Faults(late_write=1.0)
    with pytest.raises(CoordinatorAway):
        await replica.elect(view)
    cluster.faults = Faults()
    return view


async def test_an_election_that_is_carried_out_late_is_in_a_view(
    cluster: SimulatedEtcd, group: Group
) -> None:
    first = await group.join(0)
    await claim_late(cluster, first)

    view = await until_view(first, lambda view: view.master)

    elected = first.claimed_in(view)
    assert elected and elected.epoch == 1
    assert first.claimed_in(view) is None


async def test_a_claim_that_comes_after_a_late_one_of_its_own_does_not_hide_it(
    cluster: SimulatedEtcd, group: Group
) -> None:
    first = await group.join(0)
    view = await claim_late(cluster, first)
    await until_view(first, lambda view: view.master)

    assert await first.elect(view) is None, "the view is an old one"
    mastership = first.claimed_in(await first.read())
    assert mastership is not None and mastership.epoch == 1


async def test_an_election_that_etcd_refuses_is_not_known_to_be_lost(
    cluster: SimulatedEtcd, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has changed since the view. All claims of an epoch have one nonce: what is kept of
    them does not grow."""
    first = await group.join(0)
    view = await first.read()
    claims = []

    def full(_: object, writes: Sequence[Write]) -> int | None:
        claims.append([write.value for write in writes if isinstance(write, Put)])
        raise EtcdRefused("no space")

    with monkeypatch.context() as patch:
        patch.setattr(cluster, "write", full)
        for _ in range(3):
            with pytest.raises(CoordinatorAway):
                await first.elect(view)
    assert claims == claims[:1] * 3
    elected = await first.elect(view)
    assert elected and elected.epoch == 1


async def test_while_etcd_is_away_every_call_says_so_and_nothing_ends(
    cluster: SimulatedEtcd, group: Group
) -> None:
    first = await group.join(0)
    elected = await first.elect(await first.read())
    assert elected
    cluster.go_away()
    with pytest.raises(CoordinatorAway):
        await first.read()
    with pytest.raises(CoordinatorAway):
        await first.change_in_sync(elected, frozenset({replica_of(0), replica_of(1)}), NOTHING)
    await asyncio.sleep(10 * LEASE_TTL_S)
    assert first.alive_until_ms() < LoopClock().monotonic_ms()

    cluster.come_back()

    await until(lambda: first.alive_until_ms() > LoopClock().monotonic_ms())
    assert elected.seen_in(await first.read()) == elected


async def test_a_replica_whose_lease_ended_early_is_alive_again_under_another(
    cluster: SimulatedEtcd, group: Group
) -> None:
    first, second = await group.join(0), await group.join(1)
    elected = await first.elect(await first.read())
    assert elected
    cluster.end_leases()
    view = await second.read()
    assert view.master is None and not view.candidacies

    view = await until_view(second, lambda view: len(view.candidacies) == 2)

    gone = elected.seen_in(view)
    assert gone and await first.reclaim(gone)


async def test_a_watch_that_etcd_forgot_is_taken_up_again(
    cluster: SimulatedEtcd, group: Group
) -> None:
    first, second = await group.join(0), await group.join(1)
    cluster.compact()
    assert await first.elect(await first.read())
    cluster.compact()
    await until_view(second, lambda view: view.master)


async def test_a_silent_watch_delays_news_by_a_renewal(
    cluster: SimulatedEtcd, group: Group
) -> None:
    first, second = await group.join(0), await group.join(1)
    cluster.silent = True
    began = asyncio.get_running_loop().time()
    assert await first.elect(await first.read())
    await until_view(second, lambda view: view.master)
    assert asyncio.get_running_loop().time() - began <= LEASE_TTL_S / 3 + 0.01


async def test_data_that_went_back_is_noticed_by_its_revision(
    cluster: SimulatedEtcd, group: Group
) -> None:
    first, second = await group.join(0), await group.join(1)
    await first.enroll(3)
    elected = await first.elect(await first.read())
    assert elected
    before = await first.read()

    cluster.restore()

    view = await until_view(first, lambda view: view.incarnation > before.incarnation)
    assert view.state is None
    lost = elected.seen_in(view)
    assert lost and lost.is_forgotten
    await until(lambda: first.view and first.view.shows(replica_of(0)))
    lost = elected.seen_in(await first.read())
    assert lost and await first.restore(lost)
    await until_view(second, lambda view: view.state)
    assert (await first.recorded()).generation == 3, "the store is known again"


async def test_an_older_state_is_one_that_went_back(cluster: SimulatedEtcd, group: Group) -> None:
    first = await group.join(0)
    elected = await first.elect(await first.read())
    assert elected
    saved = cluster.save()
    both = frozenset({replica_of(0), replica_of(1)})
    changed = await first.change_in_sync(elected, both, NOTHING)
    assert changed
    cluster.restore(saved)
    view = await until_view(first, lambda view: view.incarnation)
    lost = changed.seen_in(view)
    assert lost and lost.is_forgotten
    assert view.trusted_state(changed.state.version) is None
    assert view.trusted_state(elected.state.version) == elected.state
