"""Whole brokers of a group, in a virtual loop: one was isolated, has failed, or is empty."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from aerobee.namesrv.v1.namesrv_pb2 import GetTopicRouteRequest

from aerobee_broker.disk import Usage
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.log.epochs import EpochHistory, promotion_epoch
from aerobee_broker.replication.rpc.replica import ReplicaCalls
from aerobee_wire import rpcs
from aerobee_wire.epochs import MOST_MISSED, PROMOTION_STEP
from aerobee_wire.route import MASTER_ID
from aerobee_wire.status import Code, MqError
from support.clock.polling import until
from support.codes import raises_code
from support.disk.simulated_disk import never
from support.disk.stores import LOG
from support.simulation.client import STRICT, SimulatedClient, begun
from support.simulation.cluster import (
    NAMESRV_ADDRESS,
    SimulatedCluster,
    simulated,
)
from support.simulation.node import BrokerNode

ALONE_TOO = {**STRICT, "enableAutoInSyncReplicas": True}


async def begun_with_a_tail(cluster: SimulatedCluster) -> SimulatedClient:
    """Three without etcd: their master is isolated, and has a message that no other has."""
    client = await begun(cluster)
    cluster.isolate(cluster.nodes[0].number)
    with raises_code(Code.FLUSH_SLAVE_TIMEOUT):
        await client.send("orders", b"on one disk alone")
    return client


@simulated(1)
async def test_a_master_that_was_isolated_during_a_promotion_finds_its_successor(
    cluster: SimulatedCluster,
) -> None:
    """Nobody follows it that would tell it, and the name servers have another one."""
    await cluster.begin(3, STRICT, elected=False)
    await cluster.settle()
    old, new, _ = cluster.nodes
    cluster.isolate(old.number)
    await asyncio.sleep(130)  # its streams end, and the name server has forgotten it
    assert await cluster.promote(new) is None
    assert (old.epoch_as_master, new.epoch_as_master) == (1, PROMOTION_STEP)
    cluster.heal()
    cluster.check_alike(await cluster.settle(30))
    assert not old.epoch_as_master


@simulated(1)
async def test_a_master_that_starts_again_where_nobody_answers_shows_nothing(
    cluster: SimulatedCluster,
) -> None:
    """Its whole log counts once it leads: another one may have been promoted without that."""
    client = await begun_with_a_tail(cluster)
    old, new, _ = cluster.nodes
    old.kill()
    await asyncio.sleep(20)
    assert await cluster.promote(new) is None
    client.address = new.address
    await client.send("orders", b"on two")
    old.start()
    for _ in range(20):
        await asyncio.sleep(1)
        cluster.look()
    assert not old.epoch_as_master
    cluster.heal()
    cluster.check_alike(await cluster.settle())
    assert cluster.shown["orders", 0, 0] == b"on two"


@simulated(*range(6))
async def test_a_master_that_notes_a_promotion_while_it_starts_does_not_lead(
    cluster: SimulatedCluster,
) -> None:
    """In an epoch above the one that it has noted."""

    client = await begun(cluster)
    old, new, _ = cluster.nodes
    old.kill()
    await asyncio.sleep(5)
    assert await cluster.promote(new) is None
    client.address = new.address
    await client.send("orders", b"acknowledged")
    cluster.look()
    cluster.namesrv.pause()
    new.kill()
    new.start()  # both wait until somebody answers
    old.start()
    await asyncio.sleep(4)
    asking = asyncio.create_task(cluster.promote(new))
    cluster.namesrv.resume()
    await asking
    cluster.check_alike(await cluster.settle())
    assert not old.epoch_as_master


@simulated(1)
async def test_a_master_that_notes_an_epoch_between_its_own_and_its_service_ends_at_once(
    cluster: SimulatedCluster,
) -> None:
    """Its slaves would confirm its messages to it, although it has promised to confirm nothing."""
    await cluster.begin(3, STRICT, elected=False)
    await cluster.settle()
    master = cluster.nodes[0]
    master.kill()
    master.start()
    await until_true(lambda: history(master).newest_epoch == 2)
    cluster.namesrv.pause()  # it delays the service of a new master by some seconds
    assert not master.epoch_as_master
    noting = ReplicaCalls(cluster.caller, 3.0).note_epoch(master.address, PROMOTION_STEP)
    await cluster.client.spawn(noting)
    assert not master.epoch_as_master
    await until_true(lambda: master.roles is not None and master.roles.epoch == 2)
    await asyncio.sleep(1)
    assert not master.epoch_as_master


@simulated(1)
async def test_a_master_that_has_noted_an_epoch_serves_no_slave_in_that_epoch(
    cluster: SimulatedCluster,
) -> None:
    """The request of the promotion was cancelled after the note, so the master still serves."""
    rarely = {"haHousekeepingInterval": 100_000}
    await cluster.begin(3, {**STRICT, **rarely}, elected=False)
    await cluster.settle()
    master, one, two = cluster.nodes
    two.kill()
    for node in (master, one):
        assert node.roles is not None
        epochs = node.roles.own.epochs
        epochs.save(epochs.history.note(PROMOTION_STEP))
    cluster.network.break_streams(one.number)
    await asyncio.sleep(5)
    assert not master.epoch_as_master


async def until_true(condition: Callable[[], bool]) -> None:
    """Look ten times in a millisecond, at most for 100 s."""
    for _ in range(1_000_000):
        if condition():
            return
        await asyncio.sleep(0.000_1)


@simulated(*range(8))
async def test_of_two_promotions_at_a_time_one_goes_on_at_most(cluster: SimulatedCluster) -> None:
    await cluster.begin(3, STRICT, elected=False)
    await cluster.settle()
    old, one, two = cluster.nodes
    old.kill()

    async def both() -> tuple[MqError | None, MqError | None]:
        return await asyncio.gather(cluster.promote(one), cluster.promote(two))

    asking = asyncio.create_task(both())
    while not asking.done():
        await asyncio.sleep(0.01)
        cluster.look()
    refused = await asking
    assert any(refused)
    if all(refused):
        assert await cluster.promote(one) is None
    cluster.heal()
    cluster.check_alike(await cluster.settle())


@simulated(1)
async def test_an_empty_disk_does_not_count_among_those_that_answer(
    cluster: SimulatedCluster,
) -> None:
    """Its predecessor may have had what was acknowledged, and the one that is asked not."""
    await cluster.begin(3, STRICT, elected=False)
    await cluster.settle()
    master, one, two = cluster.nodes
    master.lose_power()
    two.kill()
    two.lose_disk()
    two.start()
    await asyncio.sleep(5)
    refused = await cluster.promote(one)
    assert refused is not None and refused.code is Code.ILLEGAL_OPERATION
    master.start()
    await cluster.settle()
    master.lose_power()
    await asyncio.sleep(5)
    assert await cluster.promote(one) is None


@simulated(1)
async def test_a_replica_that_has_cut_its_log_counts_among_those_that_answer(
    cluster: SimulatedCluster,
) -> None:
    """Of what was acknowledged it has cut nothing; its master's tables are all that it lacks."""
    await begun_with_a_tail(cluster)
    old, new, third = cluster.nodes
    await asyncio.sleep(130)
    assert await cluster.promote(new) is None
    cluster.heal()
    roles = old.roles
    assert roles is not None
    await until(lambda: roles.own.is_open and roles.own.is_unfinished, "it cuts its log")
    new.lose_power()
    await asyncio.sleep(5)
    assert roles.own.is_unfinished and await cluster.promote(old) is not None
    assert await cluster.promote(third) is None
    cluster.heal()
    cluster.check_alike(await cluster.settle())


@simulated(1)
async def test_a_replica_whose_disk_is_full_says_that_it_cannot_note_the_epoch(
    cluster: SimulatedCluster,
) -> None:
    """Two of three have to note it: the promotion waits until there is room."""
    await cluster.begin(3, STRICT, elected=False)
    await cluster.settle()
    master, one, two = cluster.nodes
    two.fill_disk(0)
    master.kill()
    asking = ReplicaCalls(cluster.caller, 3.0).note_epoch(two.address, PROMOTION_STEP)
    with raises_code(Code.SERVICE_NOT_AVAILABLE):
        await cluster.client.spawn(asking)
    assert await cluster.promote(one) is not None
    cluster.heal()
    master.kill()
    await asyncio.sleep(5)
    assert await cluster.promote(one) is None
    cluster.heal()
    cluster.check_alike(await cluster.settle())


@simulated(1)
async def test_a_replica_whose_store_does_not_open_again_stands_for_no_election(
    cluster: SimulatedCluster,
) -> None:
    await cluster.begin(2, ALONE_TOO, elected=True)
    await cluster.settle()
    slave = next(node for node in cluster.nodes if not node.epoch_as_master)
    slave.kill()
    client = SimulatedClient(cluster)
    client.address = cluster.master.address  # type: ignore[union-attr]
    await client.put_topic("orders")
    await client.send("orders", b"kept")  # on the master alone, which is the set
    master = cluster.master
    assert master is not None and master.roles is not None
    roles, epoch = master.roles, master.epoch_as_master
    master.disk.fail_reads = lambda path: path.parent == LOG
    master.fail_syncs()
    with raises_code(Code.SERVICE_NOT_AVAILABLE):
        await client.send("orders", b"lost")
    await asyncio.sleep(20)
    assert cluster.elections == epoch
    assert not roles.serves
    with raises_code(Code.SERVICE_NOT_AVAILABLE):
        await cluster.status(master)
    master.disk.fail_reads = master.disk.fail_syncs = never
    slave.start()
    cluster.check_alike(await cluster.settle())
    assert master.epoch_as_master > epoch and roles.serves


@simulated(1)
async def test_a_master_that_starts_again_goes_on_behind_deletions(
    cluster: SimulatedCluster,
) -> None:
    """Deriving halts behind each until it is carried out."""
    await cluster.begin(2, ALONE_TOO, elected=False)
    master = await cluster.settle()
    client = SimulatedClient(cluster)
    await client.put_topic("orders")
    for number in range(3):
        await client.put_topic(f"t{number}")
        await client.send(f"t{number}", b"gone")
        await client.delete_topic(f"t{number}")
    await client.send("orders", b"kept")
    master.kill()
    master.start()
    cluster.check_alike(await cluster.settle())
    assert await client.topics() == {"orders"}


@simulated(1)
async def test_a_replica_whose_disk_is_full_notes_no_epoch_and_the_others_promote(
    cluster: SimulatedCluster,
) -> None:
    await cluster.begin(3, STRICT, elected=False)
    await cluster.settle()
    _, new, full = cluster.nodes
    full.fill_disk(0)
    assert await cluster.promote(new) is None
    assert new.epoch_as_master == PROMOTION_STEP
    roles = full.roles
    assert roles is not None and roles.own.highest_epoch() < PROMOTION_STEP
    cluster.heal()
    cluster.check_alike(await cluster.settle())


@simulated(1)
async def test_log_files_that_a_slow_slave_lacks_are_kept_until_the_disk_is_about_to_be_full(
    cluster: SimulatedCluster,
) -> None:
    """Nothing arrives, and its stream is open for some 20 s. Then it has to copy the log anew."""
    often = {"retainBytes": 1, "cleanResourceInterval": 1_000, "haHousekeepingInterval": 100_000}
    await cluster.begin(2, {**ALONE_TOO, **often}, elected=False)
    await cluster.settle()
    client = SimulatedClient(cluster)
    await client.put_topic("orders")
    await cluster.settle()
    master, slave = cluster.nodes
    cluster.isolate(slave.number)
    for _ in range(40):
        await client.send("orders", bytes(8_000))
    await asyncio.sleep(5)
    store, lacking, roles = master.store, slave.store, master.roles
    assert roles is not None and roles.master is not None
    assert store is not None and lacking is not None
    assert store.min_physical_offset <= lacking.end_offset < store.end_offset - 100_000

    master.disk.reported = Usage(used=90, free=10)
    await asyncio.sleep(5)
    assert store.min_physical_offset > lacking.end_offset
    assert [each.connected for each in roles.master.status().followers] == [True]
    master.disk.reported = Usage(used=10, free=90)
    cluster.network.break_streams(slave.number)  # with what is under way
    cluster.heal()
    await cluster.settle()
    assert slave.store is not None
    assert slave.store.min_physical_offset >= store.min_physical_offset


@simulated(*range(10))
async def test_a_slave_whose_disk_failed_once_opens_its_store_again_and_trusts_no_page_of_before(
    cluster: SimulatedCluster,
) -> None:
    """The system takes pages for clean that it could not write. What is acknowledged afterwards is
    on the disk of that slave, when the master's is gone."""

    client = await begun(cluster)
    master, slave, away = cluster.nodes
    slave.disk.fail_syncs = once(LOG)
    away.kill()
    opened = slave.store
    sent = []
    for number in range(200):
        body = b"%d|" % number * 1_000  # sectors of its own
        with contextlib.suppress(MqError):
            await client.send("orders", body)
            sent.append(body)
        if slave.store is not None and slave.store is not opened and len(sent) > 5:
            break
        await asyncio.sleep(0.2)
    assert slave.store is not opened, "it has opened its store again"
    slave.lose_power()
    master.lose_power()
    master.lose_disk()
    slave.start()
    away.start()
    await asyncio.sleep(10)
    assert await cluster.promote(slave) is None
    shown = slave.shown("orders")
    assert not [body for body in sent if body not in shown]
    master.start()
    cluster.check_alike(await cluster.settle())


def once(folder: Path) -> Callable[[Path], bool]:
    """Whether the sync of a file in this folder fails: the first one does."""
    failures = iter([True])
    return lambda path: path.parent == folder and next(failures, False)


@simulated(1)
async def test_a_replica_whose_disk_does_not_take_its_role_tries_again(
    cluster: SimulatedCluster,
) -> None:
    """What its options say is saved first, at its first start."""
    await cluster.begin(2, STRICT, elected=False)
    for node in cluster.nodes:
        node.disk.fail_writes = lambda path: path.name.startswith("replicas.json")
    await asyncio.sleep(5)
    for node in cluster.nodes:
        node.disk.fail_writes = never
    master = await cluster.settle(20)
    assert master is cluster.nodes[0]
    cluster.check_alike(master)


LAST = 2**63 - 1
POSSIBLE = 7
TOO_HIGH = 2 * MOST_MISSED * PROMOTION_STEP


@pytest.mark.parametrize("epoch", [LAST, TOO_HIGH, PROMOTION_STEP + 1])
@simulated(1)
async def test_an_epoch_that_no_promotion_takes_deposes_no_master(
    cluster: SimulatedCluster, epoch: int
) -> None:
    await cluster.begin(3, STRICT, elected=False)
    await cluster.settle()
    calls = ReplicaCalls(cluster.caller, 3.0)
    for node in cluster.nodes:
        with raises_code(Code.ILLEGAL_OPERATION):
            await cluster.client.spawn(calls.note_epoch(node.address, epoch))
    await asyncio.sleep(60)
    master = await cluster.settle()
    assert master is cluster.nodes[0] and master.epoch_as_master == 1
    assert await cluster.promote(cluster.nodes[1]) is None
    assert cluster.nodes[1].epoch_as_master == PROMOTION_STEP


@pytest.mark.parametrize(
    ("elected", "epoch"), [(False, LAST), (False, TOO_HIGH), (True, LAST), (True, POSSIBLE)]
)
@simulated(1)
async def test_a_replica_that_reports_a_wrong_epoch_ends_no_group(
    cluster: SimulatedCluster, elected: bool, epoch: int
) -> None:
    """The others continue, also under another master. A possible epoch is compared with etcd."""
    await cluster.begin(3, STRICT, elected=elected)
    master = await cluster.settle()
    client = SimulatedClient(cluster)
    client.address = master.address
    await client.put_topic("orders")
    corrupt, other = (node for node in cluster.nodes if node is not master)
    assert corrupt.roles is not None
    epochs = corrupt.roles.own.epochs
    epochs.save(epochs.history.note(epoch))
    cluster.network.break_streams(corrupt.number)
    for _ in range(60):
        await asyncio.sleep(1)
        await client.send("orders", b"acknowledged")
        cluster.look()
    assert master.epoch_as_master == 1
    if epoch == POSSIBLE:
        return
    assert await master_at_name_server(cluster) == master.address
    if elected:
        master.kill()
        await until(lambda: cluster.master is other, "the other one leads")
        master.start()
    else:
        assert await cluster.promote(other) is None
    assert other.epoch_as_master in {2, promotion_epoch(0, other.broker_id)}
    client.address = other.address
    for _ in range(20):
        await asyncio.sleep(1)
        cluster.look()
    await client.send("orders", b"acknowledged")
    assert await master_at_name_server(cluster) == other.address


async def master_at_name_server(cluster: SimulatedCluster) -> str:
    request = GetTopicRouteRequest(topic="orders")
    asking = cluster.caller.call(NAMESRV_ADDRESS, rpcs.GET_TOPIC_ROUTE, request, timeout_s=3.0)
    (broker,) = (await cluster.client.spawn(asking)).route.brokers
    return str(broker.addresses[MASTER_ID])


@simulated(1)
async def test_a_handover_that_takes_too_long_gives_up_nothing_that_its_master_then_accepts(
    cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of the successor stands still after the answer of its master."""
    good = ReplicaCalls.hand_over

    async def stand_still(calls: ReplicaCalls, address: str, epoch: int, successor: Replica) -> int:
        end = await good(calls, address, epoch, successor)
        cluster.isolate(late.number)
        await asyncio.sleep(20)
        cluster.network.heal()
        return end

    monkeypatch.setattr(ReplicaCalls, "hand_over", stand_still)
    client = await begun(cluster)
    master, late, other = cluster.nodes
    promoting = asyncio.create_task(cluster.promote(late))
    await asyncio.sleep(15)
    client.address = master.address
    await client.send("orders", b"acknowledged")
    refused = await promoting
    assert refused is not None and refused.code is Code.ILLEGAL_OPERATION
    assert await cluster.promote(other) is None
    cluster.check_alike(await cluster.settle())


@simulated(1)
async def test_a_damaged_replica_is_promoted_after_it_has_repaired_its_log(
    cluster: SimulatedCluster,
) -> None:
    client = await begun(cluster)
    for number in range(20):
        await client.send("orders", b"%d" % number)
    await cluster.settle()
    master, damaged, _ = cluster.nodes
    damaged.kill()
    damaged.damage_log(cluster.rng)
    master.kill()
    damaged.start()
    await until(lambda: damaged.store is not None, "it opens its store")
    assert damaged.store is not None and damaged.store.damage.ranges
    refused = await cluster.promote(damaged)
    assert refused is not None and refused.code is Code.ILLEGAL_OPERATION
    store = damaged.store
    await until(lambda: not store.damage.ranges, "it repairs its log")
    await asyncio.sleep(5)
    assert await cluster.promote(damaged) is None
    cluster.heal()
    cluster.check_alike(await cluster.settle())
    assert len(damaged.shown("orders")) == 20


def history(node: BrokerNode) -> EpochHistory:
    return EpochHistory() if node.roles is None else node.roles.own.epochs.history


@simulated(1)
async def test_a_replica_that_knows_an_epoch_without_its_log_is_not_the_furthest(
    cluster: SimulatedCluster,
) -> None:
    """A replica adopts the epochs of its master before it has the log up to where they begin."""
    client = await begun(cluster)
    master, whole, late = cluster.nodes
    late.kill()
    await client.send("orders", b"acknowledged")
    whole.kill()
    master.kill()
    late.start()
    master.start()
    await until(lambda: master.epoch_as_master == 2, "it leads again")
    for _ in range(100_000):  # 10 s; the first chunk follows within a millisecond
        if history(late).newest_epoch == 2:
            break
        await asyncio.sleep(0.000_1)
    master.lose_power()
    assert late.store is not None and history(late).newest_epoch == 2
    assert late.store.end_offset < history(late).entries[-1].start
    whole.start()
    await asyncio.sleep(5)
    refused = await cluster.promote(late)
    assert refused is not None and refused.code is Code.ILLEGAL_OPERATION
    assert await cluster.promote(whole) is None
    cluster.heal()
    cluster.check_alike(await cluster.settle())


@simulated(1)
async def test_a_log_of_another_origin_does_not_count_among_those_that_answer(
    cluster: SimulatedCluster,
) -> None:
    """An empty disk has begun a log of its own. Its epochs and offsets mean nothing here."""
    client = await begun(cluster)
    master, asked, stranger = cluster.nodes
    for node in (asked, master):
        assert await cluster.promote(node) is None
        await cluster.settle()
    assert master.epoch_as_master == promotion_epoch(PROMOTION_STEP, 0)
    client.address = master.address
    asked.kill()
    await client.send("orders", b"acknowledged")
    master.kill()
    stranger.kill()
    stranger.lose_disk()
    stranger.start()
    await asyncio.sleep(5)
    assert await cluster.promote(stranger, unclean=True) is None
    assert stranger.epoch_as_master == promotion_epoch(0, 2)
    client.address = stranger.address
    await client.put_topic("others")
    asked.start()
    for restarts in (False, True):
        if restarts:
            stranger.kill()
            stranger.start()
        await asyncio.sleep(5)
        refused = await cluster.promote(asked)
        assert refused is not None and refused.code is Code.ILLEGAL_OPERATION
        assert refused.about == "storePathRootDir"
    master.start()
    await until(lambda: cluster.master is master, "it leads again")
    assert b"acknowledged" in master.shown("orders")
