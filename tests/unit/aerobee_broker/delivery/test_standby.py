"""The leases that a slave keeps ready: those of the broker whose log it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.delivery import standby
from aerobee_broker.delivery.pop.lease_table import LeaseTable
from aerobee_broker.delivery.standby import WarmLeases
from aerobee_broker.metadata.persistent_table import JsonFile, PersistentTable
from aerobee_wire.topics import pop_journal_topic
from support.broker.harness import BrokerHarness, InlineWorker
from support.broker.pop_consumer import PopConsumer
from support.disk.simulated_disk import SimulatedDisk

FILE = Path("/data/popLeases.json")


class Slave:
    """Of the log that the harness's broker has; its files are on a disk of its own."""

    def __init__(self, harness: BrokerHarness, disk: SimulatedDisk) -> None:
        disk.make_directory(FILE.parent)
        self.table = LeaseTable(harness.clock, lambda: self.leases.position)
        file = PersistentTable(self.table, JsonFile(disk, FILE), InlineWorker())
        topic = pop_journal_topic("DefaultCluster")
        self.leases = WarmLeases(harness.store, self.table, file, topic)


def contents(table: LeaseTable) -> dict[tuple[str, str, int], Any]:
    """What a snapshot says of each queue that was popped from."""
    return {
        (group["group"], group["topic"], queue[0]): queue[1:]
        for group in table.to_json()["groups"]
        for queue in group["queues"]
        if queue[1]
    }


async def test_a_slave_keeps_its_masters_leases_and_goes_on_from_its_own_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "SLICE_RECORDS", 2)
    harness = await BrokerHarness.begin(tmp_path)
    consumer = PopConsumer(harness)
    await harness.group(consumer.group)
    disk = SimulatedDisk()
    slave = Slave(harness, disk)
    table = harness.broker.consuming.leases.table
    for round_ in range(4):
        for number in range(3):
            await consumer.put(b"%d %d" % (round_, number))
        popped = await consumer.pop()
        await consumer.ack(popped[0])
        await slave.leases.catch_up()
        assert contents(slave.table) == contents(table)
        await slave.leases.save()
        disk = disk.after_kill()
        slave = Slave(harness, disk)
        assert contents(slave.table) == contents(table), "from its snapshot alone"
        assert not slave.leases.step()
        assert len(contents(table)) == 1
    other = Slave(harness, SimulatedDisk(1))
    other.leases.take(table.to_json())
    assert contents(other.table) == contents(table)
    await harness.end()
