"""The set of a group without etcd, in a file of its master."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from aerobee_broker.errors import ConfigFileDamaged
from aerobee_broker.replication.election.coordinators.coordinator import State
from aerobee_broker.replication.election.coordinators.static_coordinator import StaticCoordinator
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import PATH
from support.etcd.coordinator_contract import replica_of

FILE = PATH / "config" / "replicas.json"
ALONE = frozenset({replica_of(0)})
BOTH = frozenset({replica_of(0), replica_of(1)})
T = TypeVar("T")


def on_the_spot(function: Callable[[], T]) -> Awaitable[T]:
    async def done() -> T:
        return function()

    return done()


def coordinator(disk: SimulatedDisk) -> StaticCoordinator:
    found = StaticCoordinator(disk, FILE, on_the_spot)
    found.load()
    return found


async def test_a_master_begins_alone_and_its_set_is_durable() -> None:
    disk = SimulatedDisk(1)
    assert coordinator(disk).state is None
    first = coordinator(disk)
    await first.begin(3, replica_of(0))
    assert first.state == State(3, replica_of(0), ALONE)
    assert await first.write(BOTH) == BOTH

    again = coordinator(disk.after_power_cut(2))
    assert again.state == State(3, replica_of(0), BOTH)


async def test_a_write_that_fails_is_unknown_until_one_succeeds() -> None:
    disk = SimulatedDisk(1)
    static = coordinator(disk)
    await static.begin(1, replica_of(0))
    disk.fail_syncs = lambda path: path.parent == FILE.parent
    assert await static.write(BOTH) is None
    assert await static.read() is None
    disk.fail_syncs = lambda path: False
    assert await static.read() == ALONE
    assert coordinator(disk.after_power_cut(2)).state == State(1, replica_of(0), ALONE)


async def test_a_damaged_file_is_reported() -> None:
    disk = SimulatedDisk(1)
    await coordinator(disk).begin(1, replica_of(0))
    file = disk.open(FILE)
    file.pwrite(b"?", 3)
    with pytest.raises(ConfigFileDamaged):
        coordinator(disk)


async def test_what_the_options_made_of_a_replica_is_kept_beside_its_set() -> None:
    disk = SimulatedDisk(1)
    slave = coordinator(disk)
    assert slave.configured == ""
    await slave.configure("slave")
    again = coordinator(disk.after_power_cut(2))
    assert (again.configured, again.state) == ("slave", None)
    await again.begin(2, replica_of(0))
    await again.configure("master")
    assert again.state == State(2, replica_of(0), ALONE)
    assert again.configured == "master"
