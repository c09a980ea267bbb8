"""Simple consumers of message groups over a broker that answers late, syncs late and is killed: the
broker keeps their order, and the judge of the processes (`judge.py`) says so.

`lease_agent.work` in one virtual loop, so that a seed is one interleaving. A receive that takes
seconds to settle outlives its leases, as on a machine with a load of 25: then two workers of one
consumer settle one message at a time.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aerobee_client import AsyncSimpleConsumer, ConsumeFromWhere
from aerobee_wire import properties
from aerobee_wire.rpcs import Rpc
from aerobee_wire.status import Code, MqError
from fault import lease_agent
from fault.agents import Agent
from fault.group_agent import STEPS, content
from fault.groups.judge import check_leased_order
from fault.groups.leases import check_settled
from fault.groups.record import History, Member, Report
from support.broker.harness import BrokerHarness, InlineWorker
from support.broker.pop_restarts import copy_store
from support.client.leasing import GROUP, NAMESRV, Brokers, Leasing
from support.clock.polling import until
from support.clock.virtual_loop import START_MS, LoopClock

BROKER = "a"
MEMBERS, WORKERS = 2, 4
MESSAGE_GROUPS, LENGTH = 6, 12
LATE_S = (0.01, 0.1, 3.0)  # at most: one of these for each way of a call
SYNC_S = 0.3  # at most
LIFE_S = 40.0  # of the broker and of a member, at most

REPORTED: ContextVar[list[Report]] = ContextVar("REPORTED")  # of the running member


class LateFlusher(InlineWorker):
    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    async def _run(self, function: Any) -> Any:
        await asyncio.sleep(self._chance.uniform(0, SYNC_S))
        return await super()._run(function)


class LateBroker(Brokers):
    """A killed broker answers nothing that it was asked before."""

    def __init__(self, broker: BrokerHarness, chance: random.Random) -> None:
        super().__init__({BROKER: broker})
        self._chance = chance
        self.broker = broker

    def kill(self) -> None:
        self.away.add(BROKER)

    def restart(self, broker: BrokerHarness) -> None:
        self.broker, self._brokers = broker, {BROKER: broker}
        self.methods = Brokers(self._brokers).methods
        self.away.clear()

    def runs(self, broker: BrokerHarness) -> bool:
        return broker is self.broker and not self.away

    async def call(
        self, address: str, rpc: Rpc[Any, Any], request: Any, *, timeout_s: float
    ) -> Any:
        await self._be_late()
        asked = self.broker
        answer = await super().call(address, rpc, request, timeout_s=timeout_s)
        await self._be_late()
        if not self.runs(asked):
            raise MqError(Code.BROKER_UNREACHABLE, "it was killed")
        return answer

    async def _be_late(self) -> None:
        await asyncio.sleep(self._chance.uniform(0, self._chance.choice(LATE_S)))


class Run:
    """`history`: of the members; one of another group has read all that was sent."""

    def __init__(self, path: Path, seed: int) -> None:
        self._path = path
        self._chance = random.Random(seed)
        self.history = History(str(seed))
        self._sent = self._member("pull").reported
        self._starts = 0

    async def run(self) -> None:
        broker = await self._start(self._path / "0", LoopClock())
        self._transport = LateBroker(broker, self._chance)
        works = asyncio.gather(self._kill(), *(self._consume() for _ in range(MEMBERS)))
        await self._send()
        await until(self._is_consumed)
        works.cancel()
        await asyncio.gather(works, return_exceptions=True)
        await self._transport.broker.end()
        assert not self._transport.defects

    def _is_consumed(self) -> bool:
        broker = self._transport.broker
        return broker.tables.offsets.get(GROUP, STEPS, 0) == broker.store.max_offset(STEPS, 0)

    async def _start(self, path: Path, clock: Any) -> BrokerHarness:
        flusher = LateFlusher(self._chance)
        broker = await BrokerHarness.begin(path, clock=clock, flusher=flusher, brokerName=BROKER)
        Leasing({BROKER: broker}).topic(STEPS, message_type="FIFO")
        await broker.group(GROUP, retry_max_times=1_000)
        return broker

    async def _send(self) -> None:
        for number in range(LENGTH):
            for name in range(MESSAGE_GROUPS):
                key = f"single-{name}/{number}"
                named = {properties.SHARDING_KEY: f"single-{name}", properties.KEYS: key}
                body = content(self.history.seed, key).encode()
                await self._send_one(key, body, named)

    async def _send_one(self, key: str, body: bytes, named: dict[str, str]) -> None:
        while True:
            broker = self._transport.broker
            [result] = await broker.send(STEPS, body, properties=named)
            if self._transport.runs(broker):
                break
            await asyncio.sleep(1)
        place = [STEPS, BROKER, 0, result.queue_offset]
        self._sent.append({"event": "begin", "place": place, "key": key})

    async def _kill(self) -> None:
        """With what it has written and not synced: a kill, not a power cut."""
        while True:
            await asyncio.sleep(self._chance.uniform(0, LIFE_S))
            killed = self._transport.broker
            self._transport.kill()
            self._starts += 1
            copy = copy_store(killed).rename(self._path / str(self._starts))
            self._transport.restart(await self._start(copy, killed.clock))
            await killed.end()

    # ---- members ----

    def _member(self, kind: str) -> Member:
        name = f"{kind}-{len(self.history.of(kind))}"
        member = Member(name, kind, cast(Agent, SimpleNamespace(reported=[])))
        self.history.members.append(member)
        return member

    async def _consume(self) -> None:
        """One member after the other."""
        while True:
            member = asyncio.create_task(self._be_member())
            try:
                await asyncio.sleep(self._chance.uniform(0, LIFE_S))
            finally:
                member.cancel()
                await asyncio.gather(member, return_exceptions=True)

    async def _be_member(self) -> None:
        REPORTED.set(self._member("simple").reported)
        consumer = AsyncSimpleConsumer(
            GROUP,
            namesrv=NAMESRV,
            transport=self._transport,
            clock=LoopClock(),
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        )
        consumer.subscribe(STEPS)
        async with consumer:
            works = (lease_agent.work(consumer, self._chance) for _ in range(WORKERS))
            await asyncio.gather(*works)


@pytest.fixture(autouse=True)
def virtual_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    def now_s() -> float:
        return asyncio.get_running_loop().time()

    clock = SimpleNamespace(monotonic=now_s, time=lambda: START_MS / 1_000 + now_s())
    monkeypatch.setattr(lease_agent, "time", clock)
    monkeypatch.setattr(lease_agent, "write", lambda reported: REPORTED.get().append(reported))


@pytest.mark.parametrize("seed", range(2))
async def test_message_groups_stay_in_order_while_leases_end_and_brokers_are_killed(
    tmp_path: Path, seed: int
) -> None:
    run = Run(tmp_path, seed)
    await run.run()
    reported = [one for member in run.history.of("simple") for one in member.reported]
    counts = Counter(one["event"] for one in reported)
    assert counts["acked"] > 0
    assert check_settled(reported) > 0, "no lease has ended"
    check_leased_order(run.history)
