"""Lite topics of a group of brokers, in a virtual loop: what a new master has of them."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_wire.status import MqError
from support.lite.broker_client import PARENT, REPLACE, Got, bodies
from support.simulation.client import STRICT, SimulatedClient
from support.simulation.cluster import SimulatedCluster, simulated
from support.simulation.lite_client import SimulatedLite


async def begun(cluster: SimulatedCluster, **parent: str) -> SimulatedLite:
    await cluster.begin(3, STRICT, elected=False)
    await cluster.settle()
    lite = SimulatedLite(SimulatedClient(cluster))
    await lite.put_parent(**parent)
    await lite.bind()
    return lite


async def followed_up(cluster: SimulatedCluster, lite: SimulatedLite, *names: str) -> None:
    """The master dies, and the next one is told what the client subscribes to."""
    old = cluster.master
    assert old is not None
    old.kill()
    new = cluster.nodes[(cluster.nodes.index(old) + 1) % len(cluster.nodes)]
    assert await cluster.promote(new) is None
    lite.client.address = new.address
    await lite.sync(REPLACE, *names)


async def received(lite: SimulatedLite) -> list[Got]:
    """What there is, acknowledged."""
    found: list[Got] = []
    while got := await lite.pop():
        assert not any(await lite.ack(got))
        found += got
    return found


def by_topic(got: list[Got]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for each in got:
        found.setdefault(each.lite_topic, []).append(each.body)
    return found


@simulated(1)
async def test_a_new_master_goes_on_where_groups_are_in_each_lite_topic(
    cluster: SimulatedCluster,
) -> None:
    """The parent is made while the slaves follow. What is on lease at the death stays so, with its
    attempts, and can be settled at the new master."""
    lite = await begun(cluster)
    await lite.sync(REPLACE, "x", "y")
    await lite.send("x", b"x0", b"x1")
    assert bodies(await received(lite)) == [b"x0", b"x1"]
    await lite.send("x", b"x2", b"x3", b"x4")
    await lite.send("y", b"y0", b"y1", queue_id=1)
    held = await lite.pop(2)
    assert bodies(held) == [b"x2", b"x3"]
    assert await lite.ack(held[:1]) == [0]
    await followed_up(cluster, lite, "x", "y", "z")
    assert by_topic(await received(lite)) == {"y": [b"y0", b"y1"]}
    await lite.send("z", b"z0")
    await lite.send("x", b"x5")
    assert by_topic(await received(lite)) == {"z": [b"z0"]}
    assert await lite.ack(held[1:]) == [0]
    assert bodies(await received(lite)) == [b"x4", b"x5"]
    cluster.heal()
    cluster.check_alike(await cluster.settle())


@simulated(1)
async def test_leases_that_nobody_settles_end_at_the_new_master(cluster: SimulatedCluster) -> None:
    lite = await begun(cluster)
    await lite.sync(REPLACE, "x")
    await lite.send("x", b"x0", b"x1")
    assert len(await lite.pop(invisible_ms=8_000)) == 2
    await followed_up(cluster, lite, "x")
    assert await lite.pop() == []
    got = await lite.pop(poll_ms=9_000)
    assert [(each.body, each.attempt) for each in got] == [(b"x0", 2), (b"x1", 2)]
    cluster.heal()
    cluster.check_alike(await cluster.settle())


@simulated(1)
async def test_a_replica_that_copied_its_log_becomes_master(cluster: SimulatedCluster) -> None:
    """Its disk was empty."""
    lite = await begun(cluster)
    await lite.sync(REPLACE, "x", "y")
    await lite.send("x", b"x0", b"x1")
    await lite.send("y", b"y0", b"y1")
    held = await lite.pop(3)
    assert await lite.ack(held[:2]) == [0, 0]
    _, one, _ = cluster.nodes
    one.kill()
    one.lose_disk()
    one.start()
    await cluster.settle()
    await lite.send("x", b"x2")
    await followed_up(cluster, lite, "x", "y")
    assert by_topic(await received(lite)) == {"x": [b"x2"]}
    assert await lite.ack(held[2:]) == [0]
    assert by_topic(await received(lite)) == {"y": [b"y1"]}
    cluster.heal()
    cluster.check_alike(await cluster.settle())


@pytest.mark.parametrize("restarts", [False, True])
@simulated(1)
async def test_what_expired_stays_so_at_the_new_master(
    cluster: SimulatedCluster, restarts: bool
) -> None:
    """And a lite topic that has begun anew since has its new messages only."""
    lite = await begun(cluster, lite_topic_expiration="1")
    await lite.send("x", b"x0", b"x1")
    await lite.send("y", b"y0")
    await asyncio.sleep(100)
    await lite.send("x", b"x2")
    if restarts:
        for node in cluster.nodes[1:]:
            node.kill()
            node.start()
        await cluster.settle()
    await followed_up(cluster, lite, "x", "y")
    assert by_topic(await received(lite)) == {"x": [b"x2"]}
    cluster.heal()
    cluster.check_alike(await cluster.settle())


@simulated(1)
async def test_a_parent_that_is_deleted_and_made_again_as_something_else(
    cluster: SimulatedCluster,
) -> None:
    """Its messages are filtered by tag at the new master, and again by lite topic when it is a
    parent once more."""
    lite = await begun(cluster)
    await lite.sync(REPLACE, "x")
    await lite.send("x", b"x0")
    cluster.vanishing.add(PARENT)
    await lite.client.delete_topic(PARENT)
    await lite.client.put_topic(PARENT)
    await lite.client.send(PARENT, b"tagged", properties={"TAGS": "a"})
    await lite.client.send(PARENT, b"other", properties={"TAGS": "b"})
    await cluster.settle()
    for node in cluster.nodes:
        assert node.store is not None
        codes = [unit[2] for unit in node.store.units(PARENT, 0, 0, 2)]
        assert codes == [97, 98]  # Java's hash of "a" and "b"
    await lite.client.delete_topic(PARENT)
    await lite.put_parent()
    await lite.send("x", b"x0 again")
    await followed_up(cluster, lite, "x")
    assert bodies(await received(lite)) == [b"x0 again"]
    cluster.heal()
    cluster.check_alike(await cluster.settle())


@simulated(*range(6))
async def test_through_restarts_and_failovers_each_lite_topic_comes_in_order_and_nothing_is_lost(
    cluster: SimulatedCluster,
) -> None:
    """What was acknowledged does not come again: it is acknowledged by a whole group."""

    lite = await begun(cluster)
    names = [f"s{number}" for number in range(12)]
    await lite.sync(REPLACE, *names)
    sent: dict[str, list[bytes]] = {name: [] for name in names}
    got: dict[str, list[bytes]] = {name: [] for name in names}

    async def take(most: int) -> None:
        messages = await lite.pop(most, invisible_ms=5_000)
        assert not any(await lite.ack(messages))
        for each in messages:
            got[each.lite_topic].append(each.body)

    for round_ in range(4):
        for number in range(cluster.rng.randrange(20, 60)):
            name = cluster.rng.choice(names)
            body = b"%d/%d" % (round_, number)
            await lite.send(name, body, queue_id=names.index(name) % 2)
            sent[name].append(body)
            if cluster.rng.random() < 0.3:
                await take(cluster.rng.randrange(1, 8))
        await lite.pop(cluster.rng.randrange(1, 5), invisible_ms=2_000)  # and forgets them
        if cluster.rng.random() < 0.5:
            slave = next(node for node in cluster.nodes if node is not cluster.master)
            slave.lose_power()
            await asyncio.sleep(cluster.rng.random())
            slave.start()
        await cluster.settle()
        await followed_up(cluster, lite, *names)
        cluster.heal()
        await cluster.settle()
    await asyncio.sleep(5)
    while any(len(got[name]) < len(sent[name]) for name in names):
        await take(32)
    assert got == sent
    cluster.check_alike(await cluster.settle())


@simulated(1)
async def test_a_deletion_that_no_other_replica_has_is_undone_with_the_codes_of_units(
    cluster: SimulatedCluster,
) -> None:
    """The master deletes the parent while nobody follows it, and comes back as a slave: by its
    tables, which are confirmed, the topic is of the type LITE."""
    lite = await begun(cluster)
    await lite.sync(REPLACE, "x")
    await lite.send("x", b"x0", b"x1")
    held = await lite.pop(1)
    assert await lite.ack(held) == [0]
    await cluster.settle()
    old, new, other = cluster.nodes
    cluster.network.part(old.number, new.number, other.number)
    deleting = asyncio.create_task(lite.client.delete_topic(PARENT))
    await asyncio.sleep(0.2)  # too short for the others to leave the set
    old.kill()
    with pytest.raises(MqError):
        await deleting
    assert await cluster.promote(new) is None
    cluster.heal()
    await cluster.settle()
    new.kill()
    assert await cluster.promote(old) is None
    lite.client.address = old.address
    await lite.sync(REPLACE, "x")
    assert bodies(await received(lite)) == [b"x1"]
    cluster.heal()
    cluster.check_alike(await cluster.settle())
