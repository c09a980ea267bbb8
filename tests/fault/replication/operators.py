"""Scenarios of what operators and storage do to a group with etcd: a disk goes back in time, a log
is damaged, etcd loses its data or gets older data back.

Each ends with all replicas and etcd back, without `--unclean`: nothing acknowledged may be lost.
"""

from __future__ import annotations

import asyncio
import random

from fault.replication.scenarios import Scenario
from support.clock.polling import until
from support.disk.simulated_disk import SimulatedDisk
from support.simulation.node import BrokerNode


async def begin(played: Scenario) -> tuple[BrokerNode, BrokerNode, BrokerNode]:
    """Start a group with etcd. Returns its master and its slaves; one message is on all."""
    await played.begin(elected=True)
    cluster = played.cluster
    master = cluster.master
    assert master is not None
    await played.send(master.number)
    await cluster.settle()
    first, second = (node for node in cluster.nodes if node is not master)
    return master, first, second


async def send_some(played: Scenario, count: int = 5) -> None:
    master = played.cluster.master
    assert master is not None
    for number in range(count):
        await played.send(master.number, b"message %d" % number)


def kill_all(played: Scenario) -> None:
    for node in played.cluster.nodes:
        if node.is_up:
            node.kill()


def start_all(played: Scenario) -> None:
    for node in played.cluster.nodes:
        if not node.is_up:
            node.start()


async def start_one_first(played: Scenario, node: BrokerNode, rng: random.Random) -> None:
    """Leases end before it starts, or have not ended yet; the others follow within
    electionWaitForSet, or later."""
    await asyncio.sleep(rng.choice((0.5, 6)))
    node.start()
    await asyncio.sleep(rng.choice((1, 5, 25)))
    played.cluster.look()
    start_all(played)


async def put_back_a_copy_of_a_stopped_disk(played: Scenario, rng: random.Random) -> None:
    """A slave is copied while it is off, and gets in sync again."""
    _, slave, _ = await begin(played)
    slave.kill()
    copy = slave.disk.copy()
    await send_some(played, rng.randint(0, 5))
    slave.start()
    await played.cluster.settle()
    await send_some(played)
    kill_all(played)
    slave.put_disk_back(copy)
    await start_one_first(played, slave, rng)


async def put_back_a_copy_that_lacks_the_last_moment(played: Scenario, rng: random.Random) -> None:
    """A slave is copied while it is off, and has all. Messages come after it is in sync again, and
    all are killed before any lease is renewed."""
    _, slave, _ = await begin(played)
    slave.kill()
    copy = slave.disk.copy()
    slave.start()
    await played.cluster.settle()
    await send_some(played)
    kill_all(played)
    slave.put_disk_back(copy)
    await start_one_first(played, slave, rng)


async def put_back_a_copy_of_an_older_epoch(played: Scenario, rng: random.Random) -> None:
    """Another replica has become master since."""
    master, slave, _ = await begin(played)
    slave.kill()
    copy = slave.disk.copy()
    slave.start()
    await played.cluster.settle()
    master.kill()
    await asyncio.sleep(10)
    await send_some(played)
    master.start()
    await played.cluster.settle()
    kill_all(played)
    slave.put_disk_back(copy)
    await start_one_first(played, slave, rng)


async def put_back_a_copy_of_a_running_disk(played: Scenario, rng: random.Random) -> None:
    """A copy is made of a slave that is in sync; its process goes on for longer than a renewal of
    its lease."""
    _, slave, _ = await begin(played)
    copy = slave.disk.copy()
    await send_some(played)
    await asyncio.sleep(3)
    kill_all(played)
    slave.put_disk_back(copy)
    await start_one_first(played, slave, rng)


async def put_back_a_copy_of_the_master(played: Scenario, rng: random.Random) -> None:
    """The master alone is killed, and comes back with an older disk at once."""
    master, _, _ = await begin(played)
    copy = master.disk.copy()
    await send_some(played)
    await asyncio.sleep(rng.choice((0, 3)))
    master.kill()
    master.put_disk_back(copy)
    master.start()
    await asyncio.sleep(rng.uniform(0, 10))
    played.cluster.look()


async def put_back_a_copy_under_a_living_master(played: Scenario, rng: random.Random) -> None:
    """A slave comes back with an older disk; its master dies before it has caught up."""
    master, slave, other = await begin(played)
    copy = slave.disk.copy()
    await send_some(played)
    other.kill()
    slave.kill()
    slave.put_disk_back(copy)
    slave.start()
    await asyncio.sleep(rng.choice((0.05, 0.2, 0.5, 1)))
    master.kill()
    await asyncio.sleep(rng.uniform(1, 8))
    played.cluster.look()
    start_all(played)


async def wipe_etcd_while_all_are_off(played: Scenario, rng: random.Random) -> None:
    """A replica that was out of the set starts first."""
    _, away, _ = await begin(played)
    away.kill()
    await asyncio.sleep(5)
    await send_some(played)
    kill_all(played)
    await asyncio.sleep(6)
    played.cluster.etcd.restore()
    away.start()
    await asyncio.sleep(rng.uniform(1, 25))
    played.cluster.look()
    start_all(played)


async def wipe_etcd_under_a_living_group(played: Scenario, rng: random.Random) -> None:
    """Its master stays, and sends go on."""
    master, _, _ = await begin(played)
    etcd = played.cluster.etcd
    if rng.random() < 0.5:
        etcd.go_away()
        await asyncio.sleep(rng.uniform(0, 10))
    etcd.restore()
    if etcd.away:
        etcd.come_back()
    await asyncio.sleep(rng.uniform(5, 15))
    assert played.cluster.master is master, "the group has another master"
    assert played.cluster.elections == 1, "nothing else happens"
    await send_some(played)
    master.kill()
    await asyncio.sleep(15)
    await send_some(played)


async def give_an_older_etcd_to_one_that_knows_better(played: Scenario, rng: random.Random) -> None:
    """A slave has left the set, and has read that. It starts alone, beside an older etcd that still
    has it in the set."""
    master, slave, _ = await begin(played)
    etcd = played.cluster.etcd
    saved = etcd.save()
    played.cluster.network.part(master.number, slave.number)
    await asyncio.sleep(5)
    await send_some(played)
    kill_all(played)
    played.cluster.network.heal()
    await asyncio.sleep(6)
    etcd.restore(saved)
    await asyncio.sleep(rng.choice((0, 5)))
    slave.start()
    await asyncio.sleep(25)
    played.cluster.look()
    start_all(played)


async def put_back_a_copy_of_a_slave_that_has_just_joined(
    played: Scenario, rng: random.Random
) -> None:
    """The copy is of its running disk, just before it had caught up; all are killed before it has
    renewed its lease, and the others stay off for longer than electionWaitForSet."""
    master, slave, _ = await begin(played)
    slave.kill()
    await asyncio.sleep(3)
    await send_some(played)
    slave.slowest_job_ms = 300
    slave.start()
    await until(lambda: slave.roles is not None and slave.roles.slave is not None)
    copy = slave.disk.copy()

    def has_joined() -> bool:
        roles = master.roles
        assert roles is not None and roles.master is not None
        return len(roles.master.status().in_sync) == len(played.cluster.nodes)

    await until(has_joined)
    kill_all(played)
    slave.put_disk_back(copy)
    slave.start()
    await asyncio.sleep(rng.choice((5, 25)))
    played.cluster.look()
    start_all(played)


async def give_a_living_group_an_older_etcd(played: Scenario, rng: random.Random) -> None:
    """The copy is of before a slave left the set, or of an older epoch; the master may die before
    it hears of it."""
    master, slave, _ = await begin(played)
    etcd = played.cluster.etcd
    saved = etcd.save()
    if rng.random() < 0.5:
        master.kill()
        await asyncio.sleep(10)
        master.start()
        await played.cluster.settle()
    leading = played.cluster.master
    assert leading is not None
    if leading is not slave:
        slave.kill()
    await asyncio.sleep(5)
    await send_some(played)
    etcd.restore(saved)
    await asyncio.sleep(rng.choice((0, 0, 5)))
    if rng.random() < 0.5 and leading is not slave:
        leading.kill()
        slave.start()
    await asyncio.sleep(rng.uniform(5, 15))
    played.cluster.look()


async def begin_again_with_an_empty_etcd_and_an_old_disk(
    played: Scenario, rng: random.Random
) -> None:
    """The two whole replicas start later."""
    _, slave, _ = await begin(played)
    slave.kill()
    copy: SimulatedDisk = slave.disk.copy()
    slave.start()
    await played.cluster.settle()
    await send_some(played)
    kill_all(played)
    await asyncio.sleep(6)
    slave.put_disk_back(copy)
    played.cluster.etcd.restore()
    slave.start()
    await asyncio.sleep(rng.uniform(1, 20))
    played.cluster.look()
    start_all(played)


async def kill_all_alike(played: Scenario) -> None:
    """Kill all replicas after each has all messages."""
    await send_some(played)
    await played.cluster.settle()
    kill_all(played)


async def damage_a_slave_that_starts_first(played: Scenario, rng: random.Random) -> None:
    """All are stopped or killed, and a part of its log is damaged before it starts."""
    _, slave, _ = await begin(played)
    await kill_all_alike(played)
    slave.damage_log(rng)
    await start_one_first(played, slave, rng)


async def damage_the_master_that_starts_first(played: Scenario, rng: random.Random) -> None:
    master, _, _ = await begin(played)
    await kill_all_alike(played)
    master.damage_log(rng)
    await start_one_first(played, master, rng)


async def damage_one_beside_an_empty_etcd(played: Scenario, rng: random.Random) -> None:
    _, slave, _ = await begin(played)
    await kill_all_alike(played)
    await asyncio.sleep(6)
    slave.damage_log(rng)
    played.cluster.etcd.restore()
    await start_one_first(played, slave, rng)


async def start_a_second_process_with_a_number(played: Scenario, rng: random.Random) -> None:
    """It has an empty disk, or a copy of that of the first process: an older one, or one of now.
    One of the two stops itself; sends go on, and the first process may die before or after that."""
    master, slave, _ = await begin(played)
    cluster = played.cluster
    first = rng.choice((master, slave))
    disk = rng.choice((None, first.disk.copy(), first.disk))
    await send_some(played)
    twin = cluster.start_twin(first, disk)
    dies = rng.random() < 0.5
    if dies:
        await asyncio.sleep(rng.uniform(0, 15))
        cluster.look()
        assert cluster.elections == 1, "the master stays while the first process lives"
        first.kill()
        await asyncio.sleep(rng.choice((0.5, 5, 15)))
        first.start()

    for _ in range(90):  # three registrations
        cluster.look()
        if not (twin.is_up and first.is_up):
            break
        await asyncio.sleep(1)
    else:
        raise AssertionError(f"both run: {cluster.describe()}")
    stopped = first if twin.is_up else twin
    assert stopped.stopped_by is not None
    assert dies or (stopped is twin and cluster.elections == 1), "the first process has the number"
    cluster.remove(stopped)
    await asyncio.sleep(20)
    await send_some(played)


SCENARIOS = (
    start_a_second_process_with_a_number,
    damage_a_slave_that_starts_first,
    damage_the_master_that_starts_first,
    damage_one_beside_an_empty_etcd,
    put_back_a_copy_of_a_stopped_disk,
    put_back_a_copy_that_lacks_the_last_moment,
    put_back_a_copy_of_an_older_epoch,
    put_back_a_copy_of_a_running_disk,
    put_back_a_copy_of_the_master,
    put_back_a_copy_under_a_living_master,
    wipe_etcd_while_all_are_off,
    wipe_etcd_under_a_living_group,
    put_back_a_copy_of_a_slave_that_has_just_joined,
    give_a_living_group_an_older_etcd,
    give_an_older_etcd_to_one_that_knows_better,
    begin_again_with_an_empty_etcd_and_an_old_disk,
)
