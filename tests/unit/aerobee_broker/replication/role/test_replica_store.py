"""A store that reopens for another role, while its role is cancelled or a promotion is noted."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from aerobee_broker.config import BrokerOptions
from aerobee_broker.disk import replace_file
from aerobee_broker.metadata.runtime_config import RuntimeConfig
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.replication.election.manual_failover import ManualFailover
from aerobee_broker.replication.role.replica_store import ReplicaStore
from aerobee_broker.replication.role.role_runner import RoleRunner
from aerobee_broker.replication.role.unfinished import Unfinished
from aerobee_broker.store.format import THIS_BUILD, FormatFile
from aerobee_broker.wiring.environment import Environment
from aerobee_chassis.metrics.series import Registry
from aerobee_wire.checked_json import encode
from aerobee_wire.epochs import PROMOTION_STEP
from aerobee_wire.status import Code
from support.clock.virtual_loop import LoopClock
from support.codes import raises_code
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import PATH
from support.replication.worker import SimulatedWorker
from support.simulation.node import SMALL


async def opened() -> ReplicaStore:
    disk, worker = SimulatedDisk(), SimulatedWorker(random.Random(1), most_ms=5.0)
    options = BrokerOptions.from_values({**SMALL, "brokerRole": "SLAVE", "brokerId": 1})
    environment = Environment(
        config=RuntimeConfig(options, disk, PATH, worker),
        clock=LoopClock(),
        disk=disk,
        path=PATH,
        flusher=worker,
        writer=worker,
        rng=random.Random(2),
        metrics=BrokerMetrics(Registry()),
        format=FormatFile(disk, PATH, THIS_BUILD),
    )
    own = ReplicaStore(environment, "10.0.0.1:10911")
    await own.open()
    return own


async def test_a_role_that_is_cancelled_while_its_store_reopens_leaves_it_open() -> None:
    own = await opened()
    for waited_ms in range(12):
        before = own.store
        reopening = asyncio.create_task(own.reopen())
        await asyncio.sleep(waited_ms / 1000)
        reopening.cancel()
        await asyncio.wait([reopening])
        assert own.is_open and own.store is not before
    await own.close()


async def test_an_epoch_is_not_noted_for_a_log_that_is_being_reopened() -> None:
    """The answer has the end of the log, which the promoted replica compares with its own."""
    own = await opened()
    unused: Any = None
    roles = RoleRunner(own, unused, unused, unused, unused)
    member = ManualFailover(roles, unused, unused, "10.0.0.1:10911", unused)
    noting = asyncio.create_task(member.note_epoch(PROMOTION_STEP))
    await asyncio.sleep(0)
    reopening = asyncio.create_task(own.reopen())
    with raises_code(Code.SERVICE_NOT_AVAILABLE):
        await noting
    await reopening
    assert own.highest_epoch() == PROMOTION_STEP
    await own.close()


async def test_a_copy_begins_without_backups_of_what_it_wipes() -> None:
    """A table whose file is missing is loaded from its backup: leases of the log before."""
    own = await opened()
    disk, config = own.environment.disk, PATH / "config"
    names = ["liteLeases.json", "deletedTopics.json"]
    for name in names:
        for _ in range(2):
            replace_file(disk, config / name, encode({}), keep_backup=True)
    own.unfinished.write(Unfinished(copies=True, wipes=True))
    await own.reopen()
    left = set(disk.list(config))
    assert not left & {*names, *(f"{name}.bak" for name in names)}
    await own.close()


def is_doubtful(own: ReplicaStore) -> bool:
    assert own.is_displaced == own.enrollment.is_doubtful
    return own.is_displaced


async def test_older_copy_of_the_epochs_alone_is_noticed_without_name_servers() -> None:
    own = await opened()
    file = PATH / "config" / "epochs.json"
    own.epochs.change(lambda history: history.note(1))
    older = own.environment.disk.open(file).pread(4_096, 0)
    own.epochs.change(lambda history: history.note(PROMOTION_STEP))
    await own.raise_generation(0)
    await own.reopen()
    assert not is_doubtful(own)
    replace_file(own.environment.disk, file, older)
    await own.reopen()
    assert is_doubtful(own)
    assert own.highest_epoch() == PROMOTION_STEP, "it takes part in no lower epoch"
    await own.note_complete(0)
    own.note_current(PROMOTION_STEP)
    await own.reopen()
    assert not is_doubtful(own)
    await own.close()
