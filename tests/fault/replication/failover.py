"""A history of a broker group: sends, and whatever may happen to three replicas and their network.

Everything random comes from one seed. What must hold is checked as it happens (`support/
replication/group.py`), and at the end, when everybody is back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from aerobee_broker.replication.in_sync.in_sync_set import InSyncRules
from support.clock.virtual_loop import VirtualLoop
from support.replication.group import SimulatedGroup

STEPS = 25
RULES = (
    InSyncRules(synchronous=True, in_sync_replicas=2),
    InSyncRules(synchronous=True, in_sync_replicas=2, auto_in_sync_replicas=True),
    InSyncRules(synchronous=True, in_sync_replicas=3, auto_in_sync_replicas=True),
    InSyncRules(),
)


class FailoverHistory:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rules = self.rng.choice(RULES)
        self.group = SimulatedGroup(seed, self.rules)
        self.elections = 0
        self.disks_lost = 0

    async def live(self) -> None:
        group, rng = self.group, self.rng
        group.start()
        await group.elect(rng.randrange(3))
        if rng.random() < 0.8:
            await group.settle()
        actions = (
            self.send, self.send, self.send, self.send, self.kill, self.cut_power, self.restart,
            self.restart, self.cut, self.heal, self.break_streams, self.elect, self.elect,
            self.lose_answers, self.send_to_old_masters, self.lose_disk,
            self.fail_syncs, self.change_tables, self.change_tables, self.change_tables,
        )  # fmt: skip
        for _ in range(STEPS):
            await rng.choice(actions)()
            await asyncio.sleep(rng.choice((0.0, 0.002, 0.01, 0.1, 0.5, 3.0)))
            group.check_failures()
        await group.check_end()

    async def send(self) -> None:
        self.group.send(self.rng.choice((1, 3, 20)))

    async def change_tables(self) -> None:
        for _ in range(self.rng.choice((1, 4))):
            self.group.tables.change(self.group.master)
            if self.rng.random() < 0.5:
                await asyncio.sleep(self.rng.choice((0.001, 0.02)))

    async def send_to_old_masters(self) -> None:
        for replica in self.group.replicas:
            if replica.leader is not None:
                self.group.send(2, replica)

    async def kill(self) -> None:
        await self._stop(power=False)

    async def cut_power(self) -> None:
        await self._stop(power=True)

    async def _stop(self, *, power: bool) -> None:
        replica = self.rng.choice(self.group.replicas)
        if replica.is_up:
            replica.stop_at_once(power=power, silent=self.rng.random() < 0.3)

    async def fail_syncs(self) -> None:
        replica = self.rng.choice(self.group.replicas)
        if replica.is_up and self.rng.random() < 0.5:
            replica.fail_syncs()

    async def lose_disk(self) -> None:
        """One, once: another replica of the set has everything."""
        in_sync = self.group.coordinator.in_sync
        off = [replica for replica in self.group.replicas if not replica.is_up]
        if off and not self.disks_lost and len(in_sync) > 1:
            self.disks_lost += 1
            self.rng.choice(off).lose_disk()

    async def restart(self) -> None:
        replica = self.rng.choice(self.group.replicas)
        if not replica.is_up:
            replica.start()

    async def cut(self) -> None:
        source, target = self.rng.sample(range(3), 2)
        self.group.network.cut(source, target)
        if self.rng.random() < 0.5:
            self.group.network.cut(target, source)

    async def heal(self) -> None:
        self.group.network.heal()

    async def break_streams(self) -> None:
        self.group.network.break_streams(self.rng.randrange(3))

    async def elect(self) -> None:
        """Often while the old master lives: a lease may end at any time."""
        electable = self.group.electable()
        if electable:
            self.elections += 1
            await self.group.elect(self.rng.choice(electable))

    async def lose_answers(self) -> None:
        coordinator = self.group.coordinator
        coordinator.loses_answers = self.rng.choice((0.0, 0.5))
        coordinator.away = self.rng.random() < 0.3


def failover(seed: int) -> FailoverHistory:
    """Raises AssertionError."""
    history = FailoverHistory(seed)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(history.live())
    return history


async def restart_a_master_that_lost_more_than_its_slave(seed: int) -> None:
    """A slave has on its disk what its master, whose power goes, has not. The master is elected
    again, and writes other messages there before the slave comes back."""
    group = SimulatedGroup(seed, RULES[1], count=2)
    group.start()
    master, slave = group.replicas
    master.slowest_job_ms = 1_000.0
    await group.elect(0)
    await group.settle()
    group.send(5)
    for _ in range(5_000):
        await asyncio.sleep(0.001)
        if slave.opened().flushed_offset > master.opened().flushed_offset:
            break
    isolate(group, 0)
    master.stop_at_once(power=True)
    master.slowest_job_ms = 8.0
    master.start()
    await group.elect(0)
    for _ in range(5):  # the slave leaves the set, and single sends are acknowledged
        group.send(5)
        await asyncio.sleep(1)
    await group.check_end()


async def bring_a_slave_before_an_old_master(seed: int) -> None:
    """A slave of the new master is told of the old one, which cannot know that there is another;
    then the new one dies."""
    group = SimulatedGroup(seed, RULES[0])
    group.start()
    await group.elect(0)
    await group.settle()
    isolate(group, 0)
    await group.elect(1)
    await asyncio.sleep(10)
    group.send(5)
    await asyncio.sleep(1)
    group.network.heal()
    group.reported_master = 0
    group.network.break_streams(2)
    await asyncio.sleep(1)
    group.reported_master = None
    group.replicas[1].stop_at_once()
    await group.elect(2)
    await group.check_end()


async def lose_a_disk_while_all_are_off(seed: int) -> None:
    """A member of the set comes back with an empty disk, before anybody could take it out."""
    group = SimulatedGroup(seed, RULES[0])
    group.start()
    await group.elect(0)
    await group.settle()
    group.send(5)
    await asyncio.sleep(1)
    for replica in group.replicas:
        replica.stop_at_once()
    group.replicas[1].lose_disk()
    group.start()
    await group.elect(1 if 1 in group.electable() else 2)
    await group.check_end()


async def make_a_deleted_topic_again_while_a_slave_is_away(seed: int) -> None:
    """It then derives what lies before the deletion and what lies behind it in one go."""
    group = SimulatedGroup(seed, RULES[1])
    group.start()
    master = await group.elect(0)
    await group.settle()

    async def change(*kinds: str) -> None:
        for kind in kinds:
            task = group.tables.begin(master, kind, "t0")
            assert task is not None
            await task

    await change("topic", "send", "send", "send")
    group.replicas[2].stop_at_once(power=group.rng.random() < 0.5)
    await change("delete topic", "topic", "send", "send")
    if group.rng.random() < 0.5:
        await change("delete topic", "topic", "send")
    group.replicas[2].start()
    await group.check_end()


async def kill_a_master_before_its_deletion_is_in_the_log(seed: int) -> None:
    """Its store has deleted the topic, and the log loses the record. The master leads again, and
    its slave must delete the topic too."""
    group = SimulatedGroup(seed, RULES[1], count=2)
    group.start()
    master = await group.elect(0)
    await group.settle()
    for kind in ("topic", "send", "send"):
        task = group.tables.begin(master, kind, "t0")
        assert task is not None
        await task
    await group.settle()
    task = group.tables.begin(master, "delete topic", "t0")
    assert task is not None
    for _ in range(100_000):
        await asyncio.sleep(0)
        if "t0" in master.opened().deleted_topics:
            break
    master.stop_at_once(power=True)
    master.start()
    master = await group.elect(0)
    task = group.tables.begin(master, "topic", "t1")  # it saves the tables
    assert task is not None
    await task
    await group.check_end()


async def kill_an_old_master_after_it_has_cut_its_log(seed: int) -> None:
    """What it has sent to nobody is cut. Killed when it has noted the new epoch, and before it has
    the new master's records in that place, it must not find its own there again."""
    group = SimulatedGroup(seed, RULES[1], count=2)
    group.start()
    await group.elect(0)
    await group.settle()
    group.number = 100  # from here on all records have one size
    old = group.replicas[0]
    isolate(group, 0)
    group.send(20)
    await asyncio.sleep(0.5)
    end = old.opened().written_offset
    await group.elect(1)
    group.send(40)
    await asyncio.sleep(5)
    heal(group)
    for _ in range(100_000):
        await asyncio.sleep(0.0005)
        if old.is_up and old.epochs.history.highest == group.coordinator.epoch:
            break
    assert old.opened().written_offset < end
    old.stop_at_once(power=group.rng.random() < 0.5)
    old.start()
    await group.check_end()


async def follow_with_a_slave_that_reports_too_much(seed: int) -> None:
    """More than it was sent, on its disk: its master ends each such stream, and counts none of
    it."""
    group = SimulatedGroup(seed, RULES[0], count=2)
    liar = group.replicas[1]
    liar.report_too_much(1 << 20)
    group.start()
    await group.elect(0)
    for _ in range(20):
        group.send(5)
        await asyncio.sleep(0.5)
    liar.report_too_much(0)
    group.network.break_streams(1)
    await group.check_end()


def heal(group: SimulatedGroup) -> None:
    group.network.heal()
    group.coordinator.away_from.clear()


def isolate(group: SimulatedGroup, number: int) -> None:
    """From the others, and from the coordinator."""
    group.coordinator.away_from.add(number)
    for replica in group.replicas:
        group.network.part(number, replica.number)


def run(scenario: Callable[[int], Coroutine[Any, Any, None]], seed: int) -> None:
    """Raises AssertionError."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario(seed))
