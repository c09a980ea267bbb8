"""Whole brokers in a virtual loop, whose etcd loses its data while some of them are isolated."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from support.clock.polling import until
from support.etcd.simulated_etcd import Faults
from support.simulation.client import STRICT, SimulatedClient
from support.simulation.cluster import SimulatedCluster, simulated
from support.simulation.node import BrokerNode

ASYNC: Mapping[str, Any] = {"brokerRole": "ASYNC_MASTER"}


async def begun(
    cluster: SimulatedCluster, options: Mapping[str, Any]
) -> tuple[SimulatedClient, BrokerNode, list[BrokerNode]]:
    """Start replicas with etcd, and create the topic "orders". Return a client, the master, and the
    slaves."""
    await cluster.begin(3, options, elected=True)
    master = await cluster.settle()
    client = SimulatedClient(cluster)
    client.address = master.address
    await client.put_topic("orders")
    await cluster.settle()
    return client, master, [node for node in cluster.nodes if node is not master]


async def until_leads(cluster: SimulatedCluster, epoch: int) -> BrokerNode:
    await until(lambda: any(node.epoch_as_master == epoch for node in cluster.nodes), "it leads")
    return next(node for node in cluster.nodes if node.epoch_as_master == epoch)


async def watch(cluster: SimulatedCluster, seconds: int) -> None:
    for _ in range(10 * seconds):
        await asyncio.sleep(0.1)
        cluster.look()


@simulated(*range(3))
async def test_an_old_master_does_not_recreate_its_state_beside_its_successor(
    cluster: SimulatedCluster,
) -> None:
    """The old master is isolated while its successor is elected and acknowledges messages alone.
    Then etcd loses its data, and the old master is the first that reaches it."""
    client, old, _ = await begun(cluster, ASYNC)
    cluster.isolate(old.number)
    cluster.etcd_clients[old.number].cut = True
    new = await until_leads(cluster, 2)
    client.address = new.address
    await client.send("orders", b"of the successor")
    await watch(cluster, 2)
    for node in cluster.nodes:
        cluster.isolate(node.number)
        cluster.etcd_clients[node.number].cut = node is not old
    cluster.etcd.restore()
    client.address = old.address
    await watch(cluster, 20)
    cluster.heal()
    cluster.check_alike(await cluster.settle())
    assert cluster.shown["orders", 0, 0] == b"of the successor"


@simulated(*range(3))
async def test_a_master_restores_its_state_once_a_killed_member_is_back(
    cluster: SimulatedCluster,
) -> None:
    client, master, (slave, _) = await begun(cluster, STRICT)
    cluster.etcd.go_away()
    slave.kill()
    cluster.etcd.restore()
    cluster.etcd.come_back()
    await watch(cluster, 20)
    assert cluster.elections == 0
    slave.start()
    assert await cluster.settle() is master
    assert cluster.elections == 1
    await client.send("orders", b"acknowledged")


@simulated(*range(3))
async def test_a_master_does_not_wait_for_a_store_that_is_lost(cluster: SimulatedCluster) -> None:
    client, master, (slave, _) = await begun(cluster, STRICT)
    cluster.etcd.go_away()
    slave.kill()
    slave.lose_disk()
    cluster.etcd.restore()
    cluster.etcd.come_back()
    slave.start()
    assert await cluster.settle() is master
    assert cluster.elections == 1
    await client.send("orders", b"acknowledged")


@simulated(*range(3))
async def test_an_operator_gives_up_a_member_whose_machine_is_lost(
    cluster: SimulatedCluster,
) -> None:
    client, master, (slave, _) = await begun(cluster, STRICT)
    cluster.etcd.go_away()
    slave.lose_power()
    cluster.etcd.restore()
    cluster.etcd.come_back()
    await watch(cluster, 20)
    assert f"replica {slave.number} may have been elected" in (await cluster.status(master)).reason
    assert cluster.elections == 0
    assert await cluster.promote(master, unclean=True) is None
    await until(lambda: cluster.elections == 1, "the state is at etcd again")
    await cluster.etcd.change()
    assert not (await cluster.status(master)).reason
    await client.send("orders", b"acknowledged")
    assert cluster.master is master


@simulated(*range(3))
async def test_a_replica_does_not_lead_by_a_state_that_etcd_has_lost(
    cluster: SimulatedCluster,
) -> None:
    """etcd loses its data before its answer arrives: the old master finds no trace of it."""
    client, old, _ = await begun(cluster, ASYNC)
    check, loop = cluster.etcd.on_write, asyncio.get_running_loop()
    assert check is not None

    def lose(key: str, value: bytes | None) -> None:
        check(key, value)
        if cluster.elections == 2:
            cluster.etcd.on_write = check
            loop.call_soon(cluster.etcd.restore, context=cluster.outside)

    cluster.etcd.on_write = lose
    cluster.etcd.faults = Faults(delay_s=0.05)
    cluster.network.part(old.number, *(n.number for n in cluster.nodes if n is not old))
    cluster.etcd_clients[old.number].cut = True
    await until(lambda: cluster.etcd.generation == 1, "etcd loses its data")
    cluster.network.heal()
    cluster.etcd_clients[old.number].cut = False
    await watch(cluster, 5)
    assert 2 not in cluster.masters
    cluster.heal()
    cluster.check_alike(await cluster.settle())
    await client.send("orders", b"acknowledged")
