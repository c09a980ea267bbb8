"""A history of whole brokers: clients of topics and of lite topics at work, and whatever may happen
to three brokers, their disks, their network, etcd and the name server. Everything random comes from
one seed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from unittest import mock

from aerobee_broker.delivery.lite import ttl
from support.disk.damage import lose_derived_files
from support.disk.simulated_disk import SimulatedDisk
from support.etcd.simulated_etcd import NO_FAULTS, Faults, SavedEtcd
from support.simulation.cluster import NAMESRV, SimulatedCluster, simulate
from support.simulation.lite_workload import LiteWorkload
from support.simulation.node import BrokerNode
from support.simulation.workload import Workload

STEPS = 30
MINUTE_MS = 20_000  # of the TTL of lite topics, so that some expire while the group lives
SYNC: dict[str, Any] = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}
GROUPS: tuple[tuple[dict[str, Any], bool], ...] = (  # options, whether etcd elects
    (SYNC, True),
    (SYNC, True),
    (SYNC, False),
    (SYNC, False),
    ({**SYNC, "enableAutoInSyncReplicas": True}, True),
    ({"brokerRole": "ASYNC_MASTER"}, True),
)
ETCD_FAULTS = Faults(
    lost_request=0.05,
    lost_answer=0.1,
    late_write=0.1,
    early_lease=0.05,
    late_lease=0.1,
    delay_s=0.05,
)


@dataclass
class Figures:
    masters: int = 0
    acknowledged: int = 0
    settled: int = 0
    lite_acknowledged: int = 0
    lite_settled: int = 0
    lite_expired: int = 0


class GroupHistory:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.rng = cluster.rng
        self.options, self.elected = self.rng.choice(GROUPS)
        self.strict = self.options is SYNC
        synchronous = self.options["brokerRole"] == "SYNC_MASTER"
        required = 2 if self.strict else 1
        self.work = Workload(cluster, synchronous=synchronous, required=required)
        self.lite = LiteWorkload(
            cluster, synchronous=synchronous, required=required, ttl_ms=MINUTE_MS
        )
        self.disks_lost = 0
        self.copies: list[tuple[BrokerNode, int, SimulatedDisk]] = []  # with its starts by then
        self.has_unreliable_disk: BrokerNode | None = None  # of one broker at most: see `lose_disk`
        self.older_etcd: SavedEtcd | None = None
        self.steps: list[str] = []

    async def live(self) -> None:
        cluster, rng = self.cluster, self.rng
        await cluster.begin(3, self.options, elected=self.elected)
        await cluster.settle()
        await self.work.begin()
        await self.lite.begin()
        if self.elected and rng.random() < 0.5:
            cluster.etcd.faults = ETCD_FAULTS
        actions = [
            self.kill, self.cut_power, self.cut_power_at, self.restart, self.restart, self.pause,
            self.resume, self.cut, self.cut, self.heal, self.break_streams, self.fail_syncs,
            self.fill_disk, self.slow_down, self.lose_disk, self.promote, self.set_clock,
            self.pause_namesrv, self.lose_derived, *(self.recover,) * 4,
        ]  # fmt: skip
        if self.elected:
            actions += [
                self.cut_etcd, self.etcd_away, self.end_leases, self.wipe_etcd,
                self.copy_disk, self.copy_disk, self.put_disk_back, self.put_disk_back,
                self.save_etcd, self.restore_etcd, self.damage_log,
            ]  # fmt: skip
        else:
            actions += [self.copy_disk, self.copy_disk, self.put_file_back, self.put_file_back]
        for _ in range(STEPS):
            self.act(rng.choice((2, 5, 12)))
            action = rng.choice(actions)
            self.steps.append(f"{cluster.loop.time():.1f} {action.__name__}")
            await action()
            await asyncio.sleep(rng.choice((0.0, 0.01, 0.1, 0.5, 2.0, 6.0)))
            cluster.look()
            self.lite.look()
            cluster.check_failures()
        await self.end()

    def act(self, count: int) -> None:
        self.work.act(count)
        self.lite.act(count)

    async def end(self) -> None:
        cluster = self.cluster
        cluster.etcd.faults = NO_FAULTS
        if cluster.namesrv.is_paused:
            cluster.namesrv.resume()
        cluster.heal()
        if not self.elected:
            await self.promote_some()
        await cluster.settle(240)
        await self.work.finish()
        await self.lite.finish()
        master = await cluster.settle()
        cluster.check_failures()
        cluster.check_alike(master)
        store = master.store
        assert store is not None
        await self.work.check(store)
        await self.lite.check(store)

    async def promote_some(self) -> None:
        """An operator brings a group without etcd back that has no master."""
        for _ in range(20):
            await asyncio.sleep(10)
            if self.cluster.master is not None:
                return
            for node in self.cluster.nodes:
                if await self.cluster.promote(node) is None:
                    break

    # ---- what happens ----

    def any_node(self) -> BrokerNode:
        return self.rng.choice(self.cluster.nodes)

    async def kill(self) -> None:
        node = self.any_node()
        if node.is_up:
            node.kill()

    async def cut_power(self) -> None:
        node = self.any_node()
        if node.is_up:
            node.lose_power()

    async def cut_power_at(self) -> None:
        node = self.any_node()
        if node.is_up:
            node.lose_power_at(self.rng.randint(1, 60))

    async def recover(self) -> None:
        """Most of it, and the group works for a while."""
        await self.heal()
        await self.resume()
        for node in self.cluster.nodes:
            if not node.is_up:
                node.start()
        if self.cluster.etcd.away:
            self.cluster.etcd.come_back()
        for _ in range(self.rng.choice((1, 4, 10))):
            await asyncio.sleep(1)
            self.act(5)

    async def restart(self) -> None:
        node = self.any_node()
        if not node.is_up:
            node.disk.capacity = None
            node.start()

    async def pause(self) -> None:
        node = self.any_node()
        if node.process is not None:
            node.process.pause()

    async def resume(self) -> None:
        for node in self.cluster.nodes:
            if node.process is not None and node.process.is_paused:
                node.process.resume()

    async def cut(self) -> None:
        numbers = [*(node.number for node in self.cluster.nodes), NAMESRV]
        source, target = self.rng.sample(numbers, 2)
        self.cluster.network.cut(source, target)
        if self.rng.random() < 0.5:
            self.cluster.network.cut(target, source)

    async def heal(self) -> None:
        self.cluster.network.heal()
        for client in self.cluster.etcd_clients.values():
            client.cut = False

    async def break_streams(self) -> None:
        self.cluster.network.break_streams(self.any_node().number)

    async def fail_syncs(self) -> None:
        node = self.any_node()
        if node.is_up and self.rng.random() < 0.5:
            node.fail_syncs()

    async def fill_disk(self) -> None:
        node = self.any_node()
        if node.is_up and self.rng.random() < 0.5:
            node.fill_disk(self.rng.randint(0, 20_000))

    async def slow_down(self) -> None:
        """From its next start on."""
        self.any_node().slowest_job_ms = self.rng.choice((2.0, 8.0, 300.0))

    async def lose_disk(self) -> None:
        """One, once, where each message is on two, and not that of the last replica that may be
        elected. Not that of a master by options: started with an empty disk where it reaches
        nobody, it would begin a log of its own."""
        last = self.cluster.only_electable
        off = [
            node for node in self.cluster.nodes if not node.is_up and node.number not in (0, last)
        ]
        off = [node for node in off if self.may_fail(node)]
        if off and self.strict and not self.disks_lost:
            self.disks_lost += 1
            self.has_unreliable_disk = self.rng.choice(off)
            self.has_unreliable_disk.lose_disk()

    def may_fail(self, node: BrokerNode) -> bool:
        """Of the two replicas that have an acknowledged message, one keeps its disk."""
        return self.has_unreliable_disk in (None, node)

    async def copy_disk(self) -> None:
        """Of a broker that is off, as a backup or a snapshot of a machine does."""
        off = [node for node in self.cluster.nodes if not node.is_up]
        if off:
            node = self.rng.choice(off)
            self.copies.append((node, node.starts, node.disk.copy()))

    async def put_disk_back(self) -> None:
        """A copy of before the last start of a broker, which is off. Not of the last replica that
        may be elected."""
        last = self.cluster.only_electable
        old = [
            (node, copy)
            for node, starts, copy in self.copies
            if not node.is_up and node.starts > starts and node.number != last
        ]
        old = [(node, copy) for node, copy in old if self.may_fail(node)]
        if old and self.strict and self.older_etcd is None:
            self.has_unreliable_disk, copy = self.rng.choice(old)
            self.has_unreliable_disk.put_disk_back(copy)

    async def put_file_back(self) -> None:
        """One small file of before the last start of a broker, which is off; all else is newer."""
        last = self.cluster.only_electable
        old = [
            (node, copy)
            for node, starts, copy in self.copies
            if not node.is_up and node.starts > starts and node.number != last
        ]
        old = [(node, copy) for node, copy in old if self.may_fail(node)]
        if old and self.strict and self.older_etcd is None:
            self.has_unreliable_disk, copy = self.rng.choice(old)
            self.steps.append(self.has_unreliable_disk.put_file_back(copy, self.rng))

    async def damage_log(self) -> None:
        """Of a broker that is off: not of the last replica that may be elected."""
        last = self.cluster.only_electable
        off = [
            node
            for node in self.cluster.nodes
            if not node.is_up and node.number != last and self.may_fail(node)
        ]
        if off and self.strict:
            self.has_unreliable_disk = self.rng.choice(off)
            self.steps.append(self.has_unreliable_disk.damage_log(self.rng))

    async def wipe_etcd(self) -> None:
        if self.rng.random() < 0.3:
            self.cluster.etcd.restore()

    async def save_etcd(self) -> None:
        if not self.copies:
            self.older_etcd = self.cluster.etcd.save()

    async def restore_etcd(self) -> None:
        """An older copy, under a master that lives: it has time to write its state back."""
        if self.older_etcd is None or self.copies or self.cluster.master is None:
            return
        await self.recover()
        if self.cluster.is_settled():
            self.cluster.etcd.restore(self.older_etcd)
            await asyncio.sleep(self.rng.choice((4, 10)))

    async def lose_derived(self) -> None:
        """Some of what a broker that is off has derived."""
        off = [node for node in self.cluster.nodes if not node.is_up]
        if off:
            node = self.rng.choice(off)
            lose_derived_files(node.disk, self.rng, checkpoint=not node.has_torn_log)

    async def promote(self) -> None:
        node = self.any_node()
        asking = asyncio.create_task(self.cluster.promote(node))
        await asyncio.wait([asking], timeout=self.rng.choice((0.1, 5)))

    async def set_clock(self) -> None:
        self.any_node().clock.jump(self.rng.choice((-2_000, 2_000)))

    async def pause_namesrv(self) -> None:
        if self.cluster.namesrv.is_paused:
            self.cluster.namesrv.resume()
        else:
            self.cluster.namesrv.pause()

    async def cut_etcd(self) -> None:
        client = self.rng.choice(list(self.cluster.etcd_clients.values()))
        client.cut = not client.cut

    async def etcd_away(self) -> None:
        etcd = self.cluster.etcd
        if etcd.away:
            etcd.come_back()
        else:
            etcd.go_away()

    async def end_leases(self) -> None:
        self.cluster.etcd.end_leases()


def whole_group(seed: int) -> Figures:
    """Raises AssertionError, which tells the steps."""
    figures = Figures()

    async def scenario(cluster: SimulatedCluster) -> None:
        history = GroupHistory(cluster)
        try:
            await history.live()
        except AssertionError as error:
            steps = "\n".join(history.steps)
            raise AssertionError(
                f"seed {seed}: {error}\n{history.options}, etcd: {history.elected}\n{steps}\n"
                f"{cluster.loop.time():.1f} {cluster.describe()}"
            ) from error
        figures.masters = len(cluster.masters)
        figures.acknowledged = len(history.work.observed.sent)
        figures.settled = len(history.work.observed.settled)
        figures.lite_acknowledged = history.lite.acknowledged
        figures.lite_settled = history.lite.settled
        figures.lite_expired = history.lite.expired

    with mock.patch.object(ttl, "MINUTE_MS", MINUTE_MS):
        simulate(seed, scenario)
    return figures
