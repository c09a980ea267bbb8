"""The id of a store."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from aerobee_broker.errors import ConfigFileDamaged
from aerobee_broker.replication.identity import IdentityFile
from aerobee_wire.checked_json import encode
from support.disk.simulated_disk import SimulatedDisk

FILE = Path("/data/config/brokerIdentity.json")


def identity_file(disk: SimulatedDisk, seed: int) -> IdentityFile:
    return IdentityFile(disk, FILE, random.Random(seed))


def test_a_store_keeps_its_id() -> None:
    disk = SimulatedDisk(0)
    store_id = identity_file(disk, 1).load()
    assert len(store_id) == 16 and int(store_id, 16) >= 0
    assert identity_file(disk, 2).load() == store_id
    assert identity_file(disk.after_power_cut(3), 4).load() == store_id


def test_an_empty_disk_gets_another_id() -> None:
    assert identity_file(SimulatedDisk(0), 1).load() != identity_file(SimulatedDisk(0), 2).load()


def test_a_renewed_id_is_another_one_and_durable() -> None:
    disk = SimulatedDisk(0)
    file = identity_file(disk, 1)
    first = file.load()
    second = file.renew()
    assert second != first
    assert identity_file(disk.after_power_cut(5), 6).load() == second


@pytest.mark.parametrize("damage", [b"", b"[]", encode({}), encode({"storeId": 7})])
def test_a_damaged_file_gives_no_new_id(damage: bytes) -> None:
    disk = SimulatedDisk(0)
    disk.make_directory(FILE.parent)
    disk.open(FILE, create=True).pwrite(damage, 0)
    with pytest.raises(ConfigFileDamaged):
        identity_file(disk, 1).load()
