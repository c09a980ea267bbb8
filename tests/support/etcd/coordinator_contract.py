"""What brokers rely on in a coordinator, as tests: on a real etcd and on a simulated one.

A subclass of `CoordinatorContract` gives the fixture `group`: members of one new broker group.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable
from typing import Protocol

import pytest

from aerobee_broker.replication.election.coordinators.coordinator import (
    Candidacy,
    CoordinatorDamaged,
    StoreOpenedElsewhere,
    StoreRecord,
    View,
)
from aerobee_broker.replication.election.coordinators.etcd import Delete, Etcd, Put
from aerobee_broker.replication.election.coordinators.etcd_coordinator import EtcdCoordinator
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.log.epochs import NOTHING, Reach
from aerobee_chassis.clock import Clock
from support.clock.polling import until

LEASE_TTL_S = 2
_groups = itertools.count()


class Closable(Etcd, Protocol):
    async def close(self) -> None: ...


class Group:
    """Replicas of one broker group, each with a client of its own. `etcd`: one more client."""

    def __init__(self, make_client: Callable[[], Closable], clock: Clock) -> None:
        self.prefix = f"/aerobee/cluster/broker-{next(_groups)}/"
        self.etcd = make_client()
        self._make_client = make_client
        self._clock = clock
        self._closing = contextlib.AsyncExitStack()
        self._closing.push_async_callback(self.etcd.close)

    async def join(self, replica_id: int, store_id: str = "") -> EtcdCoordinator:
        """A process that has announced itself. Again: another process of that replica."""
        coordinator = self.start(replica_id, store_id)
        coordinator.announce(candidacy(replica_of(replica_id, store_id)))
        await until(lambda: coordinator.alive_until_ms() > 0)
        return coordinator

    def start(self, replica_id: int, store_id: str = "") -> EtcdCoordinator:
        """A process that has not announced itself yet."""
        replica = replica_of(replica_id, store_id)
        client = self._make_client()
        coordinator = EtcdCoordinator(
            client,
            self.prefix,
            replica,
            lease_ttl_s=LEASE_TTL_S,
            clock=self._clock,
            rng=random.Random(f"{replica} {id(client)}"),
        )
        self._closing.push_async_callback(client.close)
        self._closing.push_async_callback(coordinator.close)
        return coordinator

    async def close(self) -> None:
        await self._closing.aclose()


def replica_of(replica_id: int, store_id: str = "") -> Replica:
    return Replica(replica_id, store_id or f"store-{replica_id}")


def candidacy(replica: Replica, *, epoch: int = 0, end: int = 0) -> Candidacy:
    return Candidacy(replica, f"127.0.0.1:{replica.replica_id}", epoch, end, priority=0)


async def until_view(coordinator: EtcdCoordinator, condition: Callable[[View], object]) -> View:
    view = coordinator.view
    while view is None or not condition(view):
        view = await coordinator.changed(view)
    return view


class CoordinatorContract:
    async def test_a_new_group_has_no_state(self, group: Group) -> None:
        first = await group.join(0)
        view = await first.read()
        assert (view.state, view.state_revision, view.master) == (None, 0, None)
        assert view.candidacies == {0: candidacy(replica_of(0))}

    async def test_every_replica_hears_of_an_election(self, group: Group) -> None:
        first, second = await group.join(0), await group.join(1)
        elected = await first.elect(await first.read())
        assert elected and elected.epoch == 1
        assert elected.state.in_sync == {replica_of(0)}

        view = await until_view(second, lambda view: view.master)

        assert view.master and view.master.nonce == elected.nonce
        assert (view.master.address, view.master.epoch) == ("127.0.0.1:0", 1)
        assert view.state == elected.state
        assert elected.seen_in(view) == elected

    async def test_of_two_elections_by_one_view_one_wins(self, group: Group) -> None:
        first, second = await group.join(0), await group.join(1)
        view = await first.read()
        assert await second.elect(view)
        assert await first.elect(view) is None

    async def test_a_replica_outside_of_the_set_is_not_elected(self, group: Group) -> None:
        first, second = await group.join(0), await group.join(1)
        elected = await first.elect(await first.read())
        assert elected
        await first.resign(elected)
        view = await until_view(second, lambda view: view.state and not view.master)
        with pytest.raises(ValueError):
            await second.elect(view)
        unclean = await second.elect(view, unclean=True)
        assert unclean and unclean.epoch == 2

    async def test_a_new_store_under_an_old_number_is_another_replica(self, group: Group) -> None:
        first = await group.join(0, "old")
        elected = await first.elect(await first.read())
        assert elected
        await first.resign(elected)
        again = await group.join(0, "new")
        with pytest.raises(ValueError):
            await again.elect(await again.read())

    async def test_a_member_of_the_set_is_elected_over_a_key_that_stands(
        self, group: Group
    ) -> None:
        first, second = await group.join(0), await group.join(1)
        old = await first.elect(await first.read())
        assert old
        old = await first.change_in_sync(old, frozenset({replica_of(0), replica_of(1)}), NOTHING)
        assert old

        new = await second.elect(await second.read())

        assert new and new.epoch == 2
        assert new.state.in_sync == {replica_of(1)}
        assert await first.change_in_sync(old, frozenset({replica_of(0)}), NOTHING) is None
        await first.resign(old)
        view = await second.read()
        assert view.master and view.master.nonce == new.nonce
        assert old.seen_in(view) is None

    async def test_the_set_changes_step_by_step(self, group: Group) -> None:
        first = await group.join(0)
        alone = await first.elect(await first.read())
        assert alone
        both = frozenset({replica_of(0), replica_of(1)})
        two = await first.change_in_sync(alone, both, NOTHING)
        assert two and two.epoch == 1
        assert await first.change_in_sync(alone, frozenset({replica_of(0)}), NOTHING) is None
        view = await first.read()
        assert view.state == two.state
        assert view.may_be_elected(candidacy(replica_of(1)))
        assert not view.may_be_elected(candidacy(replica_of(2)))

    async def test_a_key_without_a_lease_is_put_again_in_the_same_epoch(self, group: Group) -> None:
        first, second = await group.join(0), await group.join(1)
        elected = await first.elect(await first.read())
        assert elected
        await first.resign(elected)  # as when its lease ends
        gone = elected.seen_in(await first.read())
        assert gone
        assert (gone.master_revision, gone.state_revision) == (0, elected.state_revision)

        again = await first.reclaim(gone)

        assert again and again.epoch == 1
        assert await first.reclaim(gone) is None
        view = await second.read()
        assert view.master and view.master.nonce == elected.nonce
        assert again.seen_in(view) == again

    async def test_after_another_election_a_key_is_not_put_again(self, group: Group) -> None:
        first, second = await group.join(0), await group.join(1)
        both = frozenset({replica_of(0), replica_of(1)})
        elected = await first.elect(await first.read())
        assert elected
        elected = await first.change_in_sync(elected, both, NOTHING)
        assert elected
        new = await second.elect(await second.read())
        assert new
        await second.resign(new)
        assert await first.reclaim(elected) is None
        assert (await first.read()).master is None

    async def test_the_keys_of_a_replica_end_with_it(self, group: Group) -> None:
        first, second = await group.join(0), await group.join(1)
        assert await first.elect(await first.read())
        await until_view(second, lambda view: view.master and len(view.candidacies) == 2)

        await first.close()

        view = await until_view(second, lambda view: len(view.candidacies) == 1)
        assert view.master is None and view.state

    async def test_a_replica_says_anew_what_has_changed(self, group: Group) -> None:
        first, second = await group.join(0), await group.join(1)
        first.announce(candidacy(replica_of(0), end=100))
        await until_view(second, lambda view: view.candidacies[0].end == 100)

    async def test_a_lease_is_kept_for_longer_than_it_lasts(self, group: Group) -> None:
        first = await group.join(0)
        assert await first.elect(await first.read())
        began = first.alive_until_ms()
        await until(lambda: first.alive_until_ms() > began + 2 * LEASE_TTL_S * 1000)
        assert (await first.read()).master

    async def test_a_store_is_remembered_beyond_its_process(self, group: Group) -> None:
        first = await group.join(0)
        assert await first.recorded() == StoreRecord()
        await first.enroll(4)
        first.announce(candidacy(replica_of(0), epoch=3, end=100))
        await until_view(first, lambda view: view.candidacies[0].end == 100)
        first.announce(candidacy(replica_of(0), epoch=3, end=120))
        await first.close()

        at_the_end = StoreRecord(4, Reach(3, 120))
        assert await group.start(0).recorded() == at_the_end
        assert await group.start(0, "another store").recorded() == StoreRecord()

    async def test_of_two_processes_with_one_store_one_is_enrolled(self, group: Group) -> None:
        first, second = await group.join(0), await group.join(0)
        await first.enroll(1)
        with pytest.raises(StoreOpenedElsewhere):
            await second.enroll(1)
        await second.enroll(2)
        assert await first.elect(await first.read()) is None, "another process has the store"

    async def test_a_living_master_writes_a_lost_state_back(self, group: Group) -> None:
        first, second = await group.join(0), await group.join(1)
        elected = await first.elect(await first.read())
        assert elected
        both = frozenset({replica_of(0), replica_of(1)})
        elected = await first.change_in_sync(elected, both, Reach(1, 50))
        assert elected
        deletions = [Delete(group.prefix + key) for key in ("state", "master")]
        await group.etcd.write([], deletions)
        lost = elected.seen_in(await first.read())
        assert lost and lost.is_forgotten

        restored = await first.restore(lost)

        assert restored and not restored.is_forgotten
        assert await first.restore(lost) is None
        state = (await second.read()).state
        assert state and (state.epoch, state.in_sync, state.floor) == (1, both, Reach(1, 50))
        assert state.version > elected.state.version
        view = await second.read()
        assert restored.seen_in(view) == restored

    async def test_what_no_broker_wrote_is_damage(self, group: Group) -> None:
        first = await group.join(0)
        await group.etcd.write([], [Put(group.prefix + "state", b'{"epoch":"x"}')])
        with pytest.raises(CoordinatorDamaged):
            await first.read()
