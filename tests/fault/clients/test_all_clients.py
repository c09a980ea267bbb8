"""Every kind of consumer at once, and producers with and without accumulation, while brokers, the
name server and members are killed, frozen and blocked, and members join and leave: nothing is lost,
order holds per queue and per message group, and what repeats has a cause that at-least-once allows.

Real processes: a name server, two brokers, two producers and up to three members of four consumer
groups over the same topics (`group_agent.py`). A run prints its seed, which chooses what happens.
`--campaign`: a hundred rebalances of every group, in five runs; one broker stays away in the odd
ones, and comes back at the end in the others.
"""

from __future__ import annotations

import asyncio
import math
import random
import signal
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from aerobee_client import AsyncAdminClient
from fault.agents import Agent
from fault.conftest import Campaign
from fault.group_agent import EVENTS, STEPS
from fault.groups.figures import figures
from fault.groups.judge import check, lost
from fault.groups.record import CONSUMED, KINDS, PRODUCERS, History, Member
from support.clock.polling import until
from support.processes.service import ServiceProcess, namesrv_and_brokers

pytestmark = pytest.mark.slow

BROKERS = ("broker-a", "broker-b")
QUEUES = 4  # on each broker
MOST_MEMBERS = 3  # of a group
LONG_REBALANCES = 100
BETWEEN_REBALANCES_S = (0.3, 2.0)
REBALANCES_BETWEEN_FAULTS = 5  # in the campaign
FREEZE_S = 2.0
# Beyond what a broker keeps the lock of a member that does not renew it.
LONG_FREEZE_S = 75.0
PATIENT_S = 120.0
PROGRESS = 10  # messages of each group, from each broker


class Run:
    def __init__(
        self,
        namesrv: ServiceProcess,
        brokers: dict[str, ServiceProcess],
        chance: random.Random,
        seed: int,
    ) -> None:
        self.namesrv = namesrv
        self.brokers = brokers
        self.chance = chance
        self.history = History(str(seed))
        self.running: dict[str, list[Member]] = {kind: [] for kind in (*KINDS, *PRODUCERS)}
        self.kinds: Counter[str] = Counter()
        self._read: Counter[str] = Counter()  # lines of each member that are counted
        self._consumed: Counter[tuple[str, str]] = Counter()  # by kind and broker
        self._keys: defaultdict[str, set[str]] = defaultdict(set)  # by kind

    # ---- members ----

    async def join(self, kind: str) -> Member:
        seed = self.history.seed if kind in PRODUCERS else str(self.chance.randrange(1 << 30))
        agent = await Agent.start("fault.group_agent", kind, self.namesrv.address, seed)
        member = Member(f"{kind}-{len(self.history.of(kind))}", kind, agent)
        self.history.members.append(member)
        self.running[kind].append(member)
        await until(lambda: member.reported, timeout_s=PATIENT_S)  # before, a signal would end it
        return member

    async def end(self, member: Member, *, killed: bool) -> None:
        self.running[member.kind].remove(member)
        if killed:
            member.killed = time.monotonic()
        else:
            member.left = time.monotonic()
        await member.agent.end(killed=killed)

    async def change(self, kind: str) -> None:
        """A rebalance of one group: a member joins, leaves or is killed."""
        members = self.running[kind]
        dice = self.chance.choice(("joined", "joined", "left", "killed"))
        if len(members) == MOST_MEMBERS and dice == "joined":
            dice = "left"
        if len(members) == 1:
            dice = "joined"
        self.kinds[dice] += 1
        if dice == "joined":
            await self.join(kind)
        else:
            await self.end(self.chance.choice(members), killed=dice == "killed")

    async def rebalance(self) -> None:
        """One of every group."""
        self.kinds["rebalances"] += 1
        await asyncio.gather(*map(self.change, KINDS))

    # ---- faults ----

    async def kill_broker(self) -> None:
        name = self.chance.choice(BROKERS)
        killed = time.monotonic()
        await asyncio.to_thread(self.brokers[name].kill)
        await asyncio.sleep(self.chance.uniform(0, 2))
        await asyncio.to_thread(self.brokers[name].start)
        self.history.deaths[name].append((killed, time.monotonic()))

    async def lose_name_server(self) -> None:
        """Members join meanwhile, who cannot start yet."""
        await asyncio.to_thread(self.namesrv.kill)
        await asyncio.gather(*map(self.change, KINDS))
        await asyncio.sleep(self.chance.uniform(0, 4))
        await asyncio.to_thread(self.namesrv.start)

    async def freeze(self, seconds: float = FREEZE_S) -> None:
        """A member of each group, and a rebalance of the others; one that is thawed goes on, or is
        killed."""
        chosen = [self.chance.choice(self.running[kind]) for kind in KINDS]
        stopped = time.monotonic()
        for member in chosen:
            member.agent.send_signal(signal.SIGSTOP)
        joining = [kind for kind in KINDS if len(self.running[kind]) == 1]
        await asyncio.gather(*map(self.join, joining))
        await asyncio.sleep(seconds)
        for member in chosen:
            if len(self.running[member.kind]) > 1 and self.chance.random() < 0.3:
                await self.end(member, killed=True)
            else:
                member.agent.send_signal(signal.SIGCONT)
            member.frozen.append((stopped, time.monotonic()))

    async def block(self, number: signal.Signals = signal.SIGUSR1) -> None:
        """The next call of a listener of each group. (Simple consumers work long by chance.)"""
        for kind in KINDS:
            if kind != "simple":
                self.chance.choice(self.running[kind]).agent.send_signal(number)

    async def long_hang(self) -> None:
        """Members are frozen, and listeners of others block, for longer than locks and leases."""
        await self.block(signal.SIGUSR2)
        await self.freeze(LONG_FREEZE_S)

    async def lose_broker(self) -> str:
        """For good: what is under way goes on with the other one. Returns its name."""
        name = self.chance.choice(BROKERS)
        killed = time.monotonic()
        await asyncio.to_thread(self.brokers[name].kill)
        self.history.deaths[name].append((killed, math.inf))
        return name

    async def bring_back(self, name: str) -> None:
        await asyncio.to_thread(self.brokers[name].start)
        killed, _ = self.history.deaths[name].pop()
        self.history.deaths[name].append((killed, time.monotonic()))

    # ---- progress ----

    def _count(self) -> Counter[tuple[str, str]]:
        for member in self.history.members:
            for reported in member.reported[self._read[member.name] :]:
                self._read[member.name] += 1
                if reported["event"] in CONSUMED or reported["event"] == "acknowledged":
                    self._consumed[member.kind, reported["place"][1]] += 1
                    self._keys[member.kind].add(reported["key"])
        return self._consumed

    async def progress(self, *but: str) -> None:
        """Producers have sent to, and every group has consumed from, each broker; without those of
        these names."""
        before = Counter(self._count())

        def grown() -> bool:
            for name in self.brokers:
                for kind in (*KINDS, *PRODUCERS):
                    if name not in but:
                        count = self._count()[kind, name] - before[kind, name]
                        assert count >= PROGRESS, f"{kind} got {count} of {name}"
            return True

        await until(grown, timeout_s=PATIENT_S)

    def has_consumed_all(self) -> bool:
        self._count()
        acknowledged = set().union(*(self._keys[kind] for kind in PRODUCERS))
        for kind in KINDS:
            if acknowledged <= self._keys[kind]:
                continue
            missing = lost(self.history, kind)  # takes its time
            assert not missing, f"{len(missing)} are lost of {kind}, such as {min(missing)}"
        return True


async def test_every_kind_of_consumer_through_every_fault(
    tmp_path: Path, campaign: Campaign
) -> None:
    for seed in campaign.seeds(1, 5):
        print(f"seed {seed}")
        with ExitStack() as stack:
            data = tmp_path / str(seed)
            data.mkdir()
            namesrv, brokers = stack.enter_context(namesrv_and_brokers(data, names=BROKERS))
            run = Run(namesrv, brokers, random.Random(seed), seed)
            try:
                await tried(run, campaign, comes_back=seed % 2 == 0)
            finally:
                for member in (each for found in run.running.values() for each in found):
                    if member.agent.process.returncode is None:
                        member.agent.process.kill()


async def tried(run: Run, campaign: Campaign, *, comes_back: bool) -> None:
    began = time.monotonic()
    await create(run.namesrv.address)
    await asyncio.gather(*map(run.join, (*KINDS, *KINDS, *PRODUCERS)))
    await run.progress()
    if campaign.long:
        await long_course(run)
    else:
        await short_course(run)
    gone = await run.lose_broker()
    await run.progress(gone)
    await asyncio.gather(*(run.end(run.running[kind][0], killed=False) for kind in PRODUCERS))
    if comes_back:
        await run.bring_back(gone)
    await until(run.has_consumed_all, timeout_s=2 * PATIENT_S)
    leaving = [member for kind in KINDS for member in run.running[kind]]
    await asyncio.gather(*(run.end(member, killed=False) for member in leaving))
    check(run.history)
    campaign.report(
        f"seed {run.history.seed}: {dict(run.kinds)}, {gone} "
        f"{'came back' if comes_back else 'stayed away'}, {time.monotonic() - began:.0f} s"
    )
    for line in figures(run.history):
        campaign.report(line)


async def create(namesrv: str) -> None:
    async with AsyncAdminClient(namesrv) as admin:
        await admin.create_topic(EVENTS, queues=QUEUES)
        await admin.create_topic(STEPS, queues=QUEUES, message_type="FIFO")
        for group in KINDS:
            await admin.create_group(group, max_attempts=1_000, retry_delays=[timedelta(seconds=1)])


async def short_course(run: Run) -> None:
    """Each kind of fault once."""
    faults = [run.kill_broker, run.lose_name_server, run.freeze, run.block]
    run.chance.shuffle(faults)
    for fault in faults:
        await run.rebalance()
        await fault()
    await run.progress()


async def long_course(run: Run) -> None:
    """A hundred rebalances, with a fault after every few; once members hang for long."""
    for number in range(LONG_REBALANCES):
        await run.rebalance()
        await asyncio.sleep(run.chance.uniform(*BETWEEN_REBALANCES_S))
        if number == LONG_REBALANCES // 2:
            await run.long_hang()
            run.kinds["long hang"] += 1
        elif number % REBALANCES_BETWEEN_FAULTS == 0:
            fault = run.chance.choice(
                (run.kill_broker, run.kill_broker, run.lose_name_server, run.freeze, run.block)
            )
            await fault()
            run.kinds[fault.__name__] += 1
            await run.progress()
