"""Scenarios of whole brokers for breakages that random histories seldom meet."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aerobee_wire.status import MqError
from support.simulation.client import SimulatedClient
from support.simulation.cluster import SimulatedCluster, simulate

STRICT: dict[str, Any] = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}
TOPIC, BODY = "orders", b"acknowledged"


class Scenario:
    """Brokers of one group. `begin` before anything else."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.client = SimulatedClient(cluster)

    async def begin(
        self, count: int = 3, options: Mapping[str, Any] = STRICT, *, elected: bool = False
    ) -> None:
        """By default three copies, of which two must have what is acknowledged.

        Args:
            elected: etcd says who is master; else the options and promotions do.
        """
        await self.cluster.begin(count, options, elected=elected)
        await self.cluster.settle()
        await self.client.put_topic(TOPIC)
        await self.cluster.settle()

    async def send(self, number: int, body: bytes = BODY) -> None:
        """To this broker, until it is acknowledged and shown: its set may be changing."""
        for _ in range(20):
            self.client.address = self.cluster.node(number).address
            with contextlib.suppress(MqError):
                await self.client.send(TOPIC, body)
                self.cluster.look()
                assert any(place[0] == TOPIC for place in self.cluster.shown), "it is shown"
                return
            await asyncio.sleep(1)
        raise AssertionError(f"{number} does not accept messages")

    async def end(self) -> None:
        """All are back, one is master, and what was acknowledged and shown is there."""
        self.cluster.heal()
        for _ in range(5):
            await asyncio.sleep(15)
            if self.cluster.master is not None:
                break
            for node in self.cluster.nodes:
                if not self.cluster.is_elected:
                    await self.cluster.promote(node)
        master = await self.cluster.settle()
        self.cluster.check_alike(master)


Play = Callable[[Scenario, random.Random], Awaitable[None]]


def run(scenario: Play, seed: int) -> None:
    """Raises AssertionError."""

    async def play(cluster: SimulatedCluster) -> None:
        played = Scenario(cluster)
        await scenario(played, random.Random(seed))
        await played.end()

    simulate(seed, play)


async def promote_one_that_was_away(played: Scenario, rng: random.Random) -> None:
    """Nobody else answers, and it lacks what was acknowledged meanwhile."""
    await played.begin()
    cluster = played.cluster
    master, slave, away = cluster.nodes
    away.kill()
    await played.send(master.number)
    master.lose_power()
    slave.lose_power()
    away.start()
    await asyncio.sleep(rng.uniform(1, 10))
    await cluster.promote(away)
    await asyncio.sleep(5)
    slave.start()
    await asyncio.sleep(20)


async def promote_beside_an_empty_disk(played: Scenario, rng: random.Random) -> None:
    """Two answer: one was away, and the disk of the other, which had what was acknowledged, is
    another one now."""
    await played.begin()
    cluster = played.cluster
    master, away, slave = cluster.nodes
    away.kill()
    await played.send(master.number)
    master.lose_power()
    slave.kill()
    slave.lose_disk()
    slave.start()
    away.start()
    await asyncio.sleep(rng.uniform(1, 10))
    await cluster.promote(away)
    await asyncio.sleep(20)


async def start_an_old_master_alone(played: Scenario, rng: random.Random) -> None:
    """As often as it takes, and told to go on with one copy: then it meets those that follow its
    successor, which is away."""
    await played.begin()
    cluster = played.cluster
    old, new, slave = cluster.nodes
    old.kill()
    await asyncio.sleep(5)
    await cluster.promote(new)
    await played.send(new.number)
    played.cluster.isolate(old.number)
    old.configure({"enableAutoInSyncReplicas": True})
    for _ in range(rng.randint(3, 5)):
        old.start()
        await asyncio.sleep(15)  # longer than it waits for the others (electionWaitForSet)
        old.kill()
    new.lose_power()
    old.start()
    await asyncio.sleep(15)  # it leads: no other replica answers
    cluster.network.heal()
    await asyncio.sleep(20)
    assert slave.is_up


async def promote_beside_an_isolated_master(played: Scenario, rng: random.Random) -> None:
    """It has a message that nobody else has, and its set is itself after 2 s. Another one takes the
    message's place."""
    await played.begin()
    cluster = played.cluster
    old, new, _ = cluster.nodes
    await played.send(old.number)
    played.cluster.isolate(old.number)
    played.client.address = old.address
    with contextlib.suppress(MqError):
        await played.client.send(TOPIC, b"under way")
    for _ in range(rng.randint(3, 10)):
        await asyncio.sleep(1)
        cluster.look()
    refused = await cluster.promote(new)
    assert refused is None, refused
    await played.send(new.number, b"in its place")
    cluster.look()
